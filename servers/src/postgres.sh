dir=$1 programs=$2 port=$3 settings=$4

made() {
    "$programs/initdb" --pgdata "$dir/data" --username postgres --pwfile "$dir/password" \
        --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C --no-sync
}

started() {
    "$programs/pg_ctl" start --wait --timeout 120 --pgdata "$dir/data" --log "$dir/server.log" \
        --options "-k $dir -p $port -h 127.0.0.1 -c fsync=off -c shared_buffers=64MB \
            -c max_connections=200 -c ssl=on -c ssl_cert_file=$dir/server.crt \
            -c ssl_key_file=$dir/server.key $settings"
}

stopped() {
    "$programs/pg_ctl" stop --wait --mode fast --pgdata "$dir/data"
}

# Without a last word to anybody, as if its machine had gone.
killed() {
    "$programs/pg_ctl" stop --wait --mode immediate --pgdata "$dir/data"
}
