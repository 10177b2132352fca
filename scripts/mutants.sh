#!/usr/bin/env bash
# Changes the core's code in every way that cargo-mutants knows, one at a time: some test has to see it.
# All of its files, or those that are named, as in `mutants.sh queue.rs limiter`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
export CARGO_TARGET_DIR=$target/mutants
# The same cases each time; and nobody reads the smallest one that fails.
export PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0
# Some mutants fill the memory until they are stopped.
ulimit -v 16777216 2>/dev/null || true

files=()
for file; do
    [ ! -d "crates/requeue-core/src/$file" ] || file+='/**'
    files+=(--file "crates/requeue-core/src/$file")
done

# Those that have not been seen yet, by the tests of which packages. 2: some are not seen. A mutant with which the
# tests don't end is one that they see.
mutants() {
    local code=0
    cargo mutants --package requeue-core --test-package "$1" --output "$target" --iterate \
        --baseline skip "${files[@]}" "${@:2}" || code=$?
    [ "$code" = 3 ] || return "$code"
}

# First the tests that see most of them, which take no time; then all that there are.
few=(--lib --test=lockstep)
cargo test --quiet --profile mutants --package requeue-core --package requeue-sim "${few[@]}"
rm -rf "$target/mutants.out" "$target/mutants.out.old"
mutants requeue-core,requeue-sim --timeout 60 "${few[@]/#/--cargo-arg=}" || [ $? = 2 ]
cargo test --quiet --profile mutants --package requeue-core --package requeue-sim --package requeue
mutants requeue-core,requeue-sim,requeue --timeout 600
