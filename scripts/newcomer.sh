#!/usr/bin/env bash
# Follows the steps of a newcomer: builds a new crate for each library, outside the workspace, with the dependencies and
# the example in the library's README, and runs it. The libraries come from their packages, which `scripts/package.sh`
# has unpacked. ONLY=regex selects libraries.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
packages=$target/packages/members/crates
[ -d "$packages" ] || {
    printf 'There are no packages in %s: run scripts/package.sh first\n' "$packages" >&2
    exit 1
}

# Prints the first block of a README in this language.
block() { awk -v start="^\`\`\`$1" '$0 ~ start { inside = 1; next } /^```$/ && inside { exit } inside' "$2"; }

dir=$target/newcomer
rm -rf "$dir"
for crate in $(scripts/release-info.sh crates); do
    readme=$packages/$crate/README.md
    [ -n "$(block rust "$readme")" ] && [[ $crate =~ ${ONLY-} ]] || continue
    new=$dir/$crate
    mkdir -p "$new/src"
    {
        printf '[package]\nname = "newcomer"\nversion = "0.1.0"\nedition = "2024"\n\n'
        block toml "$readme"
        printf '\n[workspace]\n\n[patch.crates-io]\n'
        for package in "$packages"/*; do printf '%s = { path = "%s" }\n' "$(basename "$package")" "$package"; done
    } >"$new/Cargo.toml"
    block rust "$readme" >"$new/src/main.rs"
    cp Cargo.lock "$new"
    printf -- '-- %s\n' "$crate"
    (
        cd "$new"
        export CARGO_TARGET_DIR=$target
        # Cargo warns about packages that the crate does not need.
        cargo build
        case $crate in
        # These examples need a cluster. Without a cluster, they return an error.
        requeue-kube | requeue-leases)
            code=0
            KUBECONFIG=/nonexistent within 600 "$target/debug/newcomer" || code=$?
            [ "$code" = 1 ]
            ;;
        *) within 600 "$target/debug/newcomer" ;;
        esac
    )
done
