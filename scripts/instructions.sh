#!/usr/bin/env bash
# Counts the instructions of the main paths, and compares them with those in benches/instructions/baseline.txt.
# Fails if a path takes over 3 % more, and names it. UPDATE=1 writes the counts to the baseline.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
baseline=benches/instructions/baseline.txt
counted=$target/instructions
export times=2048

# The baseline of another kind of machine is not comparable, which is not a failure.
host=$(rustc -vV | sed -n 's/^host: //p')
made_for=$(sed -n 's/^# for //p' "$baseline" 2>/dev/null || true)
if [ "${UPDATE-}" != 1 ] && [ "$host" != "$made_for" ]; then
    printf 'instructions: %s is for %s, and this is %s\n' "$baseline" "$made_for" "$host" |
        tee -a "${REQUEUE_NOT_RUN:-/dev/null}"
    exit
fi
# The counts depend on the compiler, and on the C library, which allocates and copies.
made_by="$(rustc -V), $(getconf GNU_LIBC_VERSION)"
was_made_by=$(sed -n 's/^# by //p' "$baseline" 2>/dev/null || true)
limit=3
if [ "${UPDATE-}" != 1 ] && [ "$made_by" != "$was_made_by" ]; then
    limit=15
    printf '%s was made with %s; this machine has %s.\nThe limit is therefore %d %%. UPDATE=1 writes the new counts.\n' \
        "$baseline" "$was_made_by" "$made_by" "$limit"
fi

# Ignores the user's flags, such as a flag for this machine's processor.
RUSTFLAGS='' cargo build --locked --release -p requeue-instructions
export program=$target/release/requeue-instructions

# Prints the number of instructions per run of the path `$1`. The environment is always the same. The C library selects
# its copy and compare functions by the processor: here it uses the functions that run on every processor.
count() {
    local plain=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-SSE4_2,-SSE4_1,-SSSE3
    plain+=,-BMI1,-BMI2,-LZCNT,-MOVBE,-ERMS,-FSRM,-RTM,-Prefer_ERMS,-Prefer_FSRM,-Fast_Unaligned_Copy,-Fast_Copy_Backward
    local said total=0
    if said=$(env -i PATH="$PATH" LC_ALL=C GLIBC_TUNABLES="$plain" \
        valgrind --tool=callgrind --toggle-collect='*counted*' --callgrind-out-file=/dev/null \
        "$program" "$1" "$times" 2>&1); then
        total=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\)$/\1/p' <<<"$said")
    fi
    if [ "${total:-0}" -eq 0 ]; then
        printf '%s: no instructions were counted:\n%s\n' "$1" "$said" >&2
        return 1
    fi
    awk -v path="$1" -v total="$total" -v times="$times" 'BEGIN { printf "%-28s %8.1f\n", path, total / times }'
}
export -f count

"$program" | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I '{}' bash -c 'count {}' >"$counted.unsorted"
# Restores the program's order of the paths.
"$program" | awk 'NR == FNR { line[$1] = $0; next } { print line[$1] }' "$counted.unsorted" - >"$counted.txt"

[ -e "$baseline" ] || printf '# nothing\n' >"$baseline"
awk -v limit="$limit" -v update="${UPDATE-}" '
    FNR == 1 { file++ }
    /^#/ { next }
    file == 1 { was[$1] = $2; next }
    !begun++ { printf "%-28s %10s %10s %9s\n", "instructions each time", "committed", "now", "change" }
    {
        now[$1] = 1
        if (!($1 in was)) {
            printf "%-28s %10s %10.1f\n", $1, "-", $2
            wrong = wrong sprintf("%s is not in the baseline: UPDATE=1 adds it\n", $1)
            next
        }
        change = ($2 / was[$1] - 1) * 100
        printf "%-28s %10.1f %10.1f %+7.1f %%\n", $1, was[$1], $2, change
        if (change > limit)
            wrong = wrong sprintf("%s takes %.1f %% more instructions than the baseline; the limit is %d %%\n", $1, change, limit)
        if (change < -3)
            fewer = fewer sprintf("%s takes %.1f %% fewer instructions than the baseline: UPDATE=1 records that\n", $1, -change)
    }
    END {
        for (path in was)
            if (!(path in now))
                wrong = wrong sprintf("%s is in the baseline, but there is no such path: UPDATE=1 removes it\n", path)
        printf "%s", fewer
        if (update != 1) {
            printf "%s", wrong
            exit wrong != ""
        }
    }' "$baseline" "$counted.txt"

if [ "${UPDATE-}" = 1 ]; then
    {
        printf '# Instructions of the main paths, each time: made by UPDATE=1 scripts/instructions.sh\n'
        printf '# for %s\n# by %s\n' "$host" "$made_by"
        cat "$counted.txt"
    } >"$baseline"
fi
