#!/usr/bin/env bash
# Changes the core's code in every way that cargo-mutants knows, one at a time: some test must detect each change. By
# default it changes all files except the index, whose sizes are tuned; otherwise the named ones: `mutants.sh queue
# limiter`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
# Use the same cases each time, and do not shrink them, because the smallest case is not needed.
export PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0
# Some mutants allocate without end: limit them to 16 GiB.
ulimit -v 16777216 2>/dev/null || true

files=() skipped=()
# The index's own tests, which take longest, test only the index.
case " $* " in *index*) ;; *) skipped=(--skip index::) ;; esac
[ $# -gt 0 ] || files=(--exclude 'crates/requeue-core/src/memory/index/**')
for file; do
    [ ! -d "crates/requeue-core/src/$file" ] || file+='/**'
    files+=(--file "crates/requeue-core/src/$file")
done

# Runs the named tests on the unchanged code, then on each mutant that was not detected yet. A mutant that makes the tests
# hang counts as detected. Returns 2 if some mutants are not detected.
mutants() {
    local timeout=$1 code=0
    shift
    cargo test --quiet --profile mutants --package requeue-core --package requeue-sim "$@" || return 4
    # A separate target directory: cargo would take the artifacts of a mutated copy for those of this tree.
    CARGO_TARGET_DIR=$target/mutated cargo mutants --package requeue-core --test-package requeue-core,requeue-sim --output "$target" \
        --iterate --baseline skip --timeout "$timeout" "${files[@]}" "${@/#/--cargo-arg=}" -- -- ${skipped[@]+"${skipped[@]}"} || code=$?
    [ "$code" = 3 ] || return "$code"
}

rm -rf "$target/mutants.out" "$target/mutants.out.old"
# First the test that detects most mutants within a second, with few cases; then the core's own tests; then, for the
# remaining mutants, all tests with all cases.
own=(--lib)
for test in crates/requeue-core/tests/*.rs; do own+=(--test="$(basename "$test" .rs)"); done
code=0
PROPTEST_CASES=30 mutants 60 --test=lockstep || code=$?
[ "$code" = 2 ] || exit "$code"
code=0
PROPTEST_CASES=30 mutants 60 "${own[@]}" || code=$?
[ "$code" = 2 ] || exit "$code"
mutants 600
