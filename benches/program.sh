#!/usr/bin/env bash
# Compares the cost of a command's run: `requeue run -j2` beside `xargs -P2 -n1`, both running /bin/true.
#
# Each of ROUNDS rounds has a turn of each program, in a different order, because machines are noisy. RUNS is the number
# of commands per turn. The script prints the median of the rounds, and the median of the ratios to xargs's time in the
# same round.
#
# With a million keys queued, the time is measured in the joblog, from the 2,000th start to the start RUNS later. By the
# 2,000th start, all of the input has been read.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
runs=${RUNS:-4000} rounds=${ROUNDS:-9} warm=2000

cargo build --release -p requeue-cli
requeue=$target/release/requeue
out=$target/program
mkdir -p "$out"
rm -f "$out"/*.times
seq "$runs" >"$out/keys"
# Keys of 28 bytes.
seq -f 'customer/%019.0f' 1000000 >"$out/million"

true=$(command -v true)
[ -x /bin/true ] && true=/bin/true

timed() {
    local start=$EPOCHREALTIME
    "$@" >/dev/null
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

measure() {
    case $1 in
    xargs) timed xargs -P2 -n1 "$true" <"$out/keys" ;;
    inherit) timed "$requeue" run -j2 --output inherit --summary none -- "$true" <"$out/keys" ;;
    lines) timed "$requeue" run -j2 --summary none -- "$true" <"$out/keys" ;;
    million-*)
        local output=${1#million-} last=$((warm + runs))
        : >"$out/joblog"
        "$requeue" run -j2 --output "$output" --summary none --joblog "$out/joblog" -- "$true" \
            <"$out/million" >/dev/null 2>&1 &
        local program=$!
        until [ "$(wc -l <"$out/joblog")" -gt $((last + 10)) ]; do
            sleep 0.5
        done
        kill "$program"
        wait "$program" || true
        sort -n "$out/joblog" | awk -v from="$warm" -v to="$last" \
            '$1 == from { a = $3 } $1 == to { b = $3 } END { print b - a }'
        ;;
    esac
}

what=(xargs inherit lines million-inherit million-lines)
for ((round = 0; round < rounds; round++)); do
    for ((i = 0; i < ${#what[@]}; i++)); do
        one=${what[(i + round) % ${#what[@]}]}
        measure "$one" >>"$out/$one.times"
    done
done

median() {
    sort -g | awk '{ a[NR] = $1 } END { print (a[int((NR + 1) / 2)] + a[int(NR / 2) + 1]) / 2 }'
}

printf '%d runs of %s, two at once, median of %d rounds\n' "$runs" "$true" "$rounds"
for one in "${what[@]}"; do
    printf '%-16s %6.2f s  %5.2f x\n' "$one" "$(median <"$out/$one.times")" \
        "$(paste "$out/$one.times" "$out/xargs.times" | awk '{ print $1 / $2 }' | median)"
done
