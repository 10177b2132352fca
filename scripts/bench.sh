#!/usr/bin/env bash
# Builds all contestants, and has them take turns. ONLY, QUICK, ROUNDS, GROWTH and KEEP are as in the Makefile.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
out=$target/bench
args=(--out "$out")
without=()

# One after the other, so that kube's dependencies add no features to those of the library.
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
# Nothing of an earlier run is to be kept with this one.
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
