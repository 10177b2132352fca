#!/usr/bin/env bash
# Checks the published crates with the lowest versions of their direct dependencies that their manifests allow. Needs a
# nightly toolchain, which selects these versions. The stable toolchain compiles them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts/setup.sh nightly

# The check uses a copy, because it writes another Cargo.lock. Dependencies of tests are omitted, because they could
# raise a version.
copy=$target/minimal-versions
mkdir -p "$copy/crates"
rm -rf "$copy"/crates/* "$copy/Cargo.lock"
sed 's|^members = .*|members = ["crates/*"]|' Cargo.toml >"$copy/Cargo.toml"
cp rust-toolchain.toml "$copy"
for crate in $(scripts/release-info.sh crates); do
    mkdir "$copy/crates/$crate"
    for part in src assets docs README.md; do
        [ ! -e "crates/$crate/$part" ] || cp -r "crates/$crate/$part" "$copy/crates/$crate"
    done
    # Examples and benchmarks are removed, because the copy does not contain them.
    awk '
        /^\[/ { skip = /dev-dependencies\]$/ || (/^\[\[/ && !/^\[\[bin\]\]/) }
        !skip
    ' "crates/$crate/Cargo.toml" >"$copy/crates/$crate/Cargo.toml"
done

cd "$copy"
cargo +nightly -Z direct-minimal-versions generate-lockfile
CARGO_TARGET_DIR=$copy/target cargo check --workspace --all-features --locked
