#!/bin/sh
# Makes one page match its source: render.sh PAGE.md
#
# A run looks at the file, and not at the event that caused it. One run therefore serves many changes, and a repeated run
# does no harm.
set -eu

refuse() {
    printf '%s: %s\n' "$page" "$1" >&2
    exit 65
}
page=$1
# A key can come from anyone who can write to the store. It must not name a file outside OUTPUT.
case $page in
/* | ../* | */../*) refuse 'the path leaves the directory; use a path inside it, without ..' ;;
*.md) ;;
*) refuse 'the name of a page ends in .md' ;;
esac
target=$OUTPUT/${page%.md}.html
new=$target.new
trap 'rm -f "$new"' EXIT

if [ -e "$page" ]; then
    [ "$page" != ./index.md ] || refuse 'the page would replace the index; choose another name'
    sed -n 1p "$page" | grep -q '^# .' || refuse 'the first line is not a title, as in "# Title"'
    mkdir -p "$(dirname "$target")"
    awk '
        function escaped(text) {
            gsub(/&/, "\\&amp;", text)
            gsub(/</, "\\&lt;", text)
            return text
        }
        # Ends the present block, and begins a block with this tag.
        function block(tag) {
            if (open == tag) return
            if (open != "") print "</" open ">"
            if (tag != "") print "<" tag ">"
            open = tag
        }
        NR == 1 {
            title = escaped(substr($0, 3))
            print "<!doctype html><meta charset=\"utf-8\">"
            print "<title>" title "</title>"
            print "<h1>" title "</h1>"
            next
        }
        /^$/ { block(""); next }
        /^## / { block(""); print "<h2>" escaped(substr($0, 4)) "</h2>"; next }
        /^- / { block("ul"); print "<li>" escaped(substr($0, 3)); next }
        { block(open == "ul" ? "ul" : "p"); print escaped($0) }
        END { block("") }
    ' "$page" >"$new"
    # The rename is one step, so no reader sees a part of a page.
    mv "$new" "$target"
    echo "rendered $page"
else
    rm -f "$target"
    echo "removed $page"
fi

# If the process is killed before this line, its lease expires, and the whole run is repeated.
requeue add --queue index --summary none all
