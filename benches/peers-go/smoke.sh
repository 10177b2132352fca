#!/usr/bin/env bash
# Sends each contestant a tiny round of each scenario with each kind of keys, and prints the answers. Fails if an answer
# is missing or has no figure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
program=$(mktemp)
trap 'rm -f "$program"' EXIT
gofmt -l . | (! grep .)
go vet ./...
go build -o "$program" .

# Most requests have all fields, because each scenario needs some of them.
requests() {
    local all='"n":100,"depth":10,"producers":2,"workers":3,"batch":8,"work_ns":1000,"seconds":0.05' scenario keys
    for scenario in cycle batch cycle_metrics cycle_waiting add_queued fill_drain threads tasks delayed_add \
        delayed_readd fire sparse_timers rate_limited_add forget hand_over memory memory_delayed memory_idle idle_cpu snapshot; do
        for keys in u64 name; do
            printf '{"scenario":"%s","keys":"%s",%s}\n' $scenario $keys "$all"
        done
    done
    printf '%s\n' '{"scenario":"cycle","n":3}' '{"scenario":"memory_idle","n":3,"metrics":true}'
}

for contestant in client-go controller-runtime; do
    answers=$(requests | "$program" $contestant)
    printf '%s\n' "$answers"
    # The first message, and an answer to each request.
    [ "$(wc -l <<<"$answers")" = $(($(requests | wc -l) + 1)) ]
    tail -n +2 <<<"$answers" | (! grep -Ev '"(cpu_ns|latency_ns|bytes|unsupported)":')
    # Each of these requests is invalid for a different reason.
    for request in '' '{"scenario":"cycle"}' '{"scenario":"none","n":1}' '{"scenario":"cycle","n":1,"key":"u64"}' \
        '{"scenario":"cycle","n":1,"keys":"u65"}' '{"scenario":"add_queued","n":1}' '{"scenario":"fire","n":1}' \
        '{"scenario":"batch","n":1,"batch":70000}' '{"scenario":"threads","n":1,"work_ns":-1}'; do
        printf '%s\n' "$request" | "$program" $contestant | tail -n 1 | grep -E '"(error|unsupported)":'
    done
done
