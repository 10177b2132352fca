#!/usr/bin/env bash
# Runs every interleaving of the queue's threads with at most `$1` preemptions.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The target directory is separate, because the flag causes every crate to be built again. The profile shortens the
# builds.
export CARGO_TARGET_DIR=$target/loom RUSTFLAGS='--cfg requeue_loom'
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
REQUEUE_PREEMPTIONS=$1 cargo test -p requeue --no-default-features --release --test loom -- --nocapture
