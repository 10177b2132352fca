# shellcheck shell=bash
# For the scripts beside it to source.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

# Runs a command that ends by itself, and ends it when it does not: `within SECONDS COMMAND...`
within() {
    if command -v timeout >/dev/null; then
        timeout --kill-after=5 "$@"
    else
        shift
        "$@"
    fi
}
