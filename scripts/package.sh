#!/usr/bin/env bash
# Packages the crates that are published, then builds and tests them from the files of their packages alone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mapfile -t crates < <(scripts/release-info.sh crates)
version=$(scripts/release-info.sh version)

selected=()
for crate in "${crates[@]}"; do selected+=(-p "$crate"); done
cargo package --no-verify --allow-dirty "${selected[@]}"

# A workspace of the same form. The published crates have the files of their packages alone. The other members have no
# code, only their dependencies: they keep the features of all dependencies as they are in the repository, so that
# nothing but the published crates is built again. The members have other paths than in the repository. Otherwise Cargo
# would take what it builds here for a build of the repository, and would not notice changes there.
workspace=$target/packages
unpacked=$workspace/members
rm -rf "$workspace"
mkdir -p "$unpacked/crates"
{
    sed -E 's|path = "|path = "members/|; /^members = / s|"([^"]+)"|"members/\1"|g' Cargo.toml
    printf '\n[patch.crates-io]\n'
    for crate in "${crates[@]}"; do printf '%s = { path = "members/crates/%s" }\n' "$crate" "$crate"; done
} >"$workspace/Cargo.toml"
cp Cargo.lock rust-toolchain.toml "$workspace"
for crate in "${crates[@]}"; do
    # With the time of this run: files in packages are as old in every run, and Cargo would not notice changes.
    tar -xzmf "$target/package/$crate-$version.crate" -C "$unpacked/crates"
    mv "$unpacked/crates/$crate-$version" "$unpacked/crates/$crate"
    # Cargo uses the lock file of a package, but only warns about one in a workspace's member.
    rm -f "$unpacked/crates/$crate/Cargo.lock"
    for file in README.md LICENSE-APACHE LICENSE-MIT; do
        [ -s "$unpacked/crates/$crate/$file" ] || {
            printf '%s: its package has no %s\n' "$crate" "$file" >&2
            exit 1
        }
    done
done
others=()
for manifest in $(git ls-files '*/Cargo.toml' 2>/dev/null || find . -path ./target -prune -o -name Cargo.toml -print); do
    member=$(dirname "$manifest")
    [ "$member" != . ] && [ ! -e "$unpacked/$member" ] || continue
    mkdir -p "$unpacked/$member/src"
    # Without its programs and benchmarks, whose sources are not there.
    awk '/^\[/ { skip = /^\[\[/ } !skip' "$manifest" >"$unpacked/$member/Cargo.toml"
    printf '//! A member without code.\n' >"$unpacked/$member/src/lib.rs"
    others+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -1)")
done

cd "$workspace"
export CARGO_TARGET_DIR=$target
# The unit tests of the others need servers, which only the repository has.
cargo test -p requeue-core -p requeue "${others[@]}" --all-features --lib
cargo test --workspace --all-features --doc
# With the examples, whose dependencies bring the features of the tests.
cargo build --workspace --all-features --bins --examples
