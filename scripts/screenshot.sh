#!/usr/bin/env bash
# Makes the picture of the dashboard in the README: it shows a run with a few incidents, MINUTES=15 after its start.
# Needs chromium.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo build --locked -p requeue-cli
program=$(cd "$target/debug" && pwd)/requeue
picture=$PWD/docs/page.png
dir=$(mktemp -d)
# The reports do not end by themselves.
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
mkfifo keys
# A poisoned kind of keys, a tenant whose server is down from time to time, and two runs that do not end.
cat >sync-customer <<'END'
#!/bin/sh
case $1 in
    */report) exec sleep 3600 ;;
    */stock/*[37]) echo "column ${1##*/}: unknown field \"size\"" >&2; exit 65 ;;
    acme/*) [ $(($(date +%M) % 3)) -ne 0 ] || { echo "no answer from 10.0.0.7:5432 within 5s" >&2; exit 1; } ;;
esac
exec sleep "0.$((${#1} % 7 + 1))"
END
chmod +x sync-customer
PATH=$dir:$PATH "$program" run --serve 127.0.0.1:8127 --serve-target 30s -j 6 --retries 3 --max-delay 10s -a keys -- \
    sync-customer >/dev/null 2>&1 &
exec 3>keys
for tenant in hooli wayne; do echo "$tenant/report" >&3; done
end=$((SECONDS + ${MINUTES:-15} * 60))
tenants=(acme globex hooli wonka wayne) kinds=(orders invoices contacts stock)
while ((SECONDS < end)); do
    for _ in 1 2 3 4 5 6; do
        printf '%s/%s/%d\n' "${tenants[RANDOM % 5]}" "${kinds[RANDOM % 4]}" $((RANDOM % 400)) >&3
    done
    sleep 0.5
done
chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,665 \
    --screenshot="$picture" http://127.0.0.1:8127/ 2>/dev/null
