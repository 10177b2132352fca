#!/usr/bin/env bash
# Processes that add to one queue and work on it, for so many seconds, while they are killed and frozen: on a file, and on
# a server that is killed, too.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo build --release --locked -p requeue-chaos
for store in sqlite postgres; do
    "$target/release/requeue-chaos" "$store" "$@"
done
