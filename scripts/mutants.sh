#!/usr/bin/env bash
# Makes every change to the core's code that cargo-mutants knows, one at a time. Some test must detect each change. By
# default, changes all files except the index, whose sizes are tuned. Arguments select files: `mutants.sh queue
# limiter`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
# Uses the same cases each time, and does not shrink them, because the smallest case is not needed.
export PROPTEST_RNG_SEED=1 PROPTEST_MAX_SHRINK_ITERS=0
# Limits the memory to 16 GiB, because some mutants allocate without end.
ulimit -v 16777216 2>/dev/null || true

files=() skipped=()
# The index's own tests, which take longest, test only the index.
case " $* " in *index*) ;; *) skipped=(--skip index::) ;; esac
[ $# -gt 0 ] || files=(--exclude 'crates/requeue-core/src/memory/index/**')
for file; do
    [ ! -d "crates/requeue-core/src/$file" ] || file+='/**'
    files+=(--file "crates/requeue-core/src/$file")
done

# Runs the named tests on the unchanged code, then on each undetected mutant. A mutant that makes the tests hang counts
# as detected. Returns 2 if some mutants are not detected.
mutants() {
    local timeout=$1 code=0
    shift
    cargo test --quiet --profile mutants --package requeue-core --package requeue-sim "$@" || return 4
    # The target directory is separate, because cargo would use the artifacts of a mutated copy for this tree.
    CARGO_TARGET_DIR=$target/mutated cargo mutants --package requeue-core --test-package requeue-core,requeue-sim --output "$target" \
        --iterate --baseline skip --timeout "$timeout" "${files[@]}" "${@/#/--cargo-arg=}" -- -- ${skipped[@]+"${skipped[@]}"} || code=$?
    [ "$code" = 3 ] || return "$code"
}

rm -rf "$target/mutants.out" "$target/mutants.out.old"
# First runs the test that detects most mutants within a second, with few cases. Then runs the core's own tests, and
# finally, for the remaining mutants, all tests with all cases.
own=(--lib)
for test in crates/requeue-core/tests/*.rs; do own+=(--test="$(basename "$test" .rs)"); done
code=0
PROPTEST_CASES=30 mutants 60 --test=lockstep || code=$?
[ "$code" = 2 ] || exit "$code"
code=0
PROPTEST_CASES=30 mutants 60 "${own[@]}" || code=$?
[ "$code" = 2 ] || exit "$code"
mutants 600
