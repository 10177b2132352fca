#!/usr/bin/env bash
# Tests scripts/publish.sh with fake registries: scripts/publish-test.sh [DIR]
#
# DIR is the `target/dist` of a build. With it, also pushes the image and the chart to a registry on this machine,
# publishes the packages of npm without uploading them, and evaluates the formula of Homebrew.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
dist=${1-}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# The scripts run in a copy, whose Cargo.toml has the address of a repository.
address=https://example.org/queues/requeue
mkdir "$dir/root" "$dir/bin" "$dir/index" "$dir/npm"
cp -r scripts packaging LICENSE-APACHE LICENSE-MIT "$dir/root"
awk -v address="$address" '{ print } /^\[workspace.package\]/ { printf "repository = \"%s\"\n", address }' Cargo.toml >"$dir/root/Cargo.toml"
publish=$dir/root/scripts/publish.sh
version=$(scripts/release-info.sh version)

# Runs the script with the fake programs, and compares the commands that publish: publishes EXPECTED ARGUMENT...
publishes() {
    : >"$dir/published"
    CARGO_TARGET_DIR=$dir/target PATH=$dir/bin:$PATH "$publish" "${@:2}" >"$dir/log" 2>&1 || printf 'failed\n' >>"$dir/published"
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
chmod +x "$dir/bin"/*
mapfile -t crates < <(scripts/release-info.sh crates)
all='publish --locked --no-verify'

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

# npm. `npm view NAME@VERSION version` prints nothing if the package has other versions, and fails if it does not exist.
cat >"$dir/bin/npm" <<END_NPM
#!/bin/sh
[ "\$1" != publish ] || { printf '%s\n' "\$*" >>"$dir/published"; exit; }
[ ! -e "$dir/npm.error" ] || { cat "$dir/npm.error"; exit 1; }
file=$dir/npm/\$(printf '%s' "\${2%@*}" | tr / +)
[ -e "\$file" ] || { echo 'npm error code E404' >&2; exit 1; }
grep -x "\${2##*@}" "\$file" || true
END_NPM
chmod +x "$dir/bin/npm"
for name in main platform; do
    mkdir -p "$dir/packed/package" "$dir/tgz"
    fill "$version" "$address" OS=linux CPU=x64 <"packaging/npm/$name/package.json" >"$dir/packed/package/package.json"
    file=requeue-cli-$version.tgz
    [ $name = main ] || file=requeue-cli-linux-x64-$version.tgz
    tar -czf "$dir/tgz/$file" -C "$dir/packed" package
done
published() { printf 'publish --ignore-scripts --provenance %s' "$dir/tgz/requeue-cli${1:+-$1}-$version.tgz"; }
# The main package is the last one, because it depends on the other.
publishes "$(published linux-x64; echo; published)" npm "$dir/tgz"
# The first publication failed at the main package, of which another version exists.
printf '%s\n' "$version" >"$dir/npm/@requeue+cli-linux-x64"
printf '%s0\n' "$version" >"$dir/npm/requeue-cli"
publishes "$(published)" npm "$dir/tgz"
printf '%s\n' "$version" >"$dir/npm/requeue-cli"
publishes '' npm "$dir/tgz"
printf 'npm error code E503\n' >"$dir/npm.error"
publishes failed npm "$dir/tgz"
publishes failed npm "$dir/index"
rm "$dir/bin/npm"

# Homebrew. A directory takes the place of the repository with the formulas.
export HOMEBREW_TAP=$dir/tap.git
git init --quiet --bare --initial-branch main "$HOMEBREW_TAP"
cat >"$dir/bin/gh" <<'END_GH'
#!/bin/sh
case "$1 $2" in
'repo clone') git clone --quiet "$3" "$4" 2>/dev/null ;;
'pr view') git -C "$HOMEBREW_TAP" rev-parse --quiet --verify "refs/pulls/$3" ;;
'pr create')
    git -C "$HOMEBREW_TAP" update-ref "refs/pulls/$6" "refs/heads/$6"
    printf '%s\n' "$*" >>"$PUBLISHED"
    ;;
esac
END_GH
chmod +x "$dir/bin/gh"
export PUBLISHED=$dir/published
mkdir "$dir/files"
targets='aarch64-apple-darwin x86_64-apple-darwin aarch64-unknown-linux-musl x86_64-unknown-linux-musl'
for triple in $targets; do printf '%s\n' "$triple" >"$dir/files/requeue-$version-$triple.tar.gz"; done
sums=$(cd "$dir/files" && sha256sum -- *)
printf '%s\n' "$sums" >"$dir/files/SHA256SUMS"
created="pr create --repo $HOMEBREW_TAP --head requeue-$version --title requeue $version --body $address/releases/tag/v$version"
publishes "$created" homebrew "$dir/files"
formula=$dir/requeue.rb
git -C "$HOMEBREW_TAP" show "requeue-$version:Formula/requeue.rb" >"$formula"
! grep -n '@[A-Z0-9]*@' "$formula" || fail 'the formula has placeholders'
for triple in $targets; do
    grep -A1 -F "url \"$address/releases/download/v$version/requeue-$version-$triple.tar.gz\"" "$formula" |
        grep -qF "sha256 \"$(sha256sum <"$dir/files/requeue-$version-$triple.tar.gz" | cut -d' ' -f1)\"" ||
        fail "the formula has not the archive of $triple and its checksum"
done
# The request exists already. After its merge, nothing changes.
publishes '' homebrew "$dir/files"
git -C "$HOMEBREW_TAP" branch --quiet --force main "requeue-$version"
publishes '' homebrew "$dir/files"
grep -q 'already' "$dir/log" || fail "$(cat "$dir/log")"
# A release without an archive has no formula.
sed -i.bak 1d "$dir/files/SHA256SUMS"
publishes failed homebrew "$dir/files"

[ -n "$dist" ] || exit 0

for package in "$dist"/*.tgz "$dist"/any/requeue-cli-*.tgz; do
    npm publish --dry-run --ignore-scripts --silent "$package" >/dev/null || fail "npm would not publish $package"
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
elif scripts/setup.sh registry buildah; then
    cp -r "$dist/image" "$dir"
    mkdir "$dir/other"
    cp -r "$dir/image" "$dir/other"
    # Bytes 18 and 19 of a program name its processor: 62 is x86-64, and 183 is aarch64.
    if [ "$(od -An -tu1 -j18 -N1 "$dir/image/requeue" | tr -d ' ')" = 62 ]; then number='\267'; else number='\076'; fi
    # shellcheck disable=SC2059
    printf "$number" | dd of="$dir/other/image/requeue" bs=1 seek=18 conv=notrunc status=none
    exec 5< <(exec registry -port 0 2>&1)
    registry=$!
    trap 'kill "$registry"; rm -rf "$dir"' EXIT
    read -r -u 5 line
    export REGISTRY=localhost:${line##* } BASE=scratch
    CARGO_TARGET_DIR=$dir/target "$publish" image "$dir" "$dir/other" >"$dir/log"
    index=$(curl --silent --fail --header 'Accept: application/vnd.oci.image.index.v1+json' "http://$REGISTRY/v2/requeue/manifests/$version")
    for processor in amd64 arm64; do
        grep -q "\"architecture\": *\"$processor\"" <<<"$index" || fail "the image has no $processor: $index"
    done
    grep -qxF "digest=sha256:$(printf '%s' "$index" | sha256sum | cut -d' ' -f1)" "$dir/log" || fail "another digest: $(cat "$dir/log")"
    CARGO_TARGET_DIR=$dir/target "$publish" chart "$dist/any" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    helm pull --plain-http --destination "$dir" "oci://$REGISTRY/charts/requeue-watch" --version "$version" >"$dir/log" 2>&1 || fail "$(cat "$dir/log")"
    cmp "$dir/requeue-watch-$version.tgz" "$dist/any/requeue-watch-$version.tgz"
else
    not_run 'the image and the chart were not pushed: there is no registry or no buildah'
fi
