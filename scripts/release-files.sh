#!/usr/bin/env bash
# Collects the files of a release: scripts/release-files.sh OUT DIR...
#
# Each DIR is `target/dist` of the build for one target. The files are copied to OUT, with one list of checksums. The
# contexts of containers, which are directories, are omitted, because the archives contain the same program.
set -euo pipefail

out=$1
shift
mkdir "$out"
for dir in "$@"; do
    (cd "$dir" && sha256sum --quiet --check SHA256SUMS)
    for file in "$dir"/*; do
        name=$(basename "$file")
        if [ ! -f "$file" ] || [ "$name" = SHA256SUMS ]; then continue; fi
        [[ $name != *[!A-Za-z0-9._-]* ]] || {
            printf '%s: GitHub would change this name, so that SHA256SUMS names no file; use A-Z, a-z, 0-9, ".", "_" and "-"\n' "$name" >&2
            exit 1
        }
        [ ! -e "$out/$name" ] || {
            printf '%s: two builds have this file; pass one directory for each target\n' "$name" >&2
            exit 1
        }
        cp -p "$file" "$out"
    done
done
sums=$(cd "$out" && sha256sum -- *)
printf '%s\n' "$sums" >"$out/SHA256SUMS"
