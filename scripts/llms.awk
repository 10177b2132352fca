# Lists pages for language models, as https://llmstxt.org describes: a link to each page, with its title and its first
# sentence. `awk -v files=FILE -f llms.awk`, where FILE lists the sections and pages as `## SECTION` or PATH.

# Returns a line without the syntax of links, code and emphasis.
function plain(text) {
    while (match(text, /\]\([^)]*\)/)) text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    gsub(/[][`*]/, "", text)
    return text
}

# Prints the entry of a page. A title may be underlined.
function describe(page,   line, title, text, end, in_code) {
    while ((getline line <page) > 0) {
        if (title == "") { sub(/^# /, "", line); title = line; continue }
        if (line ~ /^```/) in_code = !in_code
        if (line == "" && text != "") break
        if (in_code || line == "" || line ~ /^(=+$|[|#>!])/) { if (text != "") break; continue }
        sub(/^(- | +)/, "", line)
        text = text (text == "" ? "" : " ") line
    }
    close(page)
    text = plain(text)
    end = match(text, /[.?!]( |$)/)
    if (title == "" || !end) {
        print page ": a page has a title and a first sentence" >"/dev/stderr"
        failed = 1
        exit
    }
    printf "- [%s](%s): %s\n", plain(title), page, substr(text, 1, end)
}

BEGIN {
    while ((getline entry <files) > 0) {
        if (entry ~ /^##/) printf "\n%s\n\n", entry
        else describe(entry)
        if (failed) exit 1
    }
}
