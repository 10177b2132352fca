#!/usr/bin/env bash
# Tests the packages that `make dist` has built: scripts/dist-test.sh DIR. The archive must run. The Debian package must
# run in an empty root, and leave no files behind after its removal. The container must run on an empty base. Also
# collects the files of a release, as the workflow does.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
dist=$1

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The program runs without any of its files.
works() {
    local said
    # No key is added twice, because on a slow machine the first run of a key can complete before its second add.
    said=$(printf 'a\nb\n' | env -i PATH="$PATH" "$@" run -j1 echo) || fail "$* failed"
    [ "$said" = $'a\nb' ] || fail "$* printed: $said"
    "$@" --version | grep -qxF "requeue $(scripts/release-info.sh version)" || fail "$* is of another version"
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)

# A release of two targets. The second one has copies of these files, with other names.
cp -r "$dist" "$dir/other"
(
    cd "$dir/other"
    rm SHA256SUMS
    for file in *; do [ ! -f "$file" ] || mv "$file" "other-$file"; done
    sha256sum -- other-* >SHA256SUMS
)
scripts/release-files.sh "$dir/release" "$dist" "$dir/other"
(cd "$dir/release" && sha256sum --quiet --check SHA256SUMS)
files() { find "$@" -maxdepth 1 -type f ! -name SHA256SUMS | wc -l; }
[ "$(files "$dir/release")" = "$(files "$dist" "$dir/other")" ] || fail 'the release has not all files of both targets'
[ "$(wc -l <"$dir/release/SHA256SUMS")" = "$(files "$dir/release")" ] || fail 'a file of the release has no checksum'
[ -z "$(find "$dir/release" -mindepth 1 -type d)" ] || fail 'the release has a directory'
if scripts/release-files.sh "$dir/twice" "$dist" "$dist" 2>/dev/null; then
    fail 'two builds of one target were accepted'
fi
mkdir "$dir/renamed"
for name in 'requeue_1.0.0~rc.1_amd64.deb' 'a b' 'a+b'; do
    printf 'a file\n' >"$dir/renamed/$name"
    (cd "$dir/renamed" && sha256sum -- "$name" >SHA256SUMS)
    if scripts/release-files.sh "$dir/refused" "$dir/renamed" 2>/dev/null; then
        fail "a file was accepted whose name GitHub changes: $name"
    fi
    rm -r "$dir/refused" "$dir/renamed/$name"
done

for archive in "$dist"/*.tar.gz; do
    mkdir "$dir/archive"
    tar -xzf "$archive" -C "$dir/archive" --strip-components=1
    works "$dir/archive/requeue"
done

for package in "$dist"/*.deb; do
    [ -e "$package" ] || continue
    root=$dir/root
    mkdir -p "$root/var/lib/dpkg"/{info,updates,triggers}
    : >"$root/var/lib/dpkg/status"
    : >"$root/var/lib/dpkg/available"
    (cd "$root" && find . ! -path './var/*' | sort) >"$dir/before"
    # Maintainer scripts read DPKG_ROOT, and do not change this system.
    dpkg=(dpkg --root="$root" --log=/dev/null --force-not-root --force-script-chrootless)
    "${dpkg[@]}" --install "$package" >/dev/null
    works "$root/usr/bin/requeue"
    for page in "$root"/usr/share/man/man1/*.gz; do gzip -t "$page"; done
    [ -e "$root/usr/share/man/man1/requeue-work.1.gz" ] || fail 'the package has no manual page of requeue work'
    bash -n "$root/usr/share/bash-completion/completions/requeue"
    if command -v systemd-analyze >/dev/null; then
        # Creates an instance of each unit, with the path of the installed program.
        mkdir "$dir/units"
        for unit in "$root"/usr/lib/systemd/system/*@.service; do
            sed "s|/usr/bin/requeue|$root/usr/bin/requeue|" "$unit" >"$dir/units/$(basename "$unit")"
            cp "$dir/units/$(basename "$unit")" "$dir/units/$(basename "$unit" @.service)@an-instance.service"
        done
        SYSTEMD_UNIT_PATH=$dir/units: systemd-analyze verify --man=no "$dir"/units/*@an-instance.service
        # The units promise devices and just-in-time compilers to commands. Before systemd 252, ProtectClock denies devices.
        ! grep -HE '^(PrivateDevices|ProtectClock|DeviceAllow|DevicePolicy|MemoryDenyWriteExecute)=' "$dir"/units/*@.service ||
            fail 'a unit has one of the limits above, which break commands'
        # Without capability bounds or a filter of system calls, the exposure of a unit is over 4.5.
        for unit in "$dir"/units/*@an-instance.service; do
            systemd-analyze security --offline=true --threshold=45 "$unit" >"$dir/exposure" ||
                fail "$(basename "$unit"): $(tail -n 1 "$dir/exposure")"
        done
    else
        printf 'the units were not verified: there is no systemd-analyze\n' | tee -a "${REQUEUE_NOT_RUN:-/dev/null}"
    fi
    "${dpkg[@]}" --purge requeue >/dev/null
    (cd "$root" && find . ! -path './var/*' | sort) >"$dir/after"
    diff "$dir/before" "$dir/after" || fail 'the removed package left these files behind'
done

# The base of the Containerfile comes from a registry. This test uses an empty base.
if command -v buildah >/dev/null; then
    images=(buildah --root "$dir/images" --runroot "$dir/runs" --storage-driver vfs)
    "${images[@]}" bud --quiet --isolation chroot --build-arg BASE=scratch --tag requeue \
        --file packaging/Containerfile "$dist/image" >/dev/null
    format='{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}'
    found=$("${images[@]}" inspect --type image --format "$format" requeue)
    [ "$found" = '65532:65532 [/usr/bin/requeue]' ] || fail "the image has user and entry point: $found"
    container=$("${images[@]}" from requeue)
    # The command is the only program of the image.
    said=$(printf 'bash\nzsh\n' | "${images[@]}" run --isolation chroot "$container" -- \
        /usr/bin/requeue run -j1 --summary json -- /usr/bin/requeue completions 2>&1 >/dev/null)
    [[ $said == *'"runs":2'* ]] || fail "requeue in the image printed: $said"
    "${images[@]}" rm "$container" >/dev/null
else
    printf 'the image was not built: there is no buildah\n' | tee -a "${REQUEUE_NOT_RUN:-/dev/null}"
fi
