# shellcheck shell=bash
# Sourced by the other scripts: changes to the root of the repository, sets `target` and `tools` to absolute paths, and
# adds the programs in `tools` to the PATH.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

# `setup.sh` installs programs here. If the tests run as root, servers run as `nobody`, which cannot read root's home
# directory.
if [ -n "${REQUEUE_CACHE-}" ]; then
    tools=$REQUEUE_CACHE/tools
elif [ "$(id -u)" = 0 ]; then
    tools=/var/cache/requeue/tools
else
    tools=${XDG_CACHE_HOME:-$HOME/.cache}/requeue/tools
fi
case :$PATH: in *:"$tools/bin":*) ;; *) PATH=$PATH:$tools/bin ;; esac

# Runs a command with a time limit, where `timeout` is installed: `within SECONDS COMMAND...`
within() {
    if command -v timeout >/dev/null; then
        timeout --kill-after=5 "$@"
    else
        shift
        "$@"
    fi
}

# Reports a check of packages that cannot run here. CI on Linux has all programs for them, so it fails there.
not_run() {
    printf '%s\n' "$1" | tee -a "${REQUEUE_NOT_RUN:-/dev/null}"
    if [ "${CI-}" = true ] && [ "$(uname)" = Linux ]; then exit 1; fi
}

# Reads a template from standard input, and writes it with these values: fill VERSION REPOSITORY [NAME=VALUE...]. Without
# a repository, leaves out the lines that contain it.
fill() {
    local edits=(-e "s|@VERSION@|$1|g") value
    if [ -n "$2" ]; then edits+=(-e "s|@REPOSITORY@|$2|g"); else edits+=(-e '/@REPOSITORY@/d'); fi
    for value in "${@:3}"; do edits+=(-e "s|@${value%%=*}@|${value#*=}|g"); done
    sed "${edits[@]}"
}

# Prints the time of the commit, so that the same sources result in the same packages.
commit_time() { git log -1 --format=%ct 2>/dev/null || date +%s; }

# Prints the option of `npm publish` for the tag of a version: npm publishes no prerelease as `latest`.
npm_tag() { case $1 in *-*) printf -- '--tag=next' ;; esac; }

# Makes the compilers leave out the paths of this machine, which reveal names of users and directories. Cargo's
# `trim-paths` would do the same, but is not stable.
hide_paths() {
    local cargo=${CARGO_HOME:-$HOME/.cargo} separator=$'\x1f'
    # The C code of SQLite and ring contains paths from the C compiler.
    export CFLAGS="${CFLAGS-} -ffile-prefix-map=$PWD=requeue -ffile-prefix-map=$cargo=cargo -ffile-prefix-map=$target=target"
    export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$PWD=requeue$separator--remap-path-prefix=$cargo=cargo"
    export CARGO_PROFILE_RELEASE_STRIP=symbols
}

# Fails if a program or a library contains a path of this machine.
has_no_paths() {
    local path
    for path in "$PWD/" "${CARGO_HOME:-$HOME/.cargo}/" "$target/" "$HOME/" "$(rustc --print sysroot)/"; do
        ! grep -qaF "$path" "$1" || {
            printf '%s contains %s\n' "$1" "$path" >&2
            return 1
        }
    done
}
