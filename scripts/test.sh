#!/usr/bin/env bash
# Runs every check. The steps that could not run are collected in a file and listed at the end. With CI=true, they are
# failures. With REQUEUE_SETUP=none, the script installs nothing, and uses the present programs.
#
# A Rust test that cannot run on this machine appends a line to the file that REQUEUE_NOT_RUN names, and returns.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec </dev/null
export REQUEUE_NOT_RUN=$target/not-run.txt
: >"$REQUEUE_NOT_RUN"

step() { printf '\n== %s (at %d s)\n' "$1" "$SECONDS"; }
not_run() { printf '%s\n' "$1" >>"$REQUEUE_NOT_RUN"; }

# Runs `cargo test`, and records the ignored tests.
tests() {
    cargo test "$@" | tee "$target/test.log"
    sed -n 's/^test \(.*\) \.\.\. ignored\(.*\)/ignored test: \1\2/p' "$target/test.log" >>"$REQUEUE_NOT_RUN"
}

# Each step installs what it needs when it begins. This list appears first, so that nothing is installed unannounced.
installed=$(scripts/setup.sh --plan oldest-rust mdbook browser axe postgresql pgbouncer redis promtool collector faketime valkey \
    python valgrind deny shellcheck actionlint helm 2>&1)
[ -z "$installed" ] || printf 'Of the programs for the tests, some are missing:\n%s\n' "$installed"

# The first build on a machine takes minutes. The steps that measure no time run in parallel.
nice scripts/kube-server.sh >"$target/kube-server.path" 2>"$target/kube-server.log" &
kube_server=$!
trap 'kill "$kube_server" 2>/dev/null || true' EXIT

step 'Cargo.lock is up to date'
cargo fetch --locked

step 'Formatting'
cargo fmt --all --check
cargo fmt --manifest-path bindings/python/Cargo.toml --check

step 'Scripts and workflows'
if scripts/setup.sh shellcheck; then
    shellcheck --severity=warning .ci/run scripts/*.sh benches/*.sh packaging/scripts/* packaging/npm/main/requeue
else
    not_run 'lints of the shell scripts: shellcheck is not installed'
fi
if scripts/setup.sh actionlint; then
    actionlint .github/workflows/*.yml
else
    not_run 'lints of the workflows: actionlint is not installed'
fi

scripts/workflow-tokens.sh --test
scripts/workflow-tokens.sh .github/workflows/*.yml
scripts/publish-test.sh

step 'Chart'
version=$(scripts/release-info.sh version)
grep -qxF "version: $version" packaging/chart/Chart.yaml && grep -qxF "appVersion: \"$version\"" packaging/chart/Chart.yaml || {
    printf 'packaging/chart/Chart.yaml has another version than Cargo.toml, which has %s\n' "$version" >&2
    exit 1
}
if scripts/setup.sh helm; then
    for values in packaging/chart/ci/*.yaml; do helm lint --quiet --strict --values "$values" packaging/chart; done
else
    not_run 'lints of the chart: helm is not installed'
fi

step 'Lints'
cargo clippy --workspace --all-targets -- -D warnings
cargo clippy -p requeue --no-default-features --all-targets -- -D warnings
cargo clippy -p requeue -p requeue-store --all-features --all-targets -- -D warnings
cargo clippy -p requeue-store --lib -- -D warnings
cargo clippy -p requeue-store --lib --no-default-features -- -D warnings

step 'The oldest Rust'
if scripts/setup.sh oldest-rust; then
    oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    # The target directory is separate, so that the toolchains do not discard each other's builds.
    CARGO_TARGET_DIR=$target/oldest-rust cargo "+$oldest" check --workspace --all-features --locked
    has_oldest=1
else
    not_run 'a build with the oldest Rust, and the listings of the public API: it is not installed'
    has_oldest=
fi

step 'Documentation'
# Only libraries are documented, because the program and the library have the same name, and would have the same page.
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --lib --no-deps --all-features

step 'Documentation site'
if scripts/setup.sh mdbook; then
    scripts/docs.sh
else
    not_run 'the documentation site and its links: mdBook is not installed'
fi

# If a tool cannot be installed, the tests that need it report that they did not run.
step 'A browser, servers, a collector, promtool and libfaketime'
scripts/setup.sh browser axe postgresql pgbouncer redis promtool collector faketime || true
if [ -s "$tools/axe.min.js" ]; then export AXE=$tools/axe.min.js; fi

# Waits for the build of the server, because concurrent tests would be slow.
built=0
wait "$kube_server" || built=$?
trap - EXIT

step 'Tests'
# The tests that need an API server are in a separate step.
REQUEUE_KUBE_SERVER='' tests --workspace --all-features

step 'Valkey'
if scripts/setup.sh valkey; then
    REQUEUE_REDIS=valkey tests --workspace --all-features --lib -- redis::tests::{conforming,changing}
else
    not_run 'tests of requeue-store on Valkey: it is not installed'
fi

step 'Tests without a runtime'
tests -p requeue --no-default-features

# The clock jumps ahead a minute at each reading, as on a very slow machine: a test that relies on speed fails. Tests of
# the real clocks are left out, because libfaketime does not shorten their waits. Examples run one after another: they
# are processes that share one count of readings, so each would see the jumps of the others.
step 'Tests on a clock that jumps ahead'
faketime=(/usr/lib/*/faketime/libfaketimeMT.so.1)
if [ -e "${faketime[0]}" ]; then
    jumping=()
    for test in crates/requeue/tests/*.rs; do
        case $test in
        */clock_* | */due_times.rs) ;;
        *) jumping+=(--test "$(basename "$test" .rs)") ;;
        esac
    done
    runner="target.'cfg(unix)'.runner = ['env', 'LD_PRELOAD=${faketime[0]}', 'FAKETIME=+0 i60.0']"
    tests -p requeue --no-default-features "${jumping[@]}" --config "$runner"
    tests -p requeue --no-default-features --doc --config "$runner" -- --test-threads=1
else
    not_run 'tests of requeue on a clock that jumps ahead: libfaketime is missing'
fi

step 'Interleavings'
scripts/loom.sh 3

step 'Instructions of the main paths'
if scripts/setup.sh valgrind; then
    scripts/instructions.sh
else
    not_run 'instructions of the main paths: valgrind is not installed'
fi

step 'Examples'
cargo build --workspace --all-features --bins --examples
for example in crates/*/examples/*.rs; do
    [ -e "$example" ] || continue
    # These examples are built but not run, because they need a cluster.
    [[ $example != crates/requeue-kube/* ]] || continue
    name=$(basename "$example" .rs)
    printf -- '-- %s\n' "$name"
    within 600 "$target/debug/examples/$name"
done

step 'Python'
if scripts/setup.sh python; then
    scripts/python.sh
else
    not_run 'the Python package: maturin is not installed'
fi

if [ -n "$has_oldest" ]; then
    step 'Listings of the public API'
    scripts/api.sh
fi

step 'Shell blocks of the documentation'
grep -rl '^```sh run$' --include='*.md' README.md docs | while read -r page; do
    scripts/page.sh "$target/debug/requeue" "$page"
done

step 'SECURITY.md'
grep -o '`\(fn \)\?[a-z0-9_]*`' SECURITY.md | tr -d '`' | sed 's/^fn //' | grep -E '^http$|_' | while read -r name; do
    grep -rqE "fn $name\(" --include='*.rs' crates e2e/tests fuzz/src || {
        printf 'SECURITY.md names a test that does not exist: %s\n' "$name" >&2
        exit 1
    }
done

step 'Kubernetes API server'
if [ "$built" = 0 ]; then
    # Selects the whole workspace, so that no crate is built again with fewer features.
    against=()
    for test in e2e/tests/*; do against+=(--test "$(basename "$test" .rs)"); done
    REQUEUE_KUBE_SERVER=$(cat "$target/kube-server.path") tests --workspace --all-features "${against[@]}"
elif [ "$built" = 2 ]; then
    cat "$target/kube-server.log" >&2
    not_run 'tests against a Kubernetes API server: Go is missing or too old to build it'
else
    cat "$target/kube-server.log" >&2
    exit 1
fi

step 'Packages'
scripts/package.sh

step 'Dependencies'
# Each direct dependency needs a comment about its purpose, at the line that names its version.
for manifest in Cargo.toml bindings/python/Cargo.toml; do
    cargo tree --manifest-path "$manifest" --workspace --all-features --locked --depth 1 --no-dedupe --prefix none \
        --target all --edges normal,dev,build --format '{p}'
done | awk 'NF && !/ \(\// { print $1 }' | sort -u |
    while read -r name; do
        git ls-files '*Cargo.toml' | xargs grep -hB1 "^$name = " | grep -q '^# ' || {
            printf 'No Cargo.toml says what %s is for, in a comment above the line of its version\n' "$name" >&2
            exit 1
        }
    done
if scripts/setup.sh deny; then
    cargo deny check bans licenses sources
    cargo deny --manifest-path bindings/python/Cargo.toml --config deny.toml check bans licenses sources
else
    not_run 'cargo deny: it is not installed'
fi

if [ -s "$REQUEUE_NOT_RUN" ]; then
    printf '\n== These could not run:\n'
    sort -u "$REQUEUE_NOT_RUN"
    [ "${CI-}" != true ] || exit 1
else
    printf '\n== Every check ran and passed (%d s)\n' "$SECONDS"
fi
