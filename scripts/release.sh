#!/usr/bin/env bash
# Builds the program for distribution: stripped, and without the paths of this machine. Arguments are passed to
# `cargo build`. TARGET selects a target other than this machine's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

triple=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
hide_paths
cargo build --release --locked -p requeue-cli --target "$triple" --target-dir "$target/given" "$@"

program=$target/given/$triple/release/requeue
has_no_paths "$program"
printf '%s\n' "$program"
