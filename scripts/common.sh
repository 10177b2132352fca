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
