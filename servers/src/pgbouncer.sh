dir=$1 program=$2 port=$3

started() {
    : >"$dir/server.log"
    "$program" "$dir/pgbouncer.ini" &
    pid=$!
    # It accepts connections after this message.
    until grep -q 'process up' "$dir/server.log"; do
        kill -0 "$pid" || return 1
        sleep 0.05
    done
}

killed() {
    [ -z "$pid" ] || kill -KILL "$pid"
    wait "$pid" || true
    pid=
}
