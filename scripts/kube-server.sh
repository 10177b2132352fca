#!/usr/bin/env bash
# Prints the path of the API server for the tests in e2e. The first call builds it with Go, which takes minutes. Later
# calls reuse that build if the sources and the version of Go are the same. Exit code 2: Go is missing or too old.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd e2e/server

fail() {
    printf '%s\n' "$*" >&2
    exit 2
}

# The directory of the Go installer may be missing in PATH.
PATH=$PATH:/usr/local/go/bin
# Uses the installed version of Go, and downloads no other version.
export GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0

command -v go >/dev/null ||
    fail 'There is no Go here to build the API server with. Get it from https://go.dev/dl (1.26 or later).'
go list -m >/dev/null || fail "This Go is too old to build the API server with: $(go version)"

# The hash does not depend on the commit or on the path.
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
    # Several builds may run simultaneously, and a build may be interrupted.
    part=$program.$$
    trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$part"' EXIT
    trap 'exit 1' INT TERM
    # Debugging information would take a quarter of the build time.
    go build -mod=readonly -o "$part" -gcflags=all=-dwarf=false -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=$major -X $stamp.gitMinor=$minor" . >&2 &
    # A signal interrupts `wait` immediately, unlike a command.
    wait $!
    mv "$part" "$program"
fi
printf '%s\n' "$program"
