#!/usr/bin/env bash
# Builds the documentation site in target/docs/book, and checks its links. The site also has the pages in Markdown:
# `llms.txt` lists them for language models, and `llms-full.txt` contains them all. With the argument `serve`, it then
# serves the site on the port PORT, by default 3000, until Ctrl-C.
#
# mdBook reads one directory. The pages are therefore copied to target/docs/src, under their paths in the repository,
# with the files that they link to. A link to a directory that has no page becomes plain text.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=$target/docs
rm -rf "$out"
mkdir -p "$out/src"
cp book.toml "$out"

# The targets of the links in a file, without their anchors.
links() {
    grep -oE '\]\([^)#: ]+[)#]' "$1" | sed 's|^..||; s|.$||' | sort -u || true
}

# Links in SUMMARY.md are relative to docs, and mdBook needs them relative to the root.
sed -E 's|\]\(|](docs/|; s|\]\(docs/\.\./|](|' docs/SUMMARY.md >"$out/summary"
links "$out/summary" >"$out/pages"
find docs -name '*.md' ! -name SUMMARY.md | while read -r page; do
    grep -qxF "$page" "$out/pages" || {
        printf 'docs/SUMMARY.md does not list %s\n' "$page" >&2
        exit 1
    }
done
# mdBook names the page of a directory index.html, but leaves links to README.md unchanged.
readme='s|\]\(([^): ]*)README\.md|](\1index.md|g'
sed -E "$readme" "$out/summary" >"$out/src/SUMMARY.md"
while read -r page; do
    mkdir -p "$out/src/$(dirname "$page")"
    sed -E "$readme" "$page" >"$out/src/${page/%README.md/index.md}"
done <"$out/pages"

while read -r page; do
    from=$(dirname "$page")
    for link in $(links "$page"); do
        to=$out/src/$from/$link
        if [ -d "$from/$link" ]; then
            [ -e "$to/index.md" ] || sed -i.bak "s|\[\([^]]*\)\]($link)|\1|g" "$out/src/${page/%README.md/index.md}"
        elif [ "${link##*.}" != md ]; then
            mkdir -p "$(dirname "$to")"
            cp "$from/$link" "$to"
        fi
    done
done <"$out/pages"
find "$out/src" -name '*.bak' -delete

mdbook build "$out"
(
    cd "$out/book"
    find . -type f | sed 's|^\./||' >../files
    grep '\.html$' ../files | grep -v '^404' | tr '\n' '\0' | xargs -0 awk -v files=../files -f "$OLDPWD/scripts/links.awk"
)

(
    cd "$out/src"
    sed -nE 's|README\.md|index.md|; s|^# |## |p; s|^ *(- )?\[.*\]\((.*)\)$|\2|p' ../summary | grep -v '^## Summary$' >../llms
    {
        printf '# requeue\n\n> %s\n\n' "$(sed -n 's/^description = "\(.*\)"$/\1/p' ../book.toml)"
        awk -v files=../llms -f "$OLDPWD/scripts/llms.awk"
    } >../book/llms.txt
    while read -r page; do
        grep -qF "]($page): " ../book/llms.txt || {
            printf 'llms.txt does not list %s\n' "$page" >&2
            exit 1
        }
        cp "$page" "../book/$page"
        printf '%s\n\n' "$(cat "$page")" >>../book/llms-full.txt
    done < <(sed 's|README\.md|index.md|' ../pages)
)

if [ "${1-}" = serve ]; then
    # `mdbook serve` would build again, and remove llms.txt and the pages in Markdown.
    exec python3 -m http.server --bind 127.0.0.1 --directory "$out/book" "${PORT-3000}"
fi
