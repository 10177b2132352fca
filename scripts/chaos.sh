#!/usr/bin/env bash
# Processes that add to one queue and work on it, for so many seconds, while they are killed and frozen: a file's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo build --release --locked -p requeue-chaos
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$target/release/requeue-chaos" "sqlite:$dir/queues.db" "$@"
