#!/usr/bin/env bash
# Publishes the crates whose version is not in the index of crates.io yet: scripts/publish.sh
#
# A run that failed part of the way can therefore be repeated: cargo refuses a version that exists. Nothing is compiled,
# because the caller has a token and build scripts of dependencies must not see it. `make package` builds the packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=$(scripts/release-info.sh version)

# Succeeds if the index has this version of a crate. The names of all crates have four or more characters.
is_published() {
    local crate=$1 url answer status
    url=https://index.crates.io/${crate:0:2}/${crate:2:2}/$crate
    answer=$(curl --silent --show-error --retry 3 --header 'Cache-Control: no-cache' --write-out '\n%{http_code}' "$url") || {
        printf '%s: the index of crates.io cannot be read; try again later\n' "$url" >&2
        exit 1
    }
    status=${answer##*$'\n'}
    case $status in
    200) grep -qF "\"vers\":\"$version\"" <<<"$answer" ;;
    404 | 410 | 451) return 1 ;;
    *)
        printf '%s: the index of crates.io answers with status %s; try again later\n' "$url" "$status" >&2
        exit 1
        ;;
    esac
}

selected=()
for crate in $(scripts/release-info.sh crates); do
    if is_published "$crate"; then
        printf '%s %s is published already\n' "$crate" "$version"
    else
        selected+=(-p "$crate")
    fi
done
[ "${#selected[@]}" = 0 ] || cargo publish --locked --no-verify "${selected[@]}"
