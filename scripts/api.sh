#!/usr/bin/env bash
# Compares the public API of the published libraries with the committed listings in docs/api. UPDATE=1 writes them.
#
# The format of rustdoc's JSON changes between releases. The oldest Rust writes it, so that the listings depend on no
# other version, and the builds of the step that checks this version are reused.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
CARGO_TARGET_DIR=$target/oldest-rust RUSTDOC=$PWD/scripts/rustdoc-json.sh \
    RUSTDOCFLAGS='-Z unstable-options --output-format json' \
    cargo "+$oldest" doc --workspace --lib --no-deps --all-features --locked
# Selects the whole workspace, so that no crate is built again with fewer features.
cargo build --workspace --all-features --locked --bin public-api

code=0
mkdir -p docs/api "$target/api"
for crate in $(scripts/release-info.sh crates); do
    # The interface of requeue-cli is the command line. Its library is only for its tests.
    [ "$crate" != requeue-cli ] || continue
    listed=docs/api/$crate.txt now=$target/api/$crate.txt
    # Traits of the standard library on which no user depends.
    "$target/debug/public-api" "$target/oldest-rust/doc/${crate//-/_}.json" |
        grep -v '^impl.* !\?core::\(marker::Freeze\|panic::unwind_safe::\(Ref\)\?UnwindSafe\) for ' >"$now"
    if [ "${UPDATE-}" = 1 ]; then
        cp "$now" "$listed"
    elif ! diff -U0 "$listed" "$now"; then
        printf 'The public API of %s differs from %s. If that is intended: make api UPDATE=1\n' "$crate" "$listed" >&2
        code=1
    fi
done
exit "$code"
