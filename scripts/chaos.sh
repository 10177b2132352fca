#!/usr/bin/env bash
# Processes that add to one queue and work on it, for so many seconds on each store, while they and the store's servers
# are killed, and all else that may befall them does: with a table of it at the end.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo build --release --locked -p requeue-chaos
"$target/release/requeue-chaos" sqlite,postgres,pgbouncer,redis,redis-evicting,rediscluster "$@"
