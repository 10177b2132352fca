#!/usr/bin/env bash
# Tests each store for `$1` seconds, optionally from the seed `$2`: processes add keys to a queue and work on them, while
# processes, servers and connections fail. Prints a table of the events at the end.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo build --release --locked -p requeue-chaos
"$target/release/requeue-chaos" sqlite,postgres,pgbouncer,redis,redis-evicting,rediscluster "$@"
