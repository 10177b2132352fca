#!/usr/bin/env bash
# Measures the packaged program: its size with each feature alone, with all features and with none, and its start-up
# time compared with that of `true`. ONLY=sizes or ONLY=startup selects one measurement. TARGET selects a target with
# musl other than this machine's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export TARGET=${TARGET:-$(uname -m)-unknown-linux-musl}

# Prints the path of the program with these features.
built() { scripts/release.sh --no-default-features --features "$1" | tail -1; }

if [[ sizes =~ ${ONLY-} ]]; then
    features=(kube sqlite postgres redis)
    all=$(IFS=,; printf '%s' "${features[*]}")
    row() { printf '| %s | %s |\n' "$1" "$(stat -c %s "$(built "$2")" | awk '{ printf "%.1f MB", $1 / 1e6 }')"; }
    printf '| features | size |\n|---|---|\n'
    row all "$all"
    row none ''
    for feature in "${features[@]}"; do row "only \`$feature\`" "$feature"; done
fi

if [[ startup =~ ${ONLY-} ]]; then
    program=$(scripts/release.sh | tail -1)
    true=$(type -P true)
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    printf 'key\n' >"$results/key"
    # The time of a command in µs: timed INPUT COMMAND...
    timed() {
        local input=$1 start=${EPOCHREALTIME/./}
        shift
        "$@" <"$input" >/dev/null 2>&1 || true
        printf '%d\n' $((${EPOCHREALTIME/./} - start))
    }
    # The median of the numbers in a file, and their minimum.
    median() { sort -n "$1" | awk '{ n[NR] = $1 } END { print (n[int((NR + 1) / 2)] + n[int(NR / 2) + 1]) / 2 }'; }
    minimum() { sort -n "$1" | sed -n 1p; }
    # Each round runs all commands, so that a disturbance of the machine affects all of them.
    rounds=${ROUNDS:-200}
    for ((round = 0; round < rounds; round++)); do
        base=$(timed /dev/null "$true")
        note() {
            printf '%d\n' "$2" >>"$results/$1"
            printf '%d\n' $(($2 - base)) >>"$results/$1-more"
        }
        note base "$base"
        note version "$(timed /dev/null "$program" --version)"
        note empty "$(timed /dev/null "$program" run true)"
        note one "$(timed "$results/key" "$program" run true)"
    done
    # On a busy machine, the minima describe the program, and the medians also include the load.
    printf '| command | minimum | more than `true` | median | more than `true` |\n|---|---|---|---|---|\n'
    row() {
        awk -v name="$1" -v min="$(minimum "$results/$2")" -v base="$(minimum "$results/base")" \
            -v median="$(median "$results/$2")" -v more="$(median "$results/$2-more")" 'BEGIN {
                printf "| %s | %.2f ms | %.2f ms | %.2f ms | %.2f ms |\n",
                    name, min / 1000, (min - base) / 1000, median / 1000, more / 1000
            }'
    }
    row '`true`' base
    row '`requeue --version`' version
    row '`requeue run true`, without keys' empty
    row '`requeue run true`, with one key' one
    printf 'The load average was %s.\n' "$(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null || uptime)"
fi
