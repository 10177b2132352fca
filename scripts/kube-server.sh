#!/usr/bin/env bash
# Prints the path of the program that the tests in e2e have their API server from. Builds it with Go first, which takes
# minutes, unless it was built on this machine before, from the same sources by the same Go. Exit code 2: there is no Go.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd e2e/server

fail() {
    printf '%s\n' "$*" >&2
    exit 2
}

# Where its installer puts it, which not every PATH has.
PATH=$PATH:/usr/local/go/bin
# No other version than the one that is here.
export GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0

command -v go >/dev/null ||
    fail 'There is no Go here to build the API server with. Get it from https://go.dev/dl (1.26 or later).'
go list -m >/dev/null || fail "This Go is too old to build the API server with: $(go version)"

# The commit is no part of it, nor is the path.
hash=$({
    go env GOVERSION GOOS GOARCH
    cat go.mod go.sum ./*.go ../../scripts/kube-server.sh
} | git hash-object --stdin)
dir=${REQUEUE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/requeue}/kube-server-${hash:0:16}
program=$dir/kubetest

if [ ! -x "$program" ]; then
    version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
    IFS=. read -r major minor _ <<<"${version#v}"
    stamp=k8s.io/component-base/version
    printf 'Building kube-apiserver %s, which takes minutes the first time.\n' "$version" >&2
    mkdir -p "$dir"
    # Several may build at once, and one may be ended in the middle.
    part=$program.$$
    trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$part"' EXIT
    trap 'exit 1' INT TERM
    # What debuggers want takes a quarter of the time.
    go build -mod=readonly -o "$part" -gcflags=all=-dwarf=false -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor" . >&2 &
    # Unlike a command, it is left at once for a signal.
    wait $!
    mv "$part" "$program"
fi
printf '%s\n' "$program"
