#!/usr/bin/env bash
# Measures the packaged program: its size with each feature alone, with all but one, with all and with none; and its
# start-up time beside that of `true`. ONLY=sizes or ONLY=startup selects one. TARGET selects another target than this
# machine's, with musl.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export TARGET=${TARGET:-$(uname -m)-unknown-linux-musl}

# Prints the path of the program with these features.
built() { scripts/release.sh --no-default-features --features "$1" | tail -1; }

if [[ sizes =~ ${ONLY-} ]]; then
    # `store` is part of `postgres` and `redis`.
    features=(dashboard files kube store postgres redis)
    all=$(IFS=,; printf '%s' "${features[*]}")
    row() { printf '| %s | %s |\n' "$1" "$(stat -c %s "$(built "$2")" | awk '{ printf "%.1f MB", $1 / 1e6 }')"; }
    printf '| features | size |\n|---|---|\n'
    row all "$all"
    row none ''
    for feature in "${features[@]}"; do row "only \`$feature\`" "$feature"; done
    for feature in "${features[@]}"; do
        if [ "$feature" = store ]; then
            row 'all but `store`, `postgres`, `redis`' dashboard,files,kube
        else
            row "all but \`$feature\`" "$(printf '%s' "$all" | sed "s/\b$feature\b,\?//; s/,\$//")"
        fi
    done
fi

if [[ startup =~ ${ONLY-} ]]; then
    program=$(scripts/release.sh | tail -1)
    true=$(type -P true)
    # The time of a command in µs.
    timed() {
        local start=${EPOCHREALTIME/./}
        "$@" </dev/null >/dev/null 2>&1 || true
        printf '%d\n' $((${EPOCHREALTIME/./} - start))
    }
    # The median of the numbers in standard input, in ms.
    median() { sort -n | awk '{ n[NR] = $1 } END { printf "%.2f", (n[int((NR + 1) / 2)] + n[int(NR / 2) + 1]) / 2000 }'; }
    # Each round runs all commands, so that a disturbance of the machine hits all of them.
    rounds=${ROUNDS:-200}
    printf '| command | median | more than `true` |\n|---|---|---|\n'
    results=$(mktemp -d)
    trap 'rm -rf "$results"' EXIT
    for ((round = 0; round < rounds; round++)); do
        base=$(timed "$true")
        version=$(timed "$program" --version)
        empty=$(timed "$program" run true)
        printf '%d\n' "$base" >>"$results/true"
        printf '%d\n' "$version" >>"$results/version"
        printf '%d\n' "$empty" >>"$results/run"
        printf '%d\n' $((version - base)) >>"$results/version-more"
        printf '%d\n' $((empty - base)) >>"$results/run-more"
    done
    printf '| `true` | %s ms | |\n' "$(median <"$results/true")"
    printf '| `requeue --version` | %s ms | %s ms |\n' "$(median <"$results/version")" "$(median <"$results/version-more")"
    printf '| `requeue run true`, without keys | %s ms | %s ms |\n' "$(median <"$results/run")" "$(median <"$results/run-more")"
fi
