#!/usr/bin/env bash
# Installs the programs that the build and the tests need: scripts/setup.sh [--plan] [TOOL...]
#
# Without a TOOL it installs the minimum: rustfmt, clippy, a C compiler and inotifywait. Each function `tool_*` below
# installs one tool. The script prints each installation before it begins. `--plan` prints all installations, and
# installs nothing. REQUEUE_SETUP=none forbids every installation; the script then fails if a tool is missing.
#
# No installation starts a service or edits a configuration file. On Debian and Ubuntu, the servers for tests are not
# installed: their packages are unpacked below `tools`, which needs no root. `--path` prints the directory of programs
# in `tools`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

plan=
case ${1-} in
--path)
    printf '%s\n' "$tools/bin"
    exit
    ;;
--plan)
    plan=1
    shift
    ;;
esac

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

# Announces an installation. Fails if installations are forbidden.
announce() {
    if [ "${REQUEUE_SETUP-}" = none ]; then
        say "setup: REQUEUE_SETUP=none forbids to install $1"
        return 1
    fi
    say "setup: installs $1 ($2)"
    [ -z "$plan" ]
}

manager() {
    local name
    for name in apt-get dnf apk; do
        if command -v "$name" >/dev/null; then
            printf '%s' "$name"
            return
        fi
    done
    return 1
}

# Installs packages of the system, as root: system DEBIAN FEDORA ALPINE, each a list of names. None of the Debian
# packages contains a service. The packages of Fedora and Alpine start no service.
system() {
    local manager packages
    manager=$(manager) || manager=none
    case $manager in
    apt-get) read -ra packages <<<"$1" ;;
    dnf) read -ra packages <<<"$2" ;;
    apk) read -ra packages <<<"$3" ;;
    none)
        say "setup: missing: $1 (no known package manager)"
        return 1
        ;;
    esac
    if [ "$(id -u)" != 0 ]; then
        say "setup: missing: ${packages[*]} (only root can install it, with $manager)"
        return 1
    fi
    announce "${packages[*]}" "with $manager, into the system" || return
    case $manager in
    # apt-get waits for another apt-get, and retries if a mirror is unavailable.
    apt-get)
        local apt=(apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
        "${apt[@]}" update && DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-install-recommends "${packages[@]}"
        ;;
    dnf) dnf install -q -y "${packages[@]}" ;;
    apk) apk add -q "${packages[@]}" ;;
    esac >&2 </dev/null
}

# Makes the programs of packages with services available: server 'PROGRAM...' DEBIAN FEDORA ALPINE. With apt-get,
# unpacks the packages and the missing packages on which they depend. With other package managers, installs them.
server() {
    if [ "$(manager)" = apt-get ] && command -v dpkg >/dev/null; then
        announce "$2" "unpacked into $tools, and not installed" || return
        unpack "$1" "$2" >&2 </dev/null
    else
        system "$2" "$3" "$4"
    fi
}

# Unpacks Debian packages: unpack 'PROGRAM...' 'PACKAGE...'. Runs apt-get with separate lists and caches.
unpack() {
    local state=$tools/apt root=$tools/debian library="" codename apt programs packages package directory program path
    read -ra programs <<<"$1"
    read -ra packages <<<"$2"
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$state/sources" "$root" "$tools/bin"
    cp -f /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources "$state/sources/" 2>/dev/null || true
    [ ! -s /etc/apt/sources.list ] || cp /etc/apt/sources.list "$state/sources/system.list"
    apt=(apt-get -qq -o Acquire::Retries=3 -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state"
        -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$state/sources")
    # If one of several sources is unavailable, the next command shows whether it is needed.
    "${apt[@]}" update || true
    # Debian 12 has Valkey only in its backports.
    if ! "${apt[@]}" --simulate install "${packages[@]}" >/dev/null 2>&1; then
        codename=$(. /etc/os-release && printf '%s' "$VERSION_CODENAME") || return
        printf 'deb http://deb.debian.org/debian %s-backports main\n' "$codename" >"$state/sources/backports.list"
        "${apt[@]}" update || true
    fi
    "${apt[@]}" --simulate install --no-install-recommends "${packages[@]}" |
        sed -n 's/^Inst \([^ ]*\) .*/\1/p' >"$state/wanted" || return
    # The packages are unpacked even if they are installed, because their programs may be missing in PATH.
    printf '%s\n' "${packages[@]}" >>"$state/wanted"
    rm -f "$state"/archives/*.deb
    # shellcheck disable=SC2046
    (cd "$state/archives" && "${apt[@]}" download $(sort -u "$state/wanted")) || return
    for package in "$state"/archives/*.deb; do
        dpkg -x "$package" "$root" || return
    done
    rm -f "$state"/archives/*.deb

    for directory in "$root"/usr/lib/*-linux-*/ "$root"/lib/*-linux-*/; do
        [ ! -d "$directory" ] || library+=${library:+:}${directory%/}
    done
    for program in "${programs[@]}"; do
        path=$(find "$root" \( -type f -o -type l \) -path "*bin/$program" | sort -V | tail -1)
        [ -n "$path" ] || return
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec %s "$@"\n' \
            "$library" "$path" >"$tools/bin/$program" && chmod 755 "$tools/bin/$program" || return
    done
}

# Builds a program with cargo: built NAME VERSION [ARGUMENT...]. The program is not optimised, because it runs only for
# seconds, and an optimised build takes several times as long.
built() {
    local name=$1 version=$2
    shift 2
    announce "$name $version" "built with cargo, into $tools" || return
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install "$name" --locked --debug --version "$version" --root "$tools" "$@" >&2
}

# Builds a program with Go: compiled NAME PACKAGE@VERSION.
compiled() {
    PATH=$PATH:/usr/local/go/bin
    if ! command -v go >/dev/null; then
        say "setup: missing: $1 (Go builds it: https://go.dev/dl)"
        return 1
    fi
    announce "$1 ${2##*@}" "built with Go, into $tools" || return
    GOBIN=$tools/bin GOFLAGS=-trimpath CGO_ENABLED=0 go install "$2" >&2
}

# Installs the standard library for a platform.
target_of_rust() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] && return
    announce "the target $1" 'with rustup' && rustup target add "$1" >&2
}

# The minimum that every target needs.

command -v cargo >/dev/null ||
    fail 'cargo is missing. Install the stable toolchain with rustup: https://rustup.rs'

if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    if announce 'rustfmt and clippy' 'with rustup' || [ -z "$plan" ]; then
        [ "${REQUEUE_SETUP-}" != none ] && rustup component add rustfmt clippy >&2 ||
            fail 'rustfmt and clippy are missing. Install them: rustup component add rustfmt clippy'
    fi
fi

# rustc links through the C compiler.
if ! command -v cc >/dev/null; then
    system 'gcc libc6-dev' 'gcc glibc-devel' 'gcc musl-dev' || [ -n "$plan" ] ||
        fail 'A C compiler is missing, which rustc needs to link. Debian: apt-get install gcc libc6-dev. macOS: xcode-select --install'
fi

# A test watches files with inotifywait. Without this program, the test reports that it did not run.
if { [ $# = 0 ] || [ -n "$plan" ]; } && [ "$(uname)" = Linux ] && ! command -v inotifywait >/dev/null; then
    system inotify-tools inotify-tools inotify-tools || true
fi

# The tools. Each function fails if its tool is missing and cannot be installed.

# The tests of the dashboard search for the same names.
tool_browser() {
    local name
    for name in "${CHROMIUM-}" chromium chromium-browser google-chrome google-chrome-stable \
        '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'; do
        [ -z "$name" ] || ! command -v "$name" >/dev/null || return 0
    done
    # The tests of the layout need a font.
    system 'chromium fonts-dejavu-core' 'chromium dejavu-sans-fonts' 'chromium font-dejavu'
}

# Also checks Debian's directories, as the tests do.
tool_postgresql() {
    local program
    for program in /usr/lib/postgresql/*/bin/initdb; do [ ! -x "$program" ] || return 0; done
    command -v initdb >/dev/null ||
        server 'initdb pg_basebackup pg_ctl postgres psql' postgresql postgresql-server postgresql
}

tool_python3() {
    command -v python3 >/dev/null || system python3 python3 python3
}

# maturin builds the Python package, and openapi-python-client makes a client of the HTTP API. They have a separate virtual
# environment, whose Python also runs the tests.
tool_python() {
    local version=1.16.0 generator=0.29.1
    [ "$("$tools/python/bin/maturin" --version 2>/dev/null)" != "maturin $version" ] ||
        [ "$("$tools/python/bin/openapi-python-client" --version 2>/dev/null)" != "openapi-python-client version: $generator" ] ||
        return 0
    # Debian's Python can create virtual environments only with another package.
    python3 -c 'import ensurepip' 2>/dev/null || system python3-venv python3 python3 || return
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say 'setup: missing: maturin (it needs Python 3.11 or later)'
        return 1
    fi
    announce "maturin $version and openapi-python-client $generator" "with pip, into $tools" || return
    mkdir -p "$tools"
    python3 -m venv --clear "$tools/python" &&
        "$tools/python/bin/pip" install --quiet --disable-pip-version-check "maturin==$version" \
            "openapi-python-client==$generator" >&2
}

# Zig links the Python package with the interfaces of an old glibc. It is a package of the environment of maturin.
tool_zig() {
    local version=0.15.2
    tool_python || return
    [ "$("$tools/python/bin/python" -m ziglang version 2>/dev/null)" != "$version" ] || return 0
    announce "zig $version" "with pip, into $tools" || return
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check "ziglang==$version" >&2
}

# A collector of OpenTelemetry with the few components that tests need. The build takes 90 s of processor time.
tool_collector() {
    local sum
    sum=$(cat servers/collector/* | git hash-object --stdin)
    [ "$(cat "$tools/otel-collector.sum" 2>/dev/null)" != "$sum" ] || [ ! -x "$tools/bin/otel-collector" ] || return 0
    PATH=$PATH:/usr/local/go/bin
    if ! command -v go >/dev/null; then
        say 'setup: missing: otel-collector (Go builds it: https://go.dev/dl)'
        return 1
    fi
    announce otel-collector "built with Go, into $tools" || return
    mkdir -p "$tools/bin"
    GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0 go build -C servers/collector -mod=readonly \
        -gcflags=all=-dwarf=false -ldflags '-s -w' -o "$tools/bin/otel-collector" . >&2 || return
    printf '%s\n' "$sum" >"$tools/otel-collector.sum"
}

# Debian installs pgbouncer outside the PATH of ordinary users.
tool_pgbouncer() {
    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] ||
        server pgbouncer pgbouncer pgbouncer pgbouncer
}

# On Debian, only the client may be installed.
tool_redis() {
    command -v redis-server >/dev/null || command -v valkey-server >/dev/null ||
        server 'redis-server redis-cli' redis-server valkey redis
}

tool_valkey() {
    command -v valkey-server >/dev/null ||
        server 'valkey-server valkey-cli' 'valkey-server valkey-tools' valkey valkey
}

# Debian ships promtool with the Prometheus server.
tool_promtool() {
    command -v promtool >/dev/null || server promtool prometheus golang-github-prometheus prometheus
}

# Checks Debian's directory, as requeue-chaos does.
tool_faketime() {
    local library
    for library in /usr/lib/*/faketime/libfaketimeMT.so.1; do [ ! -e "$library" ] || return 0; done
    system faketime libfaketime libfaketime
}

tool_valgrind() {
    command -v valgrind >/dev/null || system valgrind valgrind valgrind
}

# The oldest Rust with which everything must build, according to Cargo.toml.
tool_oldest-rust() {
    local oldest
    oldest=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    rustup run "$oldest" cargo --version >/dev/null 2>&1 && return
    announce "Rust $oldest" 'with rustup, beside the other toolchains' || return
    rustup toolchain install "$oldest" --profile minimal >&2
}

# The nightly toolchain selects the lowest versions of dependencies.
tool_nightly() {
    rustup run nightly cargo --version >/dev/null 2>&1 && return
    announce 'Rust nightly' 'with rustup, beside the other toolchains' || return
    rustup toolchain install nightly --profile minimal >&2
}

tool_deny() {
    cargo deny --version >/dev/null 2>&1 || built cargo-deny 0.20.2
}

# The build takes 73 s of processor time.
tool_mdbook() {
    command -v mdbook >/dev/null || built mdbook 0.5.4 --no-default-features --features search,serve
}

tool_mutants() {
    cargo mutants --version >/dev/null 2>&1 || built cargo-mutants 27.1.0
}

tool_semver() {
    cargo semver-checks --version >/dev/null 2>&1 || built cargo-semver-checks 0.51.0
}

tool_sbom() {
    cargo cyclonedx --version >/dev/null 2>&1 || built cargo-cyclonedx 0.5.9
}

# The C compiler for static programs: SQLite and ring have C code.
tool_musl() {
    target_of_rust "$(uname -m)-unknown-linux-musl" || return
    # Alpine's own compiler builds static programs.
    command -v musl-gcc >/dev/null || command -v apk >/dev/null ||
        system musl-tools musl-gcc musl-dev
}

# Compiles the C code of dependencies for this platform.
tool_aarch64() {
    [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-gcc >/dev/null ||
        system 'gcc-aarch64-linux-gnu libc6-dev-arm64-cross' gcc-aarch64-linux-gnu gcc-aarch64-linux-gnu
}

# Tests of the core run on this big-endian platform.
tool_s390x() {
    command -v qemu-s390x >/dev/null && command -v s390x-linux-gnu-gcc >/dev/null ||
        system 'qemu-user gcc-s390x-linux-gnu libc6-dev-s390x-cross' 'qemu-user gcc-s390x-linux-gnu' \
            'qemu-s390x gcc-s390x-linux-gnu'
}

# helm checks the chart of `requeue watch`.
tool_helm() {
    command -v helm >/dev/null || compiled helm helm.sh/helm/v3/cmd/helm@v3.22.0
}

# nfpm builds the packages for Debian and RPM.
tool_nfpm() {
    command -v nfpm >/dev/null || compiled nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.48.0
}

# A registry in memory, to which a test pushes the image and the chart.
# Other programs have the same name, so only the built one counts.
tool_registry() {
    [ -x "$tools/bin/registry" ] || compiled registry github.com/google/go-containerregistry/cmd/registry@v0.22.1
}

# The tests of the packages use these programs.
tool_buildah() {
    command -v buildah >/dev/null || system buildah buildah buildah
}
tool_skopeo() {
    command -v skopeo >/dev/null || system skopeo skopeo skopeo
}
tool_rpm() {
    command -v rpm >/dev/null || system rpm rpm rpm
}
tool_ruby() {
    command -v ruby >/dev/null || system ruby ruby ruby
}
tool_nix() {
    command -v nix-instantiate >/dev/null || system nix-bin nix nix
}

# npm builds and installs the packages of npm.
tool_npm() {
    command -v npm >/dev/null && return
    say 'setup: missing: npm (https://nodejs.org)'
    return 1
}

tool_hack() {
    cargo hack --version >/dev/null 2>&1 || built cargo-hack 0.6.46
}

tool_shellcheck() {
    command -v shellcheck >/dev/null || system shellcheck ShellCheck shellcheck
}

# actionlint also checks the scripts in workflows, with shellcheck.
tool_actionlint() {
    command -v actionlint >/dev/null || compiled actionlint github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
}

# The rules of accessibility with which a test checks the dashboard.
tool_axe() {
    local version=4.14.1
    [ -s "$tools/axe.min.js" ] && grep -qF "axe v$version" "$tools/axe.min.js" && return
    tool_npm || return
    announce "axe-core $version" "downloaded with npm, into $tools" || return
    mkdir -p "$tools"
    (cd "$tools" && npm pack --silent "axe-core@$version") >&2 || return
    tar -xzf "$tools/axe-core-$version.tgz" -C "$tools" --strip-components=1 package/axe.min.js || return
    rm "$tools/axe-core-$version.tgz"
}

code=0
for tool; do
    # The argument of a platform is target:TRIPLE.
    case $tool in
    target:*)
        target_of_rust "${tool#target:}" || code=1
        continue
        ;;
    esac
    declare -F "tool_$tool" >/dev/null || fail "setup: no such tool: $tool"
    "tool_$tool" || [ -n "$plan" ] || {
        say "setup: $tool is missing, and was not installed"
        code=1
    }
done
exit "$code"
