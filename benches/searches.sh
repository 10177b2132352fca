#!/usr/bin/env bash
# Measures the rate of `requeue run --serve -j2` with a million keys while CLIENTS search them over HTTP, beside the same
# run without clients.
#
# Each round measures both, in alternating order: the time from the 2,000th start to the start RUNS later. Each client
# asks for a key that does not exist, which is the longest search, and asks again at once. The clients have the lowest
# priority, because they would be on other machines. With REQUEUE=FILE, that program is measured.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
runs=${RUNS:-4000} rounds=${ROUNDS:-9} clients=${CLIENTS:-64} warm=2000

if [ -z "${REQUEUE-}" ]; then
    cargo build --release -p requeue-cli
    REQUEUE=$target/release/requeue
fi
out=$target/searches
mkdir -p "$out"
rm -f "$out"/*.times
seq -f 'customer/%019.0f' 1000000 >"$out/million"

# Sends searches, and counts the answers and the refusals. It starts no processes, which would affect the measurement.
search() {
    local code found=0 refused=0
    trap 'echo "$found $refused" >>"$out/answers"; exit' TERM
    while true; do
        if { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; then
            printf 'GET /api/v1/keys?q=nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
            code=
            read -r _ code _ <&3 || true
            exec 3>&-
            if [ "$code" = 200 ]; then ((++found)); else ((++refused)); fi
        fi
    done 2>/dev/null
}

measure() {
    local last=$((warm + runs)) port pids=()
    : >"$out/joblog"
    "$REQUEUE" run -j2 --serve 0 --summary none --joblog "$out/joblog" -- true <"$out/million" >/dev/null 2>"$out/log" &
    local program=$!
    until port=$(sed -n 's|.*http://127.0.0.1:\([0-9]*\)/.*|\1|p' "$out/log") && [ "$port" ]; do sleep 0.1; done
    if [ "$1" = searched ]; then
        for ((i = 0; i < clients; i++)); do
            search "$port" &
            renice -n 19 -p $! >/dev/null
            pids+=($!)
        done
    fi
    until [ "$(wc -l <"$out/joblog")" -gt $((last + 10)) ]; do sleep 0.2; done
    [ "$1" = plain ] || kill "${pids[@]}"
    kill "$program"
    wait || true
    sort -n "$out/joblog" | awk -v from="$warm" -v to="$last" \
        '$1 == from { a = $3 } $1 == to { b = $3 } END { print (to - from) / (b - a) }' >>"$out/$1.times"
}

: >"$out/answers"
for ((round = 0; round < rounds; round++)); do
    for one in $( ((round % 2)) && echo plain searched || echo searched plain); do
        measure "$one"
    done
done

median() {
    sort -g | awk '{ a[NR] = $1 } END { print (a[int((NR + 1) / 2)] + a[int(NR / 2) + 1]) / 2 }'
}

printf '%d runs of true, two at once, %d clients, median of %d rounds\n' "$runs" "$clients" "$rounds"
printf '%-10s %6.0f runs/s\n' plain "$(median <"$out/plain.times")" searched "$(median <"$out/searched.times")"
printf 'ratio      %6.2f\n' "$(paste "$out/searched.times" "$out/plain.times" | awk '{ print $1 / $2 }' | median)"
awk '{ found += $1; refused += $2 } END { printf "answers    %6d, refused %d\n", found, refused }' "$out/answers"
