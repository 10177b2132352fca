#!/usr/bin/env bash
# Runs each fuzz target under libFuzzer for `$1` seconds, from its corpus. Failing inputs are written to fuzz/artifacts.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

cargo +nightly --version >/dev/null 2>&1 ||
    fail 'The nightly toolchain is missing, which libFuzzer needs: rustup toolchain install nightly --profile minimal'
command -v c++ >/dev/null ||
    fail 'A C++ compiler is missing, which libFuzzer needs. Debian: apt-get install g++. macOS: xcode-select --install'
cargo fuzz --version >/dev/null 2>&1 ||
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 cargo install cargo-fuzz --locked --debug --version 0.13.2

# The builds have no sanitizer, because our code has no `unsafe`. The profile shortens the builds.
export CARGO_TARGET_DIR=$target CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
cargo +nightly fuzz build --sanitizer none
for name in $(cargo +nightly fuzz list); do
    printf '\n== %s\n' "$name"
    # New inputs go to the first directory, so that the committed corpus stays small.
    mkdir -p "$target/corpus/$name"
    cargo +nightly fuzz run --sanitizer none "$name" "$target/corpus/$name" "fuzz/corpus/$name" -- \
        -max_total_time="$1" -timeout=20 -print_final_stats=1
done
