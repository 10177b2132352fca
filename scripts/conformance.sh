#!/usr/bin/env bash
# Records client-go's behaviour again, and reports differences from the committed recording. RECORD=1 replaces the
# recording.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if ! command -v go >/dev/null; then
    printf '%s\n' '*** NOTHING WAS CHECKED: Go is missing, and a Go program records client-go.' \
        '*** Get it from https://go.dev/dl (1.26 or later). `make test` replays the committed recording.' >&2
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
