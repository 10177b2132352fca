#!/usr/bin/env bash
# Builds the program for distribution, without the paths of this machine, which reveal names of users and directories.
# Cargo's `trim-paths` would do that, but is not stable. Arguments go to `cargo build`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cargo=${CARGO_HOME:-$HOME/.cargo}
# The C code of SQLite and ring contains paths from the C compiler.
export CFLAGS="${CFLAGS-} -ffile-prefix-map=$PWD=requeue -ffile-prefix-map=$cargo=cargo -ffile-prefix-map=$target=target"
separator=$'\x1f'
export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$PWD=requeue$separator--remap-path-prefix=$cargo=cargo"
cargo build --release --locked -p requeue-cli --target-dir "$target/given" "$@"

program=$target/given/release/requeue
for path in "$PWD/" "$cargo/" "$target/" "$HOME/" "$(rustc --print sysroot)/"; do
    if grep -qaF "$path" "$program"; then
        printf '%s contains %s\n' "$program" "$path" >&2
        exit 1
    fi
done
printf '%s\n' "$program"
