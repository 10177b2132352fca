#!/usr/bin/env bash
# Builds the packages of one target in target/dist: an archive, packages for Debian, RPM, npm and pip, the context of the
# container, a bill of materials and checksums. target/dist/any has the packages without a program, which every target
# builds equally. On Linux the program is static, so it runs on every Linux. TARGET selects another target with the
# system of this machine. Finally, tests the packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

host=$(rustc -vV | sed -n 's/^host: //p')
case $host in *-linux-*) host=${host%%-*}-unknown-linux-musl ;; esac
export TARGET=${TARGET:-$host}
version=$(scripts/release-info.sh version)
repository=$(scripts/release-info.sh repository)
SOURCE_DATE_EPOCH=$(commit_time)
export SOURCE_DATE_EPOCH
dist=$target/dist root=$target/dist-root
rm -rf "$dist" "$root"
mkdir -p "$dist/any" "$root"

# The names of the processor and the system: in Debian and npm, in RPM, and in npm.
case $TARGET in
x86_64-*) debian=amd64 rpm=x86_64 npm=x64 ;;
aarch64-*) debian=arm64 rpm=aarch64 npm=arm64 ;;
*) debian='' rpm='' npm='' ;;
esac
case $TARGET in
*-linux-musl) system=linux ;;
*-darwin) system=darwin ;;
*)
    printf '%s: packages are built for targets *-linux-musl and *-apple-darwin\n' "$TARGET" >&2
    exit 1
    ;;
esac
needed=(sbom helm npm)
[ $system != linux ] || needed+=(musl)
[ -z "$debian" ] || needed+=(python)
[ -z "$debian" ] || [ $system != linux ] || needed+=(nfpm zig)
scripts/setup.sh "${needed[@]}"

# Writes an archive of a directory, whose name is the first part of the paths in it: archive PARENT NAME FILE
archive() {
    tar --sort=name --owner=0 --group=0 --numeric-owner --mode=go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" \
        -C "$1" -c "$2" | gzip -9n >"$3"
}

program=$(scripts/release.sh | tail -1)
if [ $system = linux ] && readelf --program-headers "$program" | grep -q INTERP; then
    printf '%s is not static\n' "$program" >&2
    exit 1
fi

# Creates the files of the packages for Debian and RPM, as they are installed.
doc=$root/usr/share/doc/requeue man=$root/usr/share/man/man1
mkdir -p "$doc" "$man"
install -D -m 755 "$program" "$root/usr/bin/requeue"
"$program" man "$man"
gzip -9n "$man"/*
install -d "$root"/usr/share/{bash-completion/completions,fish/vendor_completions.d}
"$program" completions bash >"$root/usr/share/bash-completion/completions/requeue"
"$program" completions fish >"$root/usr/share/fish/vendor_completions.d/requeue.fish"
"$program" completions zsh >"$root/_requeue"
install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/systemd/*.service
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: requeue\n'
    [ -z "$repository" ] || printf 'Source: %s\n' "$repository"
    printf '\nFiles: *\nCopyright: the requeue authors\nLicense: MIT or Apache-2.0\n'
    printf ' On Debian systems, /usr/share/common-licenses/Apache-2.0 has the text of the Apache licence.\n .\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
} >"$root/copyright"
# The modes in the package must not depend on the umask.
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f ! -path '*/bin/*' -exec chmod 644 {} +
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +

# The archive. `cargo binstall` and the formula of Homebrew find its name in Cargo.toml and packaging/homebrew.
name=requeue-$version-$TARGET
files=$target/dist-archive/$name
rm -rf "$target/dist-archive"
mkdir -p "$files"/{man,completions,systemd}
cp -p "$root/usr/bin/requeue" LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$files"
cp -p "$man"/* "$files/man"
cp -p "$root"/usr/share/*/*completions*/*requeue* "$root/_requeue" "$files/completions"
[ $system != linux ] || cp -p packaging/systemd/* "$files/systemd"
archive "$target/dist-archive" "$name" "$dist/$name.tar.gz"
rm -rf "$target/dist-archive"

if [ -n "$debian" ] && [ $system = linux ]; then
    export PACKAGE_ROOT=$root PACKAGE_ARCHITECTURE=$debian PACKAGE_VERSION=$version PACKAGE_HOMEPAGE=$repository
    export PACKAGE_MAINTAINER=${MAINTAINER:-the requeue authors <requeue@localhost>}
    # GitHub replaces a ~ in the name of a file with a dot, and SHA256SUMS would name a file that does not exist.
    nfpm package --config packaging/nfpm.yaml --packager deb --target "$dist/requeue_${version/-/.}_$debian.deb"
    nfpm package --config packaging/nfpm.yaml --packager rpm --target "$dist/requeue-${version/-/.}-1.$rpm.rpm"
fi

# Packages a directory of packaging/npm: npm_package NAME OUT [FILE...]. The files are copied to `bin`.
npm_package() {
    local package=$target/dist-npm/$1
    rm -rf "$package"
    mkdir -p "$package/bin"
    fill "$version" "$repository" "OS=$system" "CPU=$npm" <"packaging/npm/$1/package.json" >"$package/package.json"
    cp LICENSE-APACHE LICENSE-MIT "$package"
    [ ! -e "packaging/npm/$1/README.md" ] || cp "packaging/npm/$1/README.md" "$package"
    install -m 755 "${@:3}" "$package/bin"
    # The packages contain no scripts, but an npm with another configuration must not run any either.
    npm pack --silent --ignore-scripts --pack-destination "$2" "$package" >/dev/null
}
npm_package main "$dist/any" packaging/npm/main/requeue
[ -z "$npm" ] || npm_package platform "$dist" "$program"

# The package for Python, which is linked with glibc. Zig has the interfaces of old versions, so that the wheel runs on
# systems that are older than this one.
if [ -n "$debian" ]; then
    wheel=(--release --locked --target "${TARGET/musl/gnu}" --out "$target/dist-wheel")
    [ $system != linux ] || wheel+=(--zig --compatibility manylinux2014)
    rm -rf "$target/dist-wheel"
    (
        hide_paths
        # maturin finds Zig as a module of the Python in PATH.
        # Zig is the C compiler here, and not in the build of the program: with one directory, each would discard the other.
        export PYO3_PYTHON=$tools/python/bin/python CARGO_TARGET_DIR=$target/given-wheel PATH=$tools/python/bin:$PATH
        maturin build --quiet --manifest-path bindings/python/Cargo.toml "${wheel[@]}"
        python -m zipfile --extract "$target"/dist-wheel/*.whl "$target/dist-wheel/files"
        has_no_paths "$target"/dist-wheel/files/requeue/_native*
    )
    cp "$target"/dist-wheel/*.whl "$dist"
fi

# The chart. The archive of helm contains the time of its creation.
helm package packaging/chart --destination "$target/dist-chart" >/dev/null
tar -xzmf "$target/dist-chart/requeue-watch-$version.tgz" -C "$target/dist-chart"
archive "$target/dist-chart" requeue-watch "$dist/any/requeue-watch-$version.tgz"
rm -r "$target/dist-chart"

# The bill of materials: the crates that are linked into the program, with the features and for the target of the build.
# cargo-cyclonedx writes a file next to the sources of each program.
trap 'find . -name "*_bin.cdx.json" ! -path "./target*" -delete' EXIT
cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --target "$TARGET" \
    --manifest-path crates/requeue-cli/Cargo.toml
sed "s|$PWD|requeue|g" crates/requeue-cli/requeue_bin.cdx.json >"$dist/$name.cdx.json"

for files in "$dist" "$dist/any"; do
    sums=$(cd "$files" && find . -maxdepth 1 -type f | sed 's|^\./||' | sort | xargs sha256sum --)
    printf '%s\n' "$sums" >"$files/SHA256SUMS"
done

# The context of packaging/Containerfile.
if [ $system = linux ]; then
    mkdir -p "$dist/image/licenses"
    cp "$program" "$dist/image/requeue"
    cp LICENSE-APACHE LICENSE-MIT "$dist/image/licenses"
fi

scripts/dist-test.sh "$dist"
(cd "$dist" && ls -l -- * | sed 's/^/    /')
