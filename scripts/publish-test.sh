#!/usr/bin/env bash
# Tests scripts/publish.sh with fake registries, for a release and for a prerelease: scripts/publish-test.sh [DIR]
#
# DIR is the `target/dist` of a build. With it, also pushes the image and the chart to a registry on this machine,
# publishes the packages of npm without uploading them, and evaluates the formula of Homebrew.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
dist=${1:+$(cd "$1" && pwd)}
version=$(scripts/release-info.sh version)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The scripts run in a copy, whose Cargo.toml has the address of a repository.
address=https://example.org/queues/requeue
mkdir "$dir/root" "$dir/bin"
cp -r scripts packaging LICENSE-APACHE LICENSE-MIT "$dir/root"
publish=$dir/root/scripts/publish.sh
export CARGO_TARGET_DIR=$dir/target

# Gives the copy a version.
set_version() {
    awk -v address="$address" -v version="$1" '
        /^\[/ { inside = $0 == "[workspace.package]" }
        inside && /^(repository|version) = / { next }
        { print }
        $0 == "[workspace.package]" { printf "repository = \"%s\"\nversion = \"%s\"\n", address, version }
    ' Cargo.toml >"$dir/root/Cargo.toml"
    printf '## [%s] - 2000-01-01\n\nnotes of %s\n\n## [0.0.0]\n\nother notes\n' "$1" "$1" >"$dir/root/CHANGELOG.md"
}

# Runs the script with the fake programs, and compares the commands that publish: publishes EXPECTED ARGUMENT...
publishes() {
    : >"$dir/published"
    PATH=$dir/bin:$PATH "$publish" "${@:2}" >"$dir/log" 2>&1 || printf 'failed\n' >>"$dir/published"
    local expected=$1
    [ "$(cat "$dir/published")" = "$expected" ] ||
        fail "$(printf 'expected: %s\nfound: %s\n' "$expected" "$(cat "$dir/published" "$dir/log")")"
}

# Crates. The last argument of curl is the URL. A crate without a file is not in the index.
printf '#!/bin/sh\nprintf "%%s\\n" "$*" >>"%s/published"\n' "$dir" >"$dir/bin/cargo"
cat >"$dir/bin/curl" <<END_CURL
#!/bin/sh
for url; do :; done
crate=\${url##*/}
[ "\$url" = "https://index.crates.io/re/qu/\$crate" ] || { printf '\n400'; exit; }
[ ! -e "$dir/status" ] || { cat "$dir/status"; exit; }
[ -e "$dir/index/\$crate" ] || { printf 'no such key\n404'; exit; }
cat "$dir/index/\$crate"
printf '\n200'
END_CURL
mapfile -t crates < <(scripts/release-info.sh crates)
test_crates() {
    local all='publish --locked --no-verify' crate last
    rm -rf "$dir/index" "$dir/status"
    mkdir "$dir/index"
    # The first publication publishes all crates.
    publishes "$all$(printf ' -p %s' "${crates[@]}")" crates
    # The first publication failed at the last crate. A version that only begins with the same digits does not count.
    for crate in "${crates[@]}"; do
        printf '{"name":"%s","vers":"%s0"}\n{"name":"%s","vers":"%s"}\n' "$crate" "$version" "$crate" "$version" >"$dir/index/$crate"
    done
    last=${crates[-1]}
    printf '{"name":"%s","vers":"%s0"}\n' "$last" "$version" >"$dir/index/$last"
    publishes "$all -p $last" crates
    # All crates are in the index.
    cp "$dir/index/${crates[0]}" "$dir/index/$last"
    publishes '' crates
    # If the index does not answer as expected, no crate is published.
    printf 'busy\n503' >"$dir/status"
    publishes failed crates
}

# npm. `npm view NAME@VERSION version` prints nothing if the package has other versions, and fails if it does not exist.
cat >"$dir/bin/npm" <<END_NPM
#!/bin/sh
[ "\$1" != publish ] || { printf '%s\n' "\$*" >>"$dir/published"; exit; }
[ ! -e "$dir/npm.error" ] || { cat "$dir/npm.error"; exit 1; }
file=$dir/npm/\$(printf '%s' "\${2%@*}" | tr / +)
[ -e "\$file" ] || { echo 'npm error code E404' >&2; exit 1; }
grep -x "\${2##*@}" "\$file" || true
END_NPM
test_npm() {
    local name file tgz=$dir/root/release tag
    tag=$(npm_tag "$version")
    rm -rf "$dir/npm" "$dir/npm.error" "$tgz"
    mkdir "$dir/npm"
    for name in main platform; do
        mkdir -p "$dir/packed/package" "$tgz"
        fill "$version" "$address" OS=linux CPU=x64 <"packaging/npm/$name/package.json" >"$dir/packed/package/package.json"
        file=requeue-cli-$version.tgz
        [ $name = main ] || file=requeue-cli-linux-x64-$version.tgz
        tar -czf "$tgz/$file" -C "$dir/packed" package
    done
    published() { printf 'publish --ignore-scripts --provenance %s' "${tag:+$tag }$tgz/requeue-cli${1:+-$1}-$version.tgz"; }
    # The main package is the last one, because it depends on the other.
    publishes "$(published linux-x64; echo; published)" npm release
    # The first publication failed at the main package, of which another version exists.
    printf '%s\n' "$version" >"$dir/npm/@requeue+cli-linux-x64"
    printf '%s0\n' "$version" >"$dir/npm/requeue-cli"
    publishes "$(published)" npm release
    printf '%s\n' "$version" >"$dir/npm/requeue-cli"
    publishes '' npm release
    printf 'npm error code E503\n' >"$dir/npm.error"
    publishes failed npm release
    publishes failed npm "$dir/index"
}

# Homebrew and the draft of the release. A directory takes the place of the repository with the formulas.
export HOMEBREW_TAP=$dir/tap.git PUBLISHED=$dir/published GITHUB_REF_NAME
cat >"$dir/bin/gh" <<'END_GH'
#!/bin/sh
case "$1 $2" in
'repo clone') git clone --quiet "$3" "$4" 2>/dev/null ;;
'pr list') git -C "$HOMEBREW_TAP" for-each-ref "refs/pulls/$4" | wc -l ;;
'pr create')
    git -C "$HOMEBREW_TAP" update-ref "refs/pulls/$6" "refs/heads/$6"
    printf '%s\n' "$*" >>"$PUBLISHED"
    ;;
'release view') cat "$PUBLISHED.release" && grep -qxE 'true|false' "$PUBLISHED.release" ;;
'release create' | 'release upload') printf '%s\n' "$*" >>"$PUBLISHED" ;;
esac
END_GH
test_draft() {
    local kind=''
    GITHUB_REF_NAME=v$version
    [[ $version != *-* ]] || kind=' --prerelease'
    rm -rf "$dir/root/release"
    mkdir "$dir/root/release"
    : >"$dir/root/release/a"
    printf 'release not found\n' >"$PUBLISHED.release"
    publishes "release create v$version --draft --verify-tag --title requeue $version --notes $(printf '\nnotes of %s' "$version")$kind release/a" draft release
    # A run that failed midway has made the draft.
    printf 'true\n' >"$PUBLISHED.release"
    publishes "release upload v$version --clobber release/a" draft release
    printf 'false\n' >"$PUBLISHED.release"
    publishes failed draft release
    printf 'HTTP 503\n' >"$PUBLISHED.release"
    publishes failed draft release
}

formula=$dir/requeue.rb
test_homebrew() {
    local triple sums created
    rm -rf "$HOMEBREW_TAP" "$dir/files"
    git init --quiet --bare --initial-branch main "$HOMEBREW_TAP"
    mkdir "$dir/files"
    local targets='aarch64-apple-darwin x86_64-apple-darwin aarch64-unknown-linux-musl x86_64-unknown-linux-musl'
    for triple in $targets; do printf '%s\n' "$triple" >"$dir/files/requeue-$version-$triple.tar.gz"; done
    sums=$(cd "$dir/files" && sha256sum -- *)
    printf '%s\n' "$sums" >"$dir/files/SHA256SUMS"
    created="pr create --repo $HOMEBREW_TAP --head requeue-$version --title requeue $version --body $address/releases/tag/v$version"
    publishes "$created" homebrew "$dir/files"
    git -C "$HOMEBREW_TAP" show "requeue-$version:Formula/requeue.rb" >"$formula"
    ! grep -n '@[A-Z0-9]*@' "$formula" || fail 'the formula has placeholders'
    for triple in $targets; do
        grep -A1 -F "url \"$address/releases/download/v$version/requeue-$version-$triple.tar.gz\"" "$formula" |
            grep -qF "sha256 \"$(sha256sum <"$dir/files/requeue-$version-$triple.tar.gz" | cut -d' ' -f1)\"" ||
            fail "the formula has not the archive of $triple and its checksum"
    done
    # A closed request is made again. An open one exists already, and after its merge nothing changes.
    git -C "$HOMEBREW_TAP" update-ref -d "refs/pulls/requeue-$version"
    publishes "$created" homebrew "$dir/files"
    publishes '' homebrew "$dir/files"
    git -C "$HOMEBREW_TAP" branch --quiet --force main "requeue-$version"
    publishes '' homebrew "$dir/files"
    grep -q 'already' "$dir/log" || fail "$(cat "$dir/log")"
    # A release without an archive has no formula.
    sed -i.bak 1d "$dir/files/SHA256SUMS"
    publishes failed homebrew "$dir/files"
}

chmod +x "$dir/bin"/*
# The last round leaves the formula of this version.
other=${version%%-*}
[ "$other" != "$version" ] || other=$version-rc.1
for version in "$other" "$version"; do
    set_version "$version"
    test_crates
    test_npm
    test_draft
    test_homebrew
done

[ -n "$dist" ] || exit 0

tag=$(npm_tag "$version")
for package in "$dist"/*.tgz "$dist"/any/requeue-cli-*.tgz; do
    npm publish --dry-run --ignore-scripts --silent ${tag:+"$tag"} "$package" >/dev/null || fail "npm would not publish $package"
done

# Evaluates the formula for each system and processor, and checks that the archive has the files that it installs.
if scripts/setup.sh ruby; then
    ruby -wc "$formula" >/dev/null
    cat >"$dir/evaluate.rb" <<'END_RUBY'
system, processor, formula, archive = ARGV
CHOICE = [system, processor]
class Formula
  class << self
    def desc(_) = nil
    def homepage(_) = nil
    def version(_) = nil
    def license(_) = nil
    def test = nil
    def url(value) = puts(value)
    def sha256(value) = puts(value)
    %w[macos linux arm intel].each { |name| define_method("on_#{name}") { |&block| block.call if CHOICE.include?(name) } }
  end
  Directory = Struct.new(:name) do
    def install(*files)
      files.flatten!
      missing = files.reject { |file| File.exist?(file) }
      abort("#{name}: the archive has no #{missing.join(" and no ")}") if files.empty? || missing.any?
    end
  end
  %i[bin man1 bash_completion zsh_completion fish_completion].each { |name| define_method(name) { Directory.new(name) } }
end
load formula
Dir.chdir(archive) { Requeue.new.install }
END_RUBY
    mkdir "$dir/archive"
    tar -xzf "$dist"/requeue-"$version"-*.tar.gz -C "$dir/archive" --strip-components=1
    for choice in 'macos arm aarch64-apple-darwin' 'macos intel x86_64-apple-darwin' \
        'linux arm aarch64-unknown-linux-musl' 'linux intel x86_64-unknown-linux-musl'; do
        read -r system processor triple <<<"$choice"
        found=$(ruby "$dir/evaluate.rb" "$system" "$processor" "$formula" "$dir/archive")
        file=requeue-$version-$triple.tar.gz
        expected=$address/releases/download/v$version/$file$'\n'$(sha256sum <"$dir/files/$file" | cut -d' ' -f1)
        [ "$found" = "$expected" ] || fail "the formula loads for $system on $processor: $found"
    done
else
    not_run 'the formula was not evaluated: there is no ruby'
fi

# Pushes the image of two processors and the chart, and pulls them.
if [ ! -d "$dist/image" ]; then
    exit 0
elif scripts/setup.sh registry buildah skopeo; then
    cp -r "$dist/image" "$dir"
    mkdir "$dir/other"
    cp -r "$dir/image" "$dir/other"
    # Bytes 18 and 19 of a program name its processor: 62 is x86-64, and 183 is aarch64.
    if [ "$(od -An -tu1 -j18 -N1 "$dir/image/requeue" | tr -d ' ')" = 62 ]; then number='\267'; else number='\076'; fi
    # shellcheck disable=SC2059
    printf "$number" | dd of="$dir/other/image/requeue" bs=1 seek=18 conv=notrunc status=none
    exec 5< <(exec "$tools/bin/registry" -port 0 2>&1)
    registry=$!
    trap 'kill "$registry"; rm -rf "$dir"' EXIT
    read -r -u 5 line
    export REGISTRY=localhost:${line##* } BASE=scratch
    manifest() { curl --silent --fail --header 'Accept: application/vnd.oci.image.index.v1+json' "http://$REGISTRY/v2/requeue/manifests/$1"; }
    # Pushes a version of the image, and compares the version that is `latest` afterwards: pushes VERSION LATEST
    pushes() {
        set_version "$1"
        "$publish" image "$dir" "$dir/other" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
        grep -qxF "digest=sha256:$(manifest "$1" | sha256sum | cut -d' ' -f1)" "$dir/log" || fail "another digest: $(cat "$dir/log")"
        [ "$(manifest latest)" = "${2:+$(manifest "$2")}" ] || fail "after version $1, latest is not ${2:-missing}"
    }
    pushes 1.10.0-rc.1 ''
    pushes 1.10.0 1.10.0
    # A patch of an older version, and a prerelease of a newer one.
    pushes 1.9.1 1.10.0
    pushes 1.11.0-rc.1 1.10.0
    index=$(manifest 1.10.0)
    for processor in amd64 arm64; do
        grep -q "\"architecture\": *\"$processor\"" <<<"$index" || fail "the image has no $processor: $index"
    done
    # A version that is published keeps its digest, even if another build has other files.
    printf 'another licence\n' >"$dir/image/licenses/LICENSE-MIT"
    pushes 1.10.0 1.10.0
    [ "$(manifest 1.10.0)" = "$index" ] || fail 'a published version was replaced'
    set_version "$version"
    "$publish" chart "$dist/any" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    "$publish" chart "$dist/any" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    grep -q 'already' "$dir/log" || fail 'the published chart was pushed again'
    helm pull --plain-http --destination "$dir" "oci://$REGISTRY/charts/requeue-watch" --version "$version" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    cmp "$dir/requeue-watch-$version.tgz" "$dist/any/requeue-watch-$version.tgz"
else
    not_run 'the image and the chart were not pushed: there is no registry, no buildah or no skopeo'
fi
