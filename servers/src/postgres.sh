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

# Makes a backup of all databases, with which `restored` replaces the current data.
backed_up() {
    copy backup
}

restored() {
    killed
    replace backup
    started
}

# Starts a replica, which streams the server's writes from now on. Its socket is in its directory.
followed() {
    copy replica --write-recovery-conf
    "$programs/pg_ctl" start --wait --timeout 120 --pgdata "$dir/replica" --log "$dir/server.log" \
        --options "-k $dir/replica -p $port -c listen_addresses= -c fsync=off \
            -c shared_buffers=64MB -c max_connections=200 $settings"
}

# Stops the replica: it gets no more writes. It has all writes up to now. (A replica that could not connect to the server
# tries again after 5 s.)
left_behind() {
    position=$(ask "$dir" "select pg_current_wal_lsn()") || position=0/0
    until [ "$(ask "$dir/replica" "select coalesce(pg_last_wal_receive_lsn(), '0/0') >= '$position'")" = t ]; do
        "$programs/pg_ctl" status --pgdata "$dir/replica" || return
        sleep 0.05
    done
    "$programs/pg_ctl" stop --wait --mode fast --pgdata "$dir/replica"
}

# Kills the server, and promotes the replica at the server's address.
promoted() {
    killed
    replace replica
    started -c primary_conninfo=
    "$programs/pg_ctl" promote --wait --timeout 120 --pgdata "$dir/data"
}

ask() {
    "$programs/psql" --host "$1" --port "$port" --username postgres --no-align --tuples-only --command "$2"
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

# Kills the server without notice to its clients, as if its machine had failed.
killed() {
    thawed || true # A frozen server would not stop.
    [ ! -e "$dir/replica/postmaster.pid" ] || left_behind
    "$programs/pg_ctl" stop --wait --mode immediate --pgdata "$dir/data"
}

# Freezes all processes of the server, as if its machine had stalled.
frozen() {
    signal STOP
}

thawed() {
    signal CONT
}

signal() {
    server=$(head -n 1 "$dir/data/postmaster.pid") || return
    # The first process starts the others, and so it is stopped first.
    kill -s "$1" "$server"
    for process in $(cat "/proc/$server/task/$server/children"); do kill -s "$1" "$process" || true; done
}
