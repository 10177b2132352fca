dir=$1 program=$2 cli=$3 port=$4 tls_port=$5 cluster_port=$6 fsync=$7 master=$8

started() {
    set -- --bind 127.0.0.1 --port "$port" --tls-port "$tls_port" --dir "$dir" --logfile "$dir/server.log" \
        --tls-cert-file "$dir/server.crt" --tls-key-file "$dir/server.key" --tls-ca-cert-file "$dir/server.crt" \
        --tls-auth-clients no --save '' --appendonly yes --appendfsync "$fsync" --repl-diskless-sync-delay 0
    [ "$cluster_port" = 0 ] || set -- "$@" --cluster-enabled yes --cluster-port "$cluster_port" --cluster-node-timeout 5000
    if [ "$master" != 0 ]; then
        echo "sentinel monitor jobs 127.0.0.1 $master 1" >"$dir/sentinel.conf"
        set -- "$dir/sentinel.conf" --sentinel --bind 127.0.0.1 --port "$port" --dir "$dir" --logfile "$dir/server.log"
    fi
    "$program" "$@" &
    pid=$!
    while kill -0 "$pid" && [ "$(timeout 5 "$cli" -p "$port" ping)" != PONG ]; do sleep 0.05; done
    kill -0 "$pid"
}

stopped() {
    kill -TERM "$pid" && wait "$pid"
}

# Kills the server without notice to its clients. The system keeps the data that it has written.
killed() {
    [ -z "$pid" ] || kill -KILL "$pid"
    wait "$pid" || true
    pid=
}

frozen() {
    kill -STOP "$pid"
}

thawed() {
    kill -CONT "$pid"
}
