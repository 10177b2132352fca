#!/usr/bin/env bash
# Plants bugs in a copy of the sources, one at a time, and shows which layers of tests detect each: all of
# crates/requeue-sim/planted, or the named ones. Fails unless two layers detect each bug. A layer that must be stopped
# because it hangs has not detected the bug: it names neither the bug nor the test.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
copy=$target/planted/tree
patches=$PWD/crates/requeue-sim/planted
export CARGO_TARGET_DIR=$target/planted/target
[ $# -gt 0 ] || set -- "$patches"/*.patch

rm -rf "$copy"
mkdir -p "$copy"
git ls-files -z | tar --null --files-from=- -cf - | tar -xf - -C "$copy"
cd "$copy"

layers=(unit behaviour model simulator loom client-go)
layer() {
    case $1 in
    unit) within 900 cargo test -q -p requeue-core --lib --tests && within 900 cargo test -q -p requeue --all-features --lib ;;
    behaviour) within 900 cargo test -q -p requeue --all-features --test '*' ;;
    model) within 900 cargo test -q -p requeue-sim --test lockstep --test many ;;
    simulator) within 900 cargo run -q -p requeue-sim --bin sim -- 2000 ;;
    loom) within 900 env CARGO_TARGET_DIR="$CARGO_TARGET_DIR" scripts/loom.sh 3 ;;
    client-go) within 900 cargo test -q -p requeue-conformance ;;
    esac
}

for layer in "${layers[@]}"; do
    layer "$layer" >"$target/planted/none-$layer.log" 2>&1 || {
        printf '%s fails without any bug planted: %s\n' "$layer" "$target/planted/none-$layer.log" >&2
        exit 2
    }
done

printf '| planted bug |%s\n' "$(printf ' %s |' "${layers[@]}")"
printf '|---|%s\n' "$(printf -- '---|%.0s' "${layers[@]}")"
missed=0
for patch; do
    name=$(basename "$patch" .patch)
    patch -s -p1 <"$patches/$name.patch"
    # A bug that does not compile proves nothing.
    cargo build -q -p requeue -p requeue-sim
    row="| $name |" seen=0
    for layer in "${layers[@]}"; do
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
    [ "$seen" -ge 2 ] || missed=1
    patch -s -p1 -R <"$patches/$name.patch"
done
exit "$missed"
