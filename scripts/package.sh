#!/usr/bin/env bash
# Packages the crates that are published, then builds and tests them from the files of their packages alone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# In the order of publication: each crate follows its dependencies.
crates=(requeue-core requeue requeue-store requeue-http requeue-kube requeue-cli)

selected=()
for crate in "${crates[@]}"; do selected+=(-p "$crate"); done
cargo package --no-verify --allow-dirty "${selected[@]}"

unpacked=$target/packages
rm -rf "$unpacked"
mkdir -p "$unpacked"
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n\n[patch.crates-io]\n'
    for crate in "${crates[@]}"; do printf '%s = { path = "%s" }\n' "$crate" "$crate"; done
    # The same profiles, so that dependencies that are already built can be used.
    printf '\n'
    sed -n '/^\[profile.dev\]/,/^$/p' Cargo.toml
} >"$unpacked/Cargo.toml"
cp Cargo.lock rust-toolchain.toml "$unpacked"
for crate in "${crates[@]}"; do
    tar -xzf "$target/package/$crate-$version.crate" -C "$unpacked"
    mv "$unpacked/$crate-$version" "$unpacked/$crate"
    # Cargo uses the lock file of a package, but only warns about one in a workspace's member.
    rm -f "$unpacked/$crate/Cargo.lock"
    for file in README.md LICENSE-APACHE LICENSE-MIT; do
        [ -s "$unpacked/$crate/$file" ] || {
            printf '%s: its package has no %s\n' "$crate" "$file" >&2
            exit 1
        }
    done
done

cd "$unpacked"
export CARGO_TARGET_DIR=$target
# The unit tests of the others need servers, which only the repository has.
cargo test -p requeue-core -p requeue --all-features --lib
cargo test --workspace --all-features --doc
cargo build -p requeue-cli
