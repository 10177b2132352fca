#!/usr/bin/env bash
# Checks the library crates and the program for other platforms, with each of their features alone, and with the lowest
# versions of their dependencies, and lists what fails. A check builds no program, so no linker or C library of the
# platform is necessary. Crates with C code are checked only for Linux, whose compilers are installed. The tests of the
# queue run on a platform with 32 bits, and those of the core on a big-endian one. ONLY=regex selects platforms;
# `features` and `minimal-versions` are two.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export CARGO_TARGET_DIR=$target/platforms

failed=()
check() {
    local name=$1
    shift
    [[ $name =~ ${ONLY-} ]] || return 0
    printf '== %s: %s\n' "$name" "$*"
    "$@" || failed+=("$name: $*")
}

# SQLite and TLS need a C compiler. kube needs an assembler, by way of its JSON paths, except on Windows.
libraries=(-p requeue-core -p requeue -p requeue-store -p requeue-http)
features='requeue/tokio requeue/prometheus requeue/tsc requeue/wait requeue-core/prefetch requeue-http/store'
for triple in aarch64-apple-darwin x86_64-pc-windows-gnu; do
    [[ $triple =~ ${ONLY-} ]] || continue
    scripts/setup.sh "target:$triple"
    kube=()
    [[ $triple != *windows* ]] || kube=(-p requeue-testkit -p requeue-leases -p requeue-kube --features k8s-openapi/latest)
    check "$triple" cargo check --locked --lib --target "$triple" "${libraries[@]}" \
        --no-default-features --features "$features" "${kube[@]}"
done
check aarch64-apple-darwin cargo check --locked --target aarch64-apple-darwin -p requeue-cli \
    --no-default-features
# The program needs Unix, and its build says so elsewhere.
refused() {
    local output
    ! output=$(cargo check --locked --target "$1" -p requeue-cli --no-default-features 2>&1) &&
        grep '^error: the program `requeue` needs' <<<"$output" || {
        printf '%s\n' "$output"
        return 1
    }
}
check x86_64-pc-windows-gnu refused x86_64-pc-windows-gnu
# Nothing is linked, so the compiler for glibc also serves for musl.
for triple in aarch64-unknown-linux-gnu aarch64-unknown-linux-musl; do
    [[ $triple =~ ${ONLY-} ]] || continue
    scripts/setup.sh "target:$triple" aarch64
    check "$triple" env "CC_${triple//-/_}=aarch64-linux-gnu-gcc" cargo check --locked --target "$triple" \
        "${libraries[@]}" -p requeue-testkit -p requeue-leases -p requeue-kube -p requeue-cli --all-features --features k8s-openapi/latest
done
# musl-gcc compiles SQLite and ring.
triple=x86_64-unknown-linux-musl
if [[ $triple =~ ${ONLY-} ]]; then
    scripts/setup.sh musl
    check "$triple" cargo check --locked --lib --target "$triple" "${libraries[@]}" -p requeue-testkit -p requeue-leases -p requeue-kube \
        --all-features --features k8s-openapi/latest
fi
# Without an operating system.
triple=thumbv7em-none-eabihf
if [[ $triple =~ ${ONLY-} ]]; then
    scripts/setup.sh "target:$triple"
    check "$triple" cargo check --locked --lib --target "$triple" -p requeue-core
fi
# 32 bits. The C compiler of this machine is not used, so the tests run everywhere.
triple=i686-unknown-linux-musl
if [[ $triple =~ ${ONLY-} ]]; then
    scripts/setup.sh "target:$triple"
    check "$triple" env CARGO_TARGET_I686_UNKNOWN_LINUX_MUSL_LINKER=rust-lld \
        cargo test --locked --lib --tests --target "$triple" -p requeue-core -p requeue
fi
# Big-endian. An emulator runs the tests.
triple=s390x-unknown-linux-gnu
if [[ $triple =~ ${ONLY-} ]]; then
    scripts/setup.sh "target:$triple" s390x
    check "$triple" env CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_LINKER=s390x-linux-gnu-gcc \
        CARGO_TARGET_S390X_UNKNOWN_LINUX_GNU_RUNNER='qemu-s390x -L /usr/s390x-linux-gnu' \
        cargo test --locked --lib --tests --target "$triple" -p requeue-core
fi
if [[ features =~ ${ONLY-} ]]; then
    scripts/setup.sh hack
    for crate in requeue-core requeue requeue-store requeue-http requeue-cli; do
        check features cargo hack check --locked --lib --each-feature -p "$crate"
    done
    # Their dependency k8s-openapi needs a version of the Kubernetes API.
    for crate in requeue-testkit requeue-leases requeue-kube; do
        check features cargo check --locked --lib -p "$crate" --features k8s-openapi/latest
    done
    # A program without engines refuses their addresses by name.
    check features cargo test --locked -p requeue-cli --no-default-features --test run left_out::
fi
if [[ minimal-versions =~ ${ONLY-} ]]; then
    check minimal-versions scripts/minimal-versions.sh
fi

[ ${#failed[@]} = 0 ] || {
    printf '\n== These failed:\n'
    printf '%s\n' "${failed[@]}"
    exit 1
}
