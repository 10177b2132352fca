#!/usr/bin/env bash
# Builds the packages of the program in target/dist: an archive, a Debian package, the context of the container, a bill
# of materials and checksums. The program is static, so it runs on every Linux. TARGET selects a target with musl other
# than this machine's. Finally, tests the packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export TARGET=${TARGET:-$(uname -m)-unknown-linux-musl}
version=$(scripts/release-info.sh version)
repository=$(scripts/release-info.sh repository)
# Each file has the time of the commit, so that the same sources result in the same packages.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
dist=$target/dist root=$target/dist-root
rm -rf "$dist" "$root"
mkdir -p "$dist" "$root"

program=$(scripts/release.sh | tail -1)
case $TARGET in
*-musl)
    ! readelf --program-headers "$program" | grep -q INTERP || {
        printf '%s is not static\n' "$program" >&2
        exit 1
    }
    ;;
esac

# Creates the files of the package, as they are installed.
doc=$root/usr/share/doc/requeue man=$root/usr/share/man/man1
mkdir -p "$doc" "$man"
install -D -m 755 "$program" "$root/usr/bin/requeue"
"$program" man "$man"
gzip -9n "$man"/*
install -d "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$program" completions bash >"$root/usr/share/bash-completion/completions/requeue"
"$program" completions zsh >"$root/usr/share/zsh/vendor-completions/_requeue"
"$program" completions fish >"$root/usr/share/fish/vendor_completions.d/requeue.fish"
install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/systemd/*.service
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: requeue\n'
    [ -z "$repository" ] || printf 'Source: %s\n' "$repository"
    printf '\nFiles: *\nCopyright: the requeue authors\nLicense: MIT or Apache-2.0\n'
    printf ' On Debian systems, /usr/share/common-licenses/Apache-2.0 has the text of the Apache licence.\n .\n'
    sed 's/^$/./; s/^/ /' LICENSE-MIT
} >"$doc/copyright"
# The modes in the package must not depend on the umask.
find "$root" -type d -exec chmod 755 {} +
find "$root" -type f ! -path '*/bin/*' -exec chmod 644 {} +
find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +

# The archive, for every Linux.
name=requeue-$version-$TARGET
archive=$root-archive/$name
rm -rf "$root-archive"
mkdir -p "$archive"/{man,completions,systemd}
cp -p "$root/usr/bin/requeue" LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$archive"
cp -p "$man"/* "$archive/man"
cp -p "$root"/usr/share/*/*completions*/*requeue* "$archive/completions"
cp -p packaging/systemd/* "$archive/systemd"
tar --sort=name --owner=0 --group=0 --numeric-owner --mode=go+rX,go-w --mtime="@$SOURCE_DATE_EPOCH" \
    -C "$root-archive" -c "$name" | gzip -9n >"$dist/$name.tar.gz"

# The Debian package.
case $TARGET in
x86_64-*) architecture=amd64 ;;
aarch64-*) architecture=arm64 ;;
*) architecture= ;;
esac
if [ -n "$architecture" ] && command -v dpkg-deb >/dev/null; then
    size=$(du -sk "$root" | cut -f1)
    mkdir "$root/DEBIAN"
    {
        # In Debian's order, a version with ~ is before the one without.
        printf 'Package: requeue\nVersion: %s\nArchitecture: %s\n' "${version/-/\~}" "$architecture"
        printf 'Maintainer: %s\n' "${MAINTAINER:-the requeue authors <requeue@localhost>}"
        [ -z "$repository" ] || printf 'Homepage: %s\n' "$repository"
        printf 'Section: utils\nPriority: optional\nInstalled-Size: %s\n' "$size"
        printf 'Description: Runs a command per key: deduplicated, one at a time, retried\n'
        printf ' requeue is a work queue of keys, modelled on the workqueue of client-go. It\n'
        printf ' runs commands for keys from its input, from a queue in SQLite, PostgreSQL or\n'
        printf ' Redis, for Kubernetes objects, and for files that change.\n'
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    install -m 755 -t "$root/DEBIAN" packaging/debian/*
    # GitHub replaces a ~ in the name of a file with a dot, and SHA256SUMS would name a file that does not exist.
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/requeue_${version/-/.}_$architecture.deb" >/dev/null
    rm -r "$root/DEBIAN"
fi

# The context of packaging/Containerfile.
mkdir -p "$root-image/licenses"
cp "$program" "$root-image/requeue"
cp LICENSE-APACHE LICENSE-MIT "$root-image/licenses"

# The bill of materials: the crates that are linked into the program, with the features and for the target of the build.
# cargo-cyclonedx writes a file next to the sources of each program.
scripts/setup.sh sbom
trap 'find . -name "*_bin.cdx.json" ! -path "./target*" -delete' EXIT
cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --target "$TARGET" \
    --manifest-path crates/requeue-cli/Cargo.toml
sed "s|$PWD|requeue|g" crates/requeue-cli/requeue_bin.cdx.json >"$dist/$name.cdx.json"

(cd "$dist" && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
rm -rf "$root-archive"
mv "$root-image" "$dist/image"

scripts/dist-test.sh "$dist"
(cd "$dist" && ls -l -- * | sed 's/^/    /')
