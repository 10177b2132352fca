#!/usr/bin/env bash
# Runs the blocks of a page that are marked ```sh run, in order and in one directory, with the built program as
# `requeue`: scripts/page.sh PROGRAM PAGE
set -euo pipefail
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
page=$2
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/work"
ln -s "$program" "$dir/bin/requeue"

awk -v dir="$dir" '
    /^```sh run$/ { n++; inside = 1; next }
    /^```/ { inside = 0 }
    inside { print > (dir "/" n ".sh") }
' "$page"

printf -- '-- %s\n' "$page"
cd "$dir/work"
for ((n = 1; ; n++)); do
    [ -e "$dir/$n.sh" ] || break
    sed 's/^/$ /' "$dir/$n.sh"
    PATH=$dir/bin:$PATH within 600 bash -euo pipefail "$dir/$n.sh" </dev/null
done
