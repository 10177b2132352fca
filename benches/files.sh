#!/usr/bin/env bash
# Checks `requeue files` at scale, and measures it: a `git checkout` that changes FILES files of a generated repository, the
# same with lost events, and a build that writes into the tree while files change.
#
# The command of each file records the content that it sees. At the end, the last record of each changed file must be its
# final content, and no ignored file may have a record. The script prints the time from the end of the checkout to the
# last run, the counts of runs, and the largest memory of the program. With REQUEUE=FILE, that program is measured.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
files=${FILES:-50000} changes=${CHANGES:-2000}

if [ -z "${REQUEUE-}" ]; then
    cargo build --release -p requeue-cli
    REQUEUE=$target/release/requeue
fi
out=$target/files
rm -rf "$out"
mkdir -p "$out/tree"
cd "$out/tree"

watch() { # NAME ARG...
    local name=$1
    shift
    : >"$out/seen"
    : >"$out/$name.log"
    "$REQUEUE" files . --summary json --progress never "$@" >>"$out/seen" 2>"$out/$name.log" &
    program=$!
    until grep -q watching "$out/$name.log"; do sleep 0.1; done
    echo "$name: $(grep watching "$out/$name.log")"
}

finish() { # NAME
    echo "$1: largest memory $(awk '/VmHWM/ { print $2, $3 }' "/proc/$program/status")," \
        "lost events reported $(grep -c 'events were lost' "$out/$1.log" || true) times"
    kill -TERM "$program"
    wait "$program" || true
    echo "$1: $(tail -n1 "$out/$1.log")"
}

# Waits until a file no longer grows for 3 s.
until_quiet() { # FILE
    local before=-1 now=0
    until [ "$before" = "$now" ]; do
        before=$now
        sleep 3
        now=$(stat -c %s "$1" 2>/dev/null || echo 0)
    done
}

echo "Generating $files files"
git init -q .
git config user.email a@example.com
git config user.name a
git config gc.auto 0
generate() { # CONTENT
    awk -v files="$files" -v content="$1" 'BEGIN {
        for (n = 0; n < files; n++) {
            path = sprintf("d%d/e%d/f%d", n % 50, n % 1000, n)
            print path " " content " " n > path
            close(path)
        }
    }'
}
for ((n = 0; n < 1000; n++)); do mkdir -p "d$((n % 50))/e$n"; done
printf '/build/\n*.o\n' >.gitignore
generate one
git add -A
git commit -qm one
git checkout -qb other
generate two
# Files that only one of the branches has.
for ((n = 0; n < 500; n++)); do
    mkdir -p "only/other$((n % 20))"
    echo "only other" >"only/other$((n % 20))/$n"
done
git add -A
git commit -qm two
git checkout -q -

# Lists the changed files whose last record is not their final content. `cksum` prints a line per file: its sum, its size
# and its path. No path has a space.
find_missing() {
    # The last line of each path.
    awk '{ sub(/^\.\//, "", $3); last[$3] = $1 " " $2 } END { for (path in last) print path, last[path] }' \
        "$out/seen" | sort >"$out/last"
    git ls-files -z | xargs -0 cksum | awk '{ print $3, $1, $2 }' | grep -v '^\.gitignore ' | sort >"$out/final"
    # Files that have not changed need no record.
    join -v1 "$out/final" "$out/before" -t '|' | sort >"$out/changed"
    comm -13 "$out/last" "$out/changed" >"$out/missing"
}

# Waits for the records of all files, for 5 minutes at most, and then for surplus ones.
settle() {
    local last=$((SECONDS + 300))
    while find_missing && [ -s "$out/missing" ] && [ "$SECONDS" -lt "$last" ]; do
        sleep 2
    done
    until_quiet "$out/seen"
}

check() { # NAME
    find_missing
    if [ -s "$out/missing" ]; then
        echo "$1: $(wc -l <"$out/missing") files have not run with their final content:"
        head -5 "$out/missing"
        exit 1
    fi
    if grep -E ' \./(build/|.*\.o$|\.)' "$out/seen" | head -3 | grep .; then
        echo "$1: ignored files have run"
        exit 1
    fi
    echo "$1: $(wc -l <"$out/changed") files changed, and each has run with its final content"
}

before() {
    git ls-files -z | xargs -0 cksum | awk '{ print $3, $1, $2 }' | sort >"$out/before"
}

checkout() { # NAME BRANCH
    local start=$EPOCHREALTIME middle
    git checkout -q "$2"
    middle=$EPOCHREALTIME
    settle
    awk -v name="$1" -v a="$start" -v b="$middle" -v c="$(stat -c %.Y "$out/seen")" \
        'BEGIN { printf "%s: git took %.1f s, and the last run was %.1f s later\n", name, b - a, c - b }'
    finish "$1"
    check "$1"
}

before
watch all-in-one --all-in-one --debounce 200ms --output inherit -- xargs cksum
checkout all-in-one other

# While the program is stopped, more events come than the kernel keeps.
before
watch lost --all-in-one --debounce 200ms --output inherit -- xargs cksum
kill -STOP "$program"
git checkout -q -
kill -CONT "$program"
settle
finish lost
check lost

before
watch each --output inherit -- cksum {}
checkout each other

# A build writes objects and other ignored files all the time, while tracked files change several times.
before
watch build --output inherit -- cksum {}
build() {
    local n=0
    mkdir -p build
    while true; do
        n=$((n + 1))
        echo "$n" >"build/$((n % 500))"
        echo "$n" >"d$((n % 50))/object$((n % 100)).o"
        mkdir -p "build/dir$n" && rmdir "build/dir$n"
    done
}
build &
builder=$!
for ((n = 0; n < changes; n++)); do
    echo "change $n" >"d$((n % 50))/e$((n % 50))/f$((n % 50 + n % 7 * 1000))"
done
settle
kill "$builder"
wait "$builder" 2>/dev/null || true
finish build
check build
