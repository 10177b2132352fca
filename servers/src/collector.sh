dir=$1 program=$2

started() {
    "$program" --config "yaml:$(cat "$dir/config.yaml")" >"$dir/server.log" 2>&1 &
    pid=$!
    while kill -0 "$pid" && ! grep -q 'Everything is ready' "$dir/server.log"; do sleep 0.05; done
    kill -0 "$pid"
}

killed() {
    kill -KILL "$pid"
    wait "$pid" || true
}
