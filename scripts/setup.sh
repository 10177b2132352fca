#!/usr/bin/env bash
# Installs what is missing to build and test. An argument names one more tool to install: `browser`, `deny`,
# `faketime`, `mdbook`, `mutants`, `oldest-rust`, `pgbouncer`, `postgresql`, `promtool`, `redis`, `valgrind` or
# `valkey`. If nothing is missing, it returns quickly.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Installs system packages as root. Fails for other users, and without a known package manager.
packages() {
    [ "$(id -u)" = 0 ] || return 1
    if command -v apt-get >/dev/null; then
        # Wait for another apt-get, and retry if a mirror is unavailable.
        local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
        "${apt[@]}" update && DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "$@"
    elif command -v dnf >/dev/null; then
        dnf install -q -y "$@"
    elif command -v apk >/dev/null; then
        apk add -q "$@"
    else
        return 1
    fi >&2 </dev/null
}

command -v cargo >/dev/null ||
    fail 'cargo is missing. Install the stable toolchain with rustup: https://rustup.rs'

cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
    rustup component add rustfmt clippy ||
    fail 'rustfmt and clippy are missing, and rustup could not add them.'

# rustc links through the C compiler.
if ! command -v cc >/dev/null; then
    packages gcc libc6-dev || packages gcc glibc-devel || packages gcc musl-dev ||
        fail 'A C compiler is missing, which rustc needs to link. Debian: apt-get install gcc libc6-dev. macOS: xcode-select --install'
fi

# The tests of the dashboard look for the same names.
has_browser() {
    local name
    for name in "${CHROMIUM-}" chromium chromium-browser google-chrome google-chrome-stable \
        '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'; do
        [ -z "$name" ] || ! command -v "$name" >/dev/null || return 0
    done
    return 1
}

if [ "${1-}" = browser ] && ! has_browser; then
    # The tests of the layout need a font.
    packages chromium fonts-dejavu-core || packages chromium dejavu-sans-fonts ||
        packages chromium font-dejavu || fail 'Chromium is missing: tests of the dashboard need it.'
fi

# Also checks Debian's directories, as the tests do.
has_postgresql() {
    command -v initdb >/dev/null && return 0
    local program
    for program in /usr/lib/postgresql/*/bin/initdb; do [ ! -x "$program" ] || return 0; done
    return 1
}

if [ "${1-}" = postgresql ] && ! has_postgresql; then
    if command -v apt-get >/dev/null; then
        # Tests start their own servers: the package must start none.
        packages postgresql-common &&
            sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf || true
    fi
    packages postgresql || packages postgresql-server ||
        fail 'PostgreSQL is missing: tests of requeue-store need it.'
fi

# Debian installs it outside the PATH of ordinary users.
if [ "${1-}" = pgbouncer ] && ! command -v pgbouncer >/dev/null && [ ! -x /usr/sbin/pgbouncer ]; then
    packages pgbouncer || fail 'pgbouncer is missing: tests of requeue-store need it. Debian: apt-get install pgbouncer'
fi

# Tests start their own servers. Debian's package also starts one on a system that runs services.
if [ "${1-}" = redis ] && ! command -v redis-server >/dev/null && ! command -v valkey-server >/dev/null; then
    packages redis-server || packages valkey || packages redis ||
        fail 'Redis is missing: tests of requeue-store need it.'
fi

# Installs packages from Debian's backports: Debian 12 has Valkey only there.
backported() {
    local dir suite
    command -v apt-get >/dev/null && suite=$(. /etc/os-release && printf '%s-backports' "$VERSION_CODENAME") || return 1
    dir=$(mktemp -d)
    mkdir -p "$dir/lists/partial"
    printf 'deb http://deb.debian.org/debian %s main\n' "$suite" >"$dir/sources.list"
    local from=(-qq -o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$dir/lists")
    (cd "$dir" && apt-get "${from[@]}" update && apt-get "${from[@]}" download "$@") >&2 && packages "$dir"/*.deb
    local code=$?
    rm -r "$dir"
    return "$code"
}

if [ "${1-}" = valkey ] && ! command -v valkey-server >/dev/null; then
    packages valkey-server || packages valkey || backported valkey-server valkey-tools ||
        fail 'Valkey is missing: tests of requeue-store need it.'
fi

# Debian ships it with the Prometheus server, which the package starts on a system that runs services.
if [ "${1-}" = promtool ] && ! command -v promtool >/dev/null; then
    packages prometheus || packages golang-github-prometheus ||
        fail 'promtool is missing: tests of the metrics need it. Debian: apt-get install prometheus'
fi

# Checks Debian's directory, as requeue-chaos does.
has_faketime() {
    local library
    for library in /usr/lib/*/faketime/libfaketimeMT.so.1; do [ ! -e "$library" ] || return 0; done
    return 1
}

if [ "${1-}" = faketime ] && ! has_faketime; then
    packages faketime || packages libfaketime ||
        fail 'libfaketime is missing: tests with wrong clocks need it.'
fi

if [ "${1-}" = valgrind ] && ! command -v valgrind >/dev/null; then
    packages valgrind || fail 'valgrind is missing: it counts instructions.'
fi

# The oldest Rust with which everything must build, according to Cargo.toml.
if [ "${1-}" = oldest-rust ]; then
    oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    rustup run "$oldest" cargo --version >/dev/null 2>&1 ||
        rustup toolchain install "$oldest" --profile minimal >&2 ||
        fail "Rust $oldest is missing, and rustup could not install it."
fi

# A test watches files with it. If it cannot be installed, the test reports that it did not run.
if [ "$(uname)" = Linux ] && ! command -v inotifywait >/dev/null; then
    packages inotify-tools || true
fi

if [ "${1-}" = deny ] && ! cargo deny --version >/dev/null 2>&1; then
    # Not optimised: it runs for a second, and an optimised build takes several times as long.
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install cargo-deny --locked --debug --version 0.20.2
fi

if [ "${1-}" = mdbook ] && ! command -v mdbook >/dev/null; then
    # The build takes 73 s of processor time.
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install mdbook --locked --debug --version 0.5.4 --no-default-features --features search,serve
fi

if [ "${1-}" = mutants ] && ! cargo mutants --version >/dev/null 2>&1; then
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install cargo-mutants --locked --debug --version 27.1.0
fi
