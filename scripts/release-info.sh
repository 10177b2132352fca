#!/usr/bin/env bash
# Prints facts of a release: scripts/release-info.sh version | crates | repository | notes [VERSION]
#
# `crates` are the published crates in the order of publication. `repository` is the address in Cargo.toml, or empty if
# it is missing. `notes` is the section of a version in CHANGELOG.md, by default the current version. It fails if the
# section is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Prints a value of the section [workspace.package].
field() { sed -n "/^\[workspace.package\]/,/^\$/s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml; }

case ${1-} in
version | repository) field "$1" ;;
# Each crate follows its dependencies.
crates) printf '%s\n' requeue-core requeue requeue-leases requeue-store requeue-http requeue-kube requeue-testkit requeue-cli ;;
notes)
    awk -v version="${2:-$(field version)}" '
        /^## / { inside = index($0, "## [" version "]") == 1; found += inside; next }
        inside
        END {
            if (!found) {
                printf "CHANGELOG.md has no section \"## [%s] - DATE\": rename [Unreleased]\n", version >"/dev/stderr"
                exit 1
            }
        }
    ' CHANGELOG.md
    ;;
*)
    sed -n '2s/^# //p' "$0" >&2
    exit 2
    ;;
esac
