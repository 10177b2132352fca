#!/usr/bin/env bash
# Compares the public API with that of the latest tag `v*` before this commit, according to semantic versioning.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

last=$(git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null || true)
if [ -z "$last" ]; then
    printf 'There is no earlier release to compare with: no tag v* is reachable from HEAD^.\n'
    exit
fi
scripts/setup.sh semver
selected=()
for crate in $(scripts/release-info.sh crates); do
    # The interface of requeue-cli is the command line.
    [ "$crate" = requeue-cli ] || selected+=(-p "$crate")
done
cargo semver-checks "${selected[@]}" --all-features --baseline-rev "$last"
