#!/usr/bin/env bash
# Builds all contestants, starts the servers, and runs the contestants in turns. The Makefile describes ONLY, QUICK,
# ROUNDS, FEW, KEEP and BLOAT.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
peers=$PWD/benches/peers-stores
args=()
without=()

cargo build --release --locked -p requeue-bench-stores
ours=$target/release/requeue-bench-stores

if [ -n "${BLOAT-}" ]; then
    kept=docs/bench-store-bloat.txt
    args=(bloat)
    if [ -n "${QUICK-}" ]; then args+=(--keys 100000); fi
else
    kept=docs/bench-store.txt
    args=(run)
    if ! command -v go >/dev/null; then
        without+=('river: there is no Go here')
    elif (cd "$peers/river" && go build -o "$target/peers-river" .); then
        args+=(--peer "river=$target/peers-river")
    else
        without+=('river: it could not be built')
    fi

    if ! command -v npm >/dev/null; then
        without+=('graphile-worker and BullMQ: there is no Node here')
    elif (cd "$peers/node" && npm install --no-save --no-audit --no-fund --loglevel=error >&2); then
        for name in graphile-worker graphile-worker-local bullmq; do
            args+=(--peer "$name=$peers/node/node_modules/node/bin/node:$peers/node/main.js:$name")
        done
    else
        without+=('graphile-worker and BullMQ: they could not be installed')
    fi

    if [ -n "${ONLY-}" ]; then args+=(--only "$ONLY"); fi
    if [ -n "${QUICK-}" ]; then args+=(--quick); fi
    if [ -n "${ROUNDS-}" ]; then args+=(--rounds "$ROUNDS"); fi
fi

# The comparison of few workers simulates a disk of known speed. Servers run as another user, who must be able to read
# the library.
steady=$(mktemp -d)
trap 'rm -r "$steady"' EXIT
chmod 755 "$steady"
few_workers() {
    printf '\n'
    LD_PRELOAD=$steady/disk.so SYNC_MICROS=$1 "$ours" "${args[@]}" --sync-micros "$1"
}

[ -n "${KEEP-}" ] || kept=/dev/null
{
    if [ -z "${FEW-}" ]; then
        "$ours" "${args[@]}"
    fi
    if [ -z "${BLOAT-}${FEW-}${ONLY-}" ]; then
        printf '\n'
        "$ours" groups ${QUICK:+--quick} ${ROUNDS:+--rounds "$ROUNDS"}
    fi
    if [ -n "${BLOAT-}" ]; then
        :
    elif ! command -v cc >/dev/null; then
        without+=('few workers: there is no C compiler here')
    else
        cc -shared -fPIC -O2 -o "$steady/disk.so" benches/stores/steady-disk.c
        few_workers 100
        few_workers 5000
    fi
    for one in "${without[@]}"; do
        printf 'Without %s.\n' "$one"
    done
} | tee "$target/bench-store.txt"
cp "$target/bench-store.txt" "$kept"
