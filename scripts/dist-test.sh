#!/usr/bin/env bash
# Tests the packages that `make dist` has built: scripts/dist-test.sh DIR. The archive must run. The packages for Debian
# and RPM must run in an empty root, and leave no files behind after their removal. Those for npm and pip must install
# without a network. The container must run on an empty base. Also collects the files of a release, and publishes them to
# registries on this machine, as the workflow does.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
dist=$1
version=$(scripts/release-info.sh version)

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Installs the program of a test, and otherwise reports that the test did not run: has 'REPORT' TOOL
has() {
    scripts/setup.sh "$2" || {
        not_run "$1"
        return 1
    }
}

# The program runs without any of its files.
works() {
    local said
    # No key is added twice, because on a slow machine the first run of a key can complete before its second add.
    said=$(printf 'a\nb\n' | env -i PATH="$PATH" "$@" run -j1 echo) || fail "$* failed"
    [ "$said" = $'a\nb' ] || fail "$* printed: $said"
    "$@" --version | grep -qxF "requeue $version" || fail "$* is of another version"
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
scripts/release-files.sh "$dir/release" "$dist" "$dir/other" "$dist/any"
(cd "$dir/release" && sha256sum --quiet --check SHA256SUMS)
files() { find "$@" -maxdepth 1 -type f ! -name SHA256SUMS | wc -l; }
[ "$(files "$dir/release")" = "$(files "$dist" "$dir/other" "$dist/any")" ] || fail 'the release has not all files of both targets'
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

archive=$(basename "$dist"/requeue-*.tar.gz .tar.gz)
mkdir "$dir/archive"
tar -xzf "$dist/$archive.tar.gz" -C "$dir/archive"
program=$dir/archive/$archive/requeue
works "$program"

# `cargo binstall` finds the archive and the program in it by these templates.
template() {
    sed -n "s/^$1 = \"\(.*\)\"$/\1/p" crates/requeue-cli/Cargo.toml |
        sed "s/{ version }/$version/g; s/{ target }/${archive#requeue-"$version"-}/g; s/{ bin }/requeue/; s/{ binary-ext }//"
}
[ "$(template pkg-url)" = "{ repo }/releases/download/v$version/$archive.tar.gz" ] || fail "cargo binstall would load $(template pkg-url)"
[ -x "$dir/archive/$(template bin-dir)" ] || fail "cargo binstall would install $(template bin-dir)"

for package in "$dist"/*.deb; do
    [ -e "$package" ] || continue
    command -v dpkg >/dev/null || {
        not_run 'the Debian package was not installed: there is no dpkg'
        continue
    }
    root=$dir/debian
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
        not_run 'the units were not verified: there is no systemd-analyze'
    fi
    "${dpkg[@]}" --purge requeue >/dev/null
    (cd "$root" && find . ! -path './var/*' | sort) >"$dir/after"
    diff "$dir/before" "$dir/after" || fail 'the removed package left these files behind'
done

for package in "$dist"/*.rpm; do
    [ -e "$package" ] || continue
    has 'the RPM package was not installed: there is no rpm' rpm || continue
    root=$dir/rpm
    mkdir -p "$root/var"
    rpm=(rpm --root "$root" --dbpath /var/lib/rpm)
    # The empty root has no shell for the script of the package. Debian's RPM advises against its own use.
    changes=("${rpm[@]}" --noscripts --nodeps --nosignature)
    "${changes[@]}" --install "$package" 2>"$dir/log" || fail "$(cat "$dir/log")"
    works "$root/usr/bin/requeue"
    "${rpm[@]}" --verify --nodeps --nouser --nogroup requeue || fail 'the files of the RPM package are not those that it lists'
    [[ $("${rpm[@]}" --query --scripts requeue) == *'systemctl stop'* ]] || fail 'the removal of the RPM package stops no unit'
    # On Fedora, other packages own these directories, with other modes.
    ! "${rpm[@]}" --query --list requeue | grep -xE '/usr(/(bin|lib|share|share/man))?' ||
        fail 'the RPM package owns the directories above'
    "${changes[@]}" --erase requeue 2>"$dir/log" || fail "$(cat "$dir/log")"
    # RPM does not remove directories of other packages, which it has created here.
    left=$(find "$root" ! -path "$root/var/*" \( ! -type d -o -name '*requeue*' \))
    [ -z "$left" ] || fail "the removed RPM package left these files behind: $left"
done

# The packages of npm, without a network, and without a cache that could have the packages of other systems.
for package in "$dist"/requeue-cli-*.tgz; do
    [ -e "$package" ] || continue
    mkdir "$dir/npm"
    cp "$package" "$dist"/any/requeue-cli-*.tgz "$dir/npm"
    (
        cd "$dir/npm"
        npm install --silent --offline --ignore-scripts --no-audit --no-fund --cache "$dir/npm-cache" ./*.tgz >/dev/null
        npx --offline requeue --version >/dev/null
    )
    wrapper=$dir/npm/node_modules/.bin/requeue
    works "$wrapper"
    code=0
    "$wrapper" no-such-command 2>/dev/null || code=$?
    [ "$code" = 2 ] || fail "the package of npm has the exit code $code, and the program has 2"
    # The wrapper has become the program, so it receives each signal, and its death is that of the program.
    mkfifo "$dir/started" "$dir/continue"
    printf 'a\n' | "$wrapper" run -j1 -- sh -c "echo >'$dir/started'; cat '$dir/continue'" >/dev/null 2>&1 &
    within 60 cat "$dir/started"
    [[ $(ps -o args= -p $!) == */node_modules/@requeue/cli-*/bin/requeue* ]] || fail "the wrapper of npm runs as: $(ps -o args= -p $!)"
    : >"$dir/continue"
    wait $! || fail 'the package of npm has not ended with the exit code 0'
    rm "$dir"/npm/node_modules/@requeue/*/bin/requeue
    code=0
    said=$("$wrapper" 2>&1) || code=$?
    [[ $code = 127 && $said == *'is not installed'* ]] || fail "without a program, the package of npm printed: $said"
done

for wheel in "$dist"/*.whl; do
    [ ! -e "$wheel" ] || scripts/python.sh --wheel "$wheel"
done

chart=$dist/any/requeue-watch-$version.tgz
helm lint --quiet --strict --values packaging/chart/ci/all-values.yaml "$chart"
objects=$(helm template --kube-version 1.29.0 --values packaging/chart/ci/all-values.yaml web "$chart")
grep -q '^kind: Deployment$' <<<"$objects" || fail 'the packaged chart has no Deployment'

# Evaluates the packages of the flake with a nixpkgs that only returns their attributes. Nothing is written.
if has 'the flake was not evaluated: there is no nix' nix; then
    found=$(nix-instantiate --store dummy:// --eval --strict --expr '
        let
          lib.genAttrs = names: value: builtins.listToAttrs (map (name: { inherit name; value = value name; }) names);
          lib.licenses = { mit = "MIT"; asl20 = "Apache-2.0"; };
          pkgs = { rustPlatform.buildRustPackage = attributes: attributes; installShellFiles = ""; };
          outputs = (import ./flake.nix).outputs {
            self = ./.;
            nixpkgs = { inherit lib; legacyPackages = lib.genAttrs (builtins.attrNames outputs.packages) (system: pkgs); };
          };
          described = package: "${package.version} ${toString (builtins.pathExists package.cargoLock.lockFile)}";
        in
        map (system: described system.default) (builtins.attrValues outputs.packages)' 2>"$dir/nix") ||
        fail "$(cat "$dir/nix")"
    one="\"$version 1\""
    [ "$found" = "[ $one $one $one $one ]" ] || fail "the packages of the flake have these versions: $found"
fi

# The base of the Containerfile comes from a registry. This test uses an empty base.
if [ -d "$dist/image" ] && has 'the image was not built: there is no buildah' buildah; then
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
fi

scripts/publish-test.sh "$dist"
