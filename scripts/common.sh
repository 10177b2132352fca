# shellcheck shell=bash
# Sourced by the other scripts: changes to the root of the repository, and sets `target` to an absolute path.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

# Runs a command with a time limit, where `timeout` is installed: `within SECONDS COMMAND...`
within() {
    if command -v timeout >/dev/null; then
        timeout --kill-after=5 "$@"
    else
        shift
        "$@"
    fi
}
