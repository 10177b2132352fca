#!/usr/bin/env bash
# Packages the published crates. Then builds and tests them only from the files of their packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

mapfile -t crates < <(scripts/release-info.sh crates)
version=$(scripts/release-info.sh version)

selected=()
for crate in "${crates[@]}"; do selected+=(-p "$crate"); done
cargo package --no-verify --allow-dirty "${selected[@]}"

# Creates a workspace with the same members. The published crates contain only the files of their packages. The other
# members contain no code, only their dependencies, so that all dependencies have the same features as in the repository
# and need not be built again. The members have other paths than in the repository. Otherwise, Cargo would use the
# builds of this workspace for the repository, and would not notice changes there.
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
    # The files get the time of this run. Files in packages always have the same time, so Cargo would not notice
    # changes.
    tar -xzmf "$target/package/$crate-$version.crate" -C "$unpacked/crates"
    mv "$unpacked/crates/$crate-$version" "$unpacked/crates/$crate"
    # Cargo uses the lock file of a package, but only warns about a lock file in a member of a workspace.
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
    # The bindings are separate workspaces.
    [ "$member" != . ] && [[ $member != bindings/* ]] && [ ! -e "$unpacked/$member" ] || continue
    mkdir -p "$unpacked/$member/src"
    # The programs and benchmarks are removed, because their sources are missing.
    awk '/^\[/ { skip = /^\[\[/ } !skip' "$manifest" >"$unpacked/$member/Cargo.toml"
    printf '//! A member without code.\n' >"$unpacked/$member/src/lib.rs"
    others+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -1)")
done

cd "$workspace"
export CARGO_TARGET_DIR=$target
# The unit tests of the other crates need servers, which only the repository can start.
cargo test -p requeue-core -p requeue "${others[@]}" --all-features --lib
cargo test --workspace --all-features --doc
# The build includes the examples, because their dependencies enable the features of the tests.
cargo build --workspace --all-features --bins --examples
