#!/usr/bin/env bash
# Records anew what client-go does, and says where that differs from what is committed; with RECORD=1, commits it to the file.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v go >/dev/null; then
    printf '%s\n' '*** NOTHING WAS CHECKED: there is no Go here, and client-go is recorded by a Go program.' \
        '*** Get it from https://go.dev/dl (1.26 or later). What is recorded already is replayed by `make test`.' >&2
    exit 1
fi

traces=$PWD/conformance/traces/client-go.txt.gz
cd conformance/client-go
go vet ./...
if [ -n "${RECORD-}" ]; then
    go test -count=1 -v -run '^TestRecord$' . -args -out "$traces"
else
    go test -count=1 -v -run '^TestRecord$' . -args -compare "$traces"
fi
