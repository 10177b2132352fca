#!/usr/bin/env bash
# Hashes every file of the repository with `requeue run`, adds some files several times, and checks that each file has a
# hash. The program prints the summary on standard error.
#
# With SERVE=1 (any port) or SERVE=[ADDR:]PORT it serves a dashboard and runs until Ctrl-C. It hashes changed files
# again, and eight random files each second.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# The main job needs neither stores nor Kubernetes, which take most of the time of a first build.
cargo build --profile quick --no-default-features -p requeue-cli

# Lists the files that git tracks, or all files outside a checkout. A key is a line, so names with line breaks are
# omitted.
list() {
    if [ -n "$(git ls-files 2>/dev/null | head -1)" ]; then
        git ls-files -z
    else
        find . \( -name .git -o -path ./target \) -prune -o -type f -print0
    fi | while IFS= read -r -d '' file; do
        case $file in
        *$'\n'*) printf 'left out, its name has more than one line: %q\n' "$file" >&2 ;;
        *) [ ! -f "$file" ] || printf '%s\n' "$file" ;;
        esac
    done
}

hash=(sha256sum --)
command -v sha256sum >/dev/null || hash=(shasum -a 256 --)

out=$target/run
mkdir -p "$out"
list >"$out/files"
{
    cat "$out/files"
    head -40 "$out/files"
    grep '\.rs$' "$out/files" || true
} >"$out/keys"

# Prints the keys, and then the files that change.
watch() {
    cat "$out/keys"
    local seen=$out/seen new=$out/new
    touch "$seen"
    while :; do
        shuf -n 8 "$out/files" 2>/dev/null || head -8 "$out/files"
        sleep 1
        touch "$new"
        while IFS= read -r file; do
            [ ! "$file" -nt "$seen" ] || printf '%s\n' "$file"
        done <"$out/files"
        mv "$new" "$seen"
    done
}

if [ -n "${SERVE-}" ]; then
    case $SERVE in 1) at=:0 ;; *) at=$SERVE ;; esac
    # `watch` stops when its output is closed.
    "$target/quick/requeue" run --serve "$at" -j 4 -- "${hash[@]}" {} < <(watch) >"$out/hashes" &
    running=$!
    trap 'kill -TERM "$running" 2>/dev/null' INT TERM HUP
    while kill -0 "$running" 2>/dev/null; do wait "$running" || status=$?; done
    # These are the codes of a run that a signal has stopped, as intended.
    case ${status-0} in 129 | 130 | 143) exit 0 ;; *) exit "${status-0}" ;; esac
fi

printf '%d keys for %d files\n' "$(wc -l <"$out/keys")" "$(wc -l <"$out/files")"
"$target/quick/requeue" run -j 4 -- "${hash[@]}" {} <"$out/keys" >"$out/hashes"

head -5 "$out/hashes"
hashed=$(sort -u "$out/hashes" | wc -l)
printf '... %d hashes of %d files, in %s\n' "$(wc -l <"$out/hashes")" "$hashed" "$out/hashes"
if [ "$hashed" -ne "$(wc -l <"$out/files")" ]; then
    printf 'Some files have no hash.\n' >&2
    exit 1
fi
