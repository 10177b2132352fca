#!/usr/bin/env bash
# Checks that no job with a token compiles, because it would run build scripts of dependencies, which could read the
# token. scripts/workflow-tokens.sh FILE... checks workflows, and scripts/workflow-tokens.sh --test tests the check.
#
# A job has a token if it may write, or reads a secret. The permissions of the workflow are the default for its jobs. A
# workflow without permissions has those of the repository, which may include writing. A job with a token may run only
# the scripts below, which compile nothing.
set -euo pipefail

check() {
    awk '
        function end_of_job(    i) {
            if (job != "" && (secret || (stated ? writes : default_writes))) {
                for (i = 1; i <= count; i++) { print file ": " job " " commands[i]; found = 1 }
            }
            job = ""; stated = writes = secret = count = 0
        }
        FNR == 1 { end_of_job(); file = FILENAME; in_jobs = in_default = secrets_of_all = 0; default_writes = 1 }
        { sub(/(^|[ \t])#.*/, "") }
        /^[a-z]+:/ { end_of_job(); in_jobs = /^jobs:/; in_default = 0 }
        /^permissions:/ { in_default = 1; default_writes = /write/ }
        in_default && /: *write/ { default_writes = 1 }
        !in_jobs && /secrets\./ { secrets_of_all = 1 }
        in_jobs && /^  [A-Za-z0-9_-]+:/ { end_of_job(); job = $1; secret = secrets_of_all }
        !in_jobs { next }
        /^    [a-z-]+:/ { in_permissions = 0 }
        /^    permissions:/ { in_permissions = stated = 1; if (/write/) writes = 1 }
        in_permissions && /: *write/ { writes = 1 }
        /secrets\.|secrets: *inherit/ { secret = 1 }
        {
            command = $0
            gsub(/scripts\/(publish\.sh( npm)?|release-files\.sh|release-info\.sh)/, "", command)
            if (command ~ /(^|[^A-Za-z0-9_.-])(make|cargo|rustc|go|npm)([^A-Za-z0-9_.-]|$)/ ||
                command ~ /\.sh([^A-Za-z0-9_]|$)/ || command ~ /uses: *["\047]?\.\//) commands[++count] = $0
        }
        END { end_of_job(); exit found }
    ' "$@"
}

# Reads workflows from standard input, each after a line `== ok` or `== refused`.
test_check() {
    local dir expected=() accepted=() at found
    dir=$(mktemp -d)
    awk -v dir="$dir" '/^== / { n++; next } { print >(dir "/" n) }' "$1"
    mapfile -t expected < <(sed -n 's/^== //p' "$1")
    for at in "${!expected[@]}"; do
        found=ok
        check "$dir/$((at + 1))" >/dev/null || found=refused
        [ "$found" = refused ] || accepted+=("$dir/$((at + 1))")
        [ "$found" = "${expected[at]}" ] || {
            printf 'this workflow is %s, and must be %s:\n' "$found" "${expected[at]}" >&2
            cat "$dir/$((at + 1))" >&2
            exit 1
        }
    done
    # Each file begins with the default permissions.
    check "${accepted[@]}" "${accepted[@]}"
    rm -r "$dir"
}

if [ "${1-}" = --test ]; then
    cases=$(mktemp)
    trap 'rm -f "$cases"' EXIT
    cat >"$cases" <<'END'
== ok
permissions:
  contents: read
jobs:
  a:
    steps:
      - run: make dist
  b:
    permissions:
      contents: write
    steps:
      # A job without cargo.
      - run: scripts/release-files.sh release dist/*
      - run: scripts/publish.sh crates
      - run: scripts/publish.sh npm release
== refused
permissions:
  contents: write
jobs:
  a:
    steps:
      - run: scripts/publish.sh npm release && npm install
== refused
permissions:
  contents: read
jobs:
  a:
    permissions:
      id-token: write
    steps:
      - run: make
  b:
    steps:
      - run: make dist
== refused
permissions:
  contents: read
jobs:
  a:
    permissions: write-all
    steps:
      - run: cargo build
== refused
permissions:
  contents: write
jobs:
  a:
    steps:
      - run: make dist
== ok
permissions:
  contents: write
jobs:
  a:
    permissions:
      contents: read
    steps:
      - run: make dist
== refused
permissions: write-all
jobs:
  a:
    steps:
      - run: |
          x=1; cargo test
== refused
jobs:
  a:
    steps:
      - run: cargo test
== refused
permissions: {}
jobs:
  a:
    steps:
      - run: scripts/package.sh
        env:
          TOKEN: ${{ secrets.TOKEN }}
== refused
permissions: {}
jobs:
  a:
    steps:
      - run: cargo test
    permissions:
      contents: write
== refused
permissions: {}
env:
  TOKEN: ${{ secrets.TOKEN }}
jobs:
  a:
    steps:
      - run: bash ./scripts/dist.sh
== refused
permissions: { contents: write }
jobs:
  a:
    steps:
      - uses: ./.github/actions/build
END
    test_check "$cases"
    exit
fi
check "$@" || {
    printf 'these jobs have a token, and run commands that may compile; move the commands to jobs without one\n' >&2
    exit 1
}
