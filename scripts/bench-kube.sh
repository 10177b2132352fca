#!/usr/bin/env bash
# Measures controllers and shard groups on an API server. The Makefile describes ONLY, QUICK, ROUNDS and KEEP.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
REQUEUE_KUBE_SERVER=$(scripts/kube-server.sh)
export REQUEUE_KUBE_SERVER
kept=docs/bench-kube.txt
controllers=$target/bench-kube-controllers.txt
shards=$target/bench-kube-shards.txt

# Each of the two parts of the kept file begins with a line about the machine.
kept_part() { awk -v part="$1" '/^machine / { n++ } n == part' "$kept" | sed -e '$ { /^$/ d }'; }

case ${ONLY-} in
shards) kept_part 1 >"$controllers" ;;
*) cargo bench -p requeue-e2e --bench controllers | tee "$controllers" ;;
esac

case ${ONLY-} in
controllers) kept_part 2 >"$shards" ;;
*)
    rm -f "$shards"
    [ -n "${QUICK-}" ] || export REQUEUE_E2E=full
    # The tests run one at a time, so that they do not disturb each other's figures.
    REQUEUE_E2E_FIGURES=$shards cargo test -p requeue-e2e --test shards -- --test-threads=1 --nocapture costs:: schedule::
    ;;
esac

if [ -n "${KEEP-}" ]; then
    { cat "$controllers" && echo && cat "$shards"; } >"$kept"
    printf '\nWritten to %s\n' "$kept"
fi
