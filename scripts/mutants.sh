#!/usr/bin/env bash
# Changes the core's code in every way that cargo-mutants knows, one at a time: some test has to see it.
# All of its files but those of the index, whose sizes are tuned; or those that are named, as in `mutants.sh queue limiter`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
# The same cases each time; and nobody reads the smallest one that fails.
export PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0
# Some mutants fill the memory until they are stopped.
ulimit -v 16777216 2>/dev/null || true

files=() skipped=()
# The index's own tests, which take longest, see nothing of the others.
case " $* " in *index*) ;; *) skipped=(--skip index::) ;; esac
[ $# -gt 0 ] || files=(--exclude 'crates/requeue-core/src/memory/index/**')
for file; do
    [ ! -d "crates/requeue-core/src/$file" ] || file+='/**'
    files+=(--file "crates/requeue-core/src/$file")
done

# The tests that are named, on the code as it is; then on each mutant that has not been seen yet. 2: some are not seen.
# A mutant with which the tests don't end is one that they see.
mutants() {
    local timeout=$1 code=0
    shift
    cargo test --quiet --profile mutants --package requeue-core --package requeue-sim "$@" || return 4
    # Built apart: cargo takes what it has built of a copy for this tree's.
    CARGO_TARGET_DIR=$target/mutated cargo mutants --package requeue-core --test-package requeue-core,requeue-sim --output "$target" \
        --iterate --baseline skip --timeout "$timeout" "${files[@]}" "${@/#/--cargo-arg=}" -- -- ${skipped[@]+"${skipped[@]}"} || code=$?
    [ "$code" = 3 ] || return "$code"
}

rm -rf "$target/mutants.out" "$target/mutants.out.old"
# First what sees most of them in a second, with a few of its cases; then the core's own tests; then, for what is left, all that there
# are, with all their cases.
own=(--lib)
for test in crates/requeue-core/tests/*.rs; do own+=(--test="$(basename "$test" .rs)"); done
code=0
PROPTEST_CASES=30 mutants 60 --test=lockstep || code=$?
[ "$code" = 2 ] || exit "$code"
code=0
PROPTEST_CASES=30 mutants 60 "${own[@]}" || code=$?
[ "$code" = 2 ] || exit "$code"
mutants 600
