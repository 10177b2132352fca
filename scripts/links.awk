# Reports links of HTML pages to missing files of the site, or to missing elements of a page: `awk -v files=FILE -f
# links.awk PAGE...`, where FILE lists the files of the site.

# The path of a link from a page, or an empty text for an external link.
function resolved(page, link,   parts, n, i, kept, path) {
    sub(/[^\/]*$/, "", page)
    n = split(page link, parts, "/")
    for (i = 1; i <= n; i++) {
        if (parts[i] == "..") kept--
        else if (parts[i] != "." && parts[i] != "") parts[++kept] = parts[i]
        if (kept < 0) return ""
    }
    for (i = 1; i <= kept; i++) path = path (i > 1 ? "/" : "") parts[i]
    return path
}

BEGIN { while ((getline line <files) > 0) is_file[line] }

{
    text = $0
    while (match(text, / (id|href|src)="[^"]*"/)) {
        attribute = substr(text, RSTART + 1, RLENGTH - 2)
        text = substr(text, RSTART + RLENGTH)
        value = substr(attribute, index(attribute, "\"") + 1)
        if (attribute ~ /^id=/) is_anchor[FILENAME "#" value]
        else if (value !~ /^[a-z]+:/) links[FILENAME SUBSEP value]
    }
}

END {
    for (link in links) {
        split(link, of, SUBSEP)
        at = index(of[2] "#", "#")
        path = at > 1 ? resolved(of[1], substr(of[2], 1, at - 1)) : of[1]
        anchor = substr(of[2], at)
        if (path "/index.html" in is_file) path = path "/index.html"
        if (path in is_file && (anchor == "" || path anchor in is_anchor)) continue
        print "broken link in " of[1] ": " of[2] >"/dev/stderr"
        broken = 1
    }
    exit broken
}
