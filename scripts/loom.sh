#!/usr/bin/env bash
# Tries every interleaving of the queue's threads that takes a thread off its turn at most `$1` times.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Its own directory, as every crate is built anew with the flag; and nothing that takes long to build.
export CARGO_TARGET_DIR=$target/loom RUSTFLAGS='--cfg requeue_loom'
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
REQUEUE_PREEMPTIONS=$1 cargo test -p requeue --no-default-features --release --test loom -- --nocapture
