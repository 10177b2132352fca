#!/usr/bin/env bash
# Builds the program for distribution: stripped, and without the paths of this machine, which reveal names of users and
# directories. Cargo's `trim-paths` would remove them, but is not stable. Arguments are passed to `cargo build`. TARGET
# selects a target other than this machine's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

triple=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
cargo=${CARGO_HOME:-$HOME/.cargo}
# The C code of SQLite and ring contains paths from the C compiler.
export CFLAGS="${CFLAGS-} -ffile-prefix-map=$PWD=requeue -ffile-prefix-map=$cargo=cargo -ffile-prefix-map=$target=target"
separator=$'\x1f'
export CARGO_ENCODED_RUSTFLAGS="--remap-path-prefix=$PWD=requeue$separator--remap-path-prefix=$cargo=cargo"
export CARGO_PROFILE_RELEASE_STRIP=symbols
cargo build --release --locked -p requeue-cli --target "$triple" --target-dir "$target/given" "$@"

program=$target/given/$triple/release/requeue
for path in "$PWD/" "$cargo/" "$target/" "$HOME/" "$(rustc --print sysroot)/"; do
    if grep -qaF "$path" "$program"; then
        printf '%s contains %s\n' "$program" "$path" >&2
        exit 1
    fi
done
printf '%s\n' "$program"
