#!/usr/bin/env bash
# Builds all contestants, and runs them in turns. The Makefile describes ONLY, QUICK, ROUNDS, GROWTH and KEEP.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
out=$target/bench
args=(--out "$out")
without=()

# The builds are separate, so that kube's dependencies do not enable features of the library's dependencies.
cargo build --release --locked -p requeue-bench
cargo build --release --locked -p requeue-bench-kube
args+=(--peer "kube-runtime=$target/release/requeue-bench-kube")

if ! command -v go >/dev/null; then
    without+=('client-go and controller-runtime: there is no Go here')
elif (cd benches/peers-go && go build -o "$target/peers-go" .); then
    args+=(--peer "client-go=$target/peers-go" --peer "controller-runtime=$target/peers-go")
else
    without+=('client-go and controller-runtime: the Go program could not be built')
fi

if [ -n "${ONLY-}" ]; then args+=(--only "$ONLY"); fi
if [ -n "${QUICK-}" ]; then args+=(--quick); fi
if [ -n "${ROUNDS-}" ]; then args+=(--rounds "$ROUNDS"); fi
if [ -n "${GROWTH-}" ]; then args+=(--growth); fi
# Removes the results of earlier runs.
rm -rf "$out"
"$target/release/requeue-bench" run "${args[@]}"

if [ -n "${KEEP-}" ]; then
    cp "$out"/* docs/
    out=docs
fi
printf '\nWritten to %s\n' "$out"
for one in "${without[@]}"; do
    printf 'Without %s.\n' "$one"
done
