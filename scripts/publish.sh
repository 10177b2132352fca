#!/usr/bin/env bash
# Publishes the crates whose version is not in the index of crates.io yet: scripts/publish.sh
#
# Therefore, a run that failed midway can be repeated, although cargo refuses an existing version. Nothing is compiled,
# because the caller has a token, which build scripts of dependencies must not read. `make package` builds the packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=$(scripts/release-info.sh version)

# Succeeds if the index contains this version of a crate. The path of a crate in the index assumes a name of four or
# more characters.
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
