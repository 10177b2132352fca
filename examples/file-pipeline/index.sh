#!/bin/sh
# Writes the index of all pages. The argument is the only key of the queue.
set -eu
cd "$OUTPUT"
new=index.html.new
trap 'rm -f "$new"' EXIT

{
    printf '<!doctype html><meta charset="utf-8">\n<title>Index</title>\n<ul>\n'
    find . -name '*.html' ! -path ./index.html | LC_ALL=C sort | while IFS= read -r page; do
        # A page that is deleted at this moment makes the run fail. Its deletion also adds the key again.
        title=$(sed -n 's|^<title>\(.*\)</title>$|\1|p' "$page")
        link=$(printf %s "$page" | sed 's/%/%25/g; s/#/%23/g; s/?/%3F/g; s/&/\&amp;/g; s/"/\&quot;/g')
        printf '<li><a href="%s">%s</a>\n' "$link" "$title"
    done
    printf '</ul>\n'
} >"$new"
mv "$new" index.html
echo "index: $(grep -c '^<li>' index.html) pages"
