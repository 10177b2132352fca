#!/usr/bin/env bash
# Plants bugs in a copy of the sources, one at a time, and runs the layers of tests that must detect each bug: at least
# two layers, which the patch names in its line `Layers:`. Plants all bugs in crates/requeue-sim/planted, the named
# bugs, or with PART=2/6 every sixth bug, beginning with the second. Fails if one of these layers does not detect its
# bug. A layer that hangs and must be stopped has not detected the bug, because it names neither the bug nor the test.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
copy=$target/planted/tree
patches=$PWD/crates/requeue-sim/planted
export CARGO_TARGET_DIR=$target/planted/target
all=(unit behaviour model simulator loom client-go stores chaos)

[ $# -gt 0 ] || set -- "$patches"/*.patch
part=${PART:-1/1}
if ! [[ $part =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] || [ "${BASH_REMATCH[1]}" -gt "${BASH_REMATCH[2]}" ]; then
    printf 'PART=%s is no part; use PART=1/6 to PART=6/6 for six parts\n' "$part" >&2
    exit 2
fi
first=${BASH_REMATCH[1]} step=${BASH_REMATCH[2]}
names=()
for ((at = first; at <= $#; at += step)); do
    names+=("$(basename "${!at}" .patch)")
done

# Prints the value of a line in the head of a patch: `header NAME Layers`.
header() {
    sed -n "s/^$2: //p;/^---/q" "$patches/$1.patch"
}

layer() {
    case $1 in
    unit) within 900 cargo test -q -p requeue-core --lib --tests && within 900 cargo test -q -p requeue --all-features --lib ;;
    behaviour) within 900 cargo test -q -p requeue --all-features --test '*' ;;
    model) within 900 cargo test -q -p requeue-sim --test lockstep --test many ;;
    simulator) within 900 cargo run -q -p requeue-sim --bin sim -- 2000 ;;
    loom) within 900 env CARGO_TARGET_DIR="$CARGO_TARGET_DIR" scripts/loom.sh 3 ;;
    client-go) within 900 cargo test -q -p requeue-conformance ;;
    stores) within 900 cargo test -q -p requeue-store --all-features --lib -- groups_ rates_ ;;
    chaos) within 900 cargo run -q -p requeue-chaos -- sqlite,postgres,redis 30 1 ;;
    esac
}

# The names are checked first, because the output of the layers goes into logs.
for name in "${names[@]}"; do
    read -ra layers <<<"$(header "$name" Layers)"
    for layer in "${layers[@]}"; do
        [[ " ${all[*]} " == *" $layer "* ]] || {
            printf '%s.patch: no such layer: %s; the layers are %s\n' "$name" "$layer" "${all[*]}" >&2
            exit 2
        }
    done
done

rm -rf "$copy"
mkdir -p "$copy"
# The files get the current time. With an older time, cargo would keep the builds of a tree with a bug.
git ls-files -z | tar --null --files-from=- -cf - | tar -xmf - -C "$copy"
cd "$copy"

read -ra used <<<"$(for name in "${names[@]}"; do header "$name" Layers; done | tr ' ' '\n' | sort -u | tr '\n' ' ')"
for layer in "${used[@]}"; do
    layer "$layer" >"$target/planted/none-$layer.log" 2>&1 || {
        printf '%s fails without any bug planted: %s\n' "$layer" "$target/planted/none-$layer.log" >&2
        exit 2
    }
done

printf '| planted bug |%s\n' "$(printf ' %s |' "${all[@]}")"
printf '|---|%s\n' "$(printf -- '---|%.0s' "${all[@]}")"
missed=0
for name in "${names[@]}"; do
    read -ra layers <<<"$(header "$name" Layers)"
    patch -s -p1 <"$patches/$name.patch"
    row="| $(header "$name" Bug) |" seen=0
    # A bug that does not compile proves nothing.
    crates=(-p requeue -p requeue-sim)
    [[ " ${layers[*]} " != *" chaos "* ]] || crates+=(-p requeue-chaos)
    if ! cargo build -q "${crates[@]}" 2>"$target/planted/$name.log"; then
        printf '%s does not compile: %s |\n' "$row" "$target/planted/$name.log"
        missed=1
        patch -s -p1 -R <"$patches/$name.patch"
        continue
    fi
    for layer in "${all[@]}"; do
        if [[ " ${layers[*]} " != *" $layer "* ]]; then
            row+=' · |'
            continue
        fi
        code=0
        layer "$layer" >"$target/planted/$name-$layer.log" 2>&1 || code=$?
        case $code in
        0) row+=' |' ;;
        # The exit codes of `timeout` for a command that it has stopped, and for one that it has killed.
        124 | 137) row+=' hangs |' ;;
        *)
            row+=' seen |'
            seen=$((seen + 1))
            ;;
        esac
    done
    printf '%s\n' "$row"
    [ "$seen" -ge 2 ] && [ "$seen" -eq "${#layers[@]}" ] || missed=1
    patch -s -p1 -R <"$patches/$name.patch"
done
exit "$missed"
