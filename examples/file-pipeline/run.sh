#!/bin/sh
# Renders the Markdown files in SOURCE as a website in OUTPUT, and follows their changes until Ctrl-C:
#     run.sh SOURCE OUTPUT
set -eu

refuse() {
    printf 'run.sh: %s\n' "$1" >&2
    exit 2
}
[ $# = 2 ] || refuse 'two directories are needed: run.sh SOURCE OUTPUT'
[ -d "$1" ] || refuse "$1: no such directory; create it, and put Markdown files into it"
command -v requeue >/dev/null || refuse 'requeue is not in PATH; run: cargo install --path crates/requeue-cli'

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
OUTPUT=$(cd "$2" && pwd)
# All commands below, also those in render.sh, use this store. A restart continues with its keys.
REQUEUE_STORE=sqlite:$OUTPUT.db
export OUTPUT REQUEUE_STORE
# Step 4 deletes pages that have no source, so all pages in OUTPUT must come from this script.
[ -e "$OUTPUT.db" ] || [ -z "$(find "$OUTPUT" -name '*.html' | head -n 1)" ] ||
    refuse "$2: has HTML files, which the pipeline would delete, and no $OUTPUT.db; choose another OUTPUT"
cd "$1"

# `kill` and not Ctrl-C ends the parts, because a shell lets its background processes ignore Ctrl-C.
parts=
trap 'kill $parts 2>/dev/null || true; wait' EXIT
trap 'exit 0' INT TERM

# 1. Workers render pages. Bad input (exit code 65) fails again, so it is parked until the file changes.
requeue work --queue pages --create --retries 5 --fatal 65 -- "$here/render.sh" {} &
parts="$parts $!"
# 2. One worker writes the index, once for all pages that have changed meanwhile.
requeue work --queue index --create --retries 5 -- "$here/index.sh" {} &
parts="$parts $!"
# 3. Each file that exists, changes or disappears is added as a key. An add that fails is repeated.
requeue files . --extension md --initial --deleted --all-in-one --retries inf -- \
    requeue add --queue pages --summary none &
watch=$!
parts="$parts $watch"
# 4. Files that were deleted while nothing ran have left a page behind.
(cd "$OUTPUT" && find . -name '*.html' ! -path ./index.html) | sed 's/html$/md/' | requeue add --queue pages --summary none

printf 'The website is in %s. Failed pages:\n    requeue parked --store %s --queue pages\n' "$OUTPUT" "$REQUEUE_STORE"
wait "$watch"
