dir=$1 programs=$2 port=$3 settings=$4

made() {
    "$programs/initdb" --pgdata "$dir/data" --username postgres --pwfile "$dir/password" \
        --auth-local trust --auth-host scram-sha-256 --encoding UTF8 --locale C --no-sync
}

started() {
    "$programs/pg_ctl" start --wait --timeout 120 --pgdata "$dir/data" --log "$dir/server.log" \
        --options "-k $dir -p $port -h 127.0.0.1 -c fsync=off -c shared_buffers=64MB \
            -c max_connections=200 -c ssl=on -c ssl_cert_file=$dir/server.crt \
            -c ssl_key_file=$dir/server.key $settings $*"
}

stopped() {
    "$programs/pg_ctl" stop --wait --mode fast --pgdata "$dir/data"
}

# A backup of all databases, which `restored` puts in the place of what is there by then.
backed_up() {
    copy backup
}

restored() {
    killed
    replace backup
    started
}

# A replica, which streams what the server writes from now on. The socket is in its directory.
followed() {
    copy replica --write-recovery-conf
    "$programs/pg_ctl" start --wait --timeout 120 --pgdata "$dir/replica" --log "$dir/server.log" \
        --options "-k $dir/replica -p $port -c listen_addresses= -c fsync=off \
            -c shared_buffers=64MB -c max_connections=200 $settings"
}

# From now on the replica gets nothing more.
left_behind() {
    "$programs/pg_ctl" stop --wait --mode fast --pgdata "$dir/replica"
}

# The server dies, and the replica takes its place and its address.
promoted() {
    killed
    replace replica
    started -c primary_conninfo=
    "$programs/pg_ctl" promote --wait --timeout 120 --pgdata "$dir/data"
}

copy() {
    copy=$dir/$1
    shift
    rm -rf "$copy"
    "$programs/pg_basebackup" --host "$dir" --port "$port" --username postgres --checkpoint fast \
        --no-sync --pgdata "$copy" "$@"
}

replace() {
    rm -rf "$dir/data"
    mv "$dir/$1" "$dir/data"
}

# Without a last word to anybody, as if its machine had gone.
killed() {
    [ ! -e "$dir/replica/postmaster.pid" ] || left_behind
    "$programs/pg_ctl" stop --wait --mode immediate --pgdata "$dir/data"
}
