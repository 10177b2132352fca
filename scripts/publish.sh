#!/usr/bin/env bash
# Publishes a release on one channel: scripts/publish.sh CHANNEL [DIR...]. Each DIR has files of scripts/dist.sh.
#
#   draft DIR     the draft of the release on GitHub, for the tag $GITHUB_REF_NAME
#   crates        the crates
#   npm DIR       the packages of npm
#   image DIR...  the container, from the context `image` for each processor, to $REGISTRY
#   chart DIR     the chart, to $REGISTRY
#   formula DIR   prints the formula of Homebrew
#   homebrew DIR  proposes the formula to the repository $HOMEBREW_TAP, by a pull request
#
# A version that is published already is left out, and the files of a draft are replaced, so a run that failed midway can
# be repeated. Nothing is compiled, because the caller has a token, which build scripts of dependencies must not read.
# `make package` and `make dist` build the packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=$(scripts/release-info.sh version)
repository=$(scripts/release-info.sh repository)
channel=${1-}
shift || true

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

draft() {
    local notes answer kind=()
    if answer=$(gh release view "$GITHUB_REF_NAME" --json isDraft --jq .isDraft 2>&1); then
        [ "$answer" = true ] || fail "the release $GITHUB_REF_NAME is published already"
        gh release upload "$GITHUB_REF_NAME" --clobber "$1"/*
    elif [[ $answer == *'release not found'* ]]; then
        notes=$(scripts/release-info.sh notes "$version")
        case $version in *-*) kind+=(--prerelease) ;; esac
        gh release create "$GITHUB_REF_NAME" --draft --verify-tag --title "requeue $version" --notes "$notes" "${kind[@]}" "$1"/*
    else
        fail "the releases on GitHub cannot be read: $answer"
    fi
}

# Succeeds if the index of crates.io contains this version of a crate. The path of a crate in the index assumes a name
# of four or more characters.
crate_is_published() {
    local crate=$1 url answer status
    url=https://index.crates.io/${crate:0:2}/${crate:2:2}/$crate
    answer=$(curl --silent --show-error --retry 3 --header 'Cache-Control: no-cache' --write-out '\n%{http_code}' "$url") ||
        fail "$url: the index of crates.io cannot be read; try again later"
    status=${answer##*$'\n'}
    case $status in
    200) grep -qF "\"vers\":\"$version\"" <<<"$answer" ;;
    404 | 410 | 451) return 1 ;;
    *) fail "$url: the index of crates.io answers with status $status; try again later" ;;
    esac
}

crates() {
    local crate selected=()
    for crate in $(scripts/release-info.sh crates); do
        if crate_is_published "$crate"; then
            printf '%s %s is published already\n' "$crate" "$version"
        else
            selected+=(-p "$crate")
        fi
    done
    [ "${#selected[@]}" = 0 ] || cargo publish --locked --no-verify "${selected[@]}"
}

# Publishes the packages of the systems before the main one, which depends on them.
npm_packages() {
    local dir file package answer tag
    # npm reads a relative path as the name of a repository on GitHub.
    dir=$(cd "$1" && pwd)
    tag=$(npm_tag "$version")
    for file in "$dir"/requeue-cli-*-*-"$version".tgz "$dir/requeue-cli-$version.tgz"; do
        [ -e "$file" ] || fail "$file: no such package; scripts/dist.sh builds it"
        package=$(tar -xzOf "$file" package/package.json | sed -n 's/^  "name": "\(.*\)",$/\1/p')@$version
        if answer=$(npm view "$package" version 2>&1); then
            # A package without this version has no output.
            if [ -n "$answer" ]; then
                printf '%s is published already\n' "$package"
                continue
            fi
        elif [[ $answer != *E404* ]]; then
            fail "$package: the registry of npm cannot be read: $answer"
        fi
        npm publish --ignore-scripts --provenance ${tag:+"$tag"} "$file"
    done
}

# A registry on loopback, as in tests, has no TLS.
is_local() { [[ $REGISTRY == localhost:* ]]; }

# Runs skopeo with a reference in the registry as the last argument: registry COMMAND [OPTION...] REFERENCE
registry() {
    local tls=()
    ! is_local || tls=(--tls-verify=false)
    skopeo "${@:1:$#-1}" --retry-times 3 "${tls[@]}" "docker://$REGISTRY/${*: -1}"
}

# Succeeds if the registry contains a reference. A registry may deny access to what does not exist.
is_pushed() {
    local error
    if error=$(registry inspect --raw "$1" 2>&1 >/dev/null); then
        printf '%s/%s is published already\n' "$REGISTRY" "$1"
    elif [[ ${error,,} =~ (manifest|name)\ unknown|denied|unauthorized ]]; then
        return 1
    else
        fail "$REGISTRY/$1: the registry cannot be read: $error"
    fi
}

# Prints the greatest version of the image that is not a prerelease.
newest() {
    local tags
    tags=$(registry list-tags requeue)
    grep -oE '"[0-9]+\.[0-9]+\.[0-9]+"' <<<"$tags" | tr -d '"' | sort --version-sort | tail -n 1 || true
}

# Builds the container for each processor, and pushes one list of both. The storage of images is temporary.
image() {
    local storage dir tls=() labels=() reference=requeue:$version newest digest
    storage=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$storage'" EXIT
    ! is_local || tls=(--tls-verify=false)
    [ -z "$repository" ] || labels+=(--label "org.opencontainers.image.source=$repository")
    run() { buildah --root "$storage/images" --runroot "$storage/runs" --storage-driver vfs "$@"; }
    if ! is_pushed "$reference"; then
        run manifest create requeue >/dev/null
        for dir; do
            # The workflow passes files on without their modes.
            chmod 755 "$dir/image/requeue"
            # The Containerfile only copies files, so a processor other than this one's needs no emulator.
            run build --quiet --isolation chroot --platform "linux/$(processor "$dir/image/requeue")" --manifest requeue \
                --timestamp "$(commit_time)" ${BASE:+--build-arg "BASE=$BASE"} \
                --label "org.opencontainers.image.version=$version" "${labels[@]}" \
                --file packaging/Containerfile "$dir/image" >/dev/null
        done
        run manifest push --all --quiet "${tls[@]}" requeue "docker://$REGISTRY/$reference"
        printf 'pushed %s/%s\n' "$REGISTRY" "$reference"
    fi
    # A patch of an older version leaves `latest` at the newer one.
    newest=$(newest)
    if [ "$newest" = "$version" ]; then
        skopeo copy --quiet --all --preserve-digests "${tls[@]/#--/--src-}" "${tls[@]/#--/--dest-}" \
            "docker://$REGISTRY/$reference" "docker://$REGISTRY/requeue:latest"
        printf '%s/requeue:latest is the version %s\n' "$REGISTRY" "$version"
    fi
    # The provenance of the image is attested for this digest.
    digest=$(registry inspect --raw "$reference" | sha256sum | cut -d' ' -f1)
    printf 'digest=sha256:%s\n' "$digest" >>"${GITHUB_OUTPUT:-/dev/stdout}"
}

# Prints the processor of a program, as containers name it. The header of an ELF file has a number for it.
processor() {
    case $(od -An -tu2 -j18 -N2 "$1" | tr -d ' ') in
    62) printf 'amd64' ;;
    183) printf 'arm64' ;;
    *) fail "$1: not a program for x86-64 or aarch64" ;;
    esac
}

chart() {
    local http=()
    ! is_pushed "charts/requeue-watch:$version" || return 0
    ! is_local || http=(--plain-http)
    helm push "${http[@]}" "$1/requeue-watch-$version.tgz" "oci://$REGISTRY/charts"
}

# Replaces each checksum of the template with that of the file in the line before it.
formula() {
    [ -n "$repository" ] || fail 'Cargo.toml has no `repository` in [workspace.package], which the formula needs'
    fill "$version" "$repository" "RELEASE=$repository/releases/download/v$version" <packaging/homebrew/requeue.rb |
        awk -v sums="$1/SHA256SUMS" '
            BEGIN { while ((getline line <sums) > 0) { split(line, of); sum[of[2]] = of[1] } }
            /^ *url / { file = $2; gsub(/.*\/|"/, "", file) }
            /@SHA256@/ {
                if (!(file in sum)) { printf "%s: no checksum of %s\n", sums, file >"/dev/stderr"; exit 1 }
                sub(/@SHA256@/, sum[file])
            }
            { print }
        '
}

homebrew() {
    local tap branch=requeue-$version title="requeue $version" text
    text=$(formula "$1")
    tap=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$tap'" EXIT
    gh repo clone "$HOMEBREW_TAP" "$tap" -- --quiet
    mkdir -p "$tap/Formula"
    printf '%s\n' "$text" >"$tap/Formula/requeue.rb"
    git -C "$tap" add Formula
    if git -C "$tap" diff --cached --quiet; then
        printf 'the formula of %s is in %s already\n' "$title" "$HOMEBREW_TAP"
        return
    fi
    git -C "$tap" -c user.name=requeue -c user.email=requeue@localhost commit --quiet --message "$title"
    git -C "$tap" -c credential.helper= -c 'credential.helper=!gh auth git-credential' \
        push --quiet --force origin "HEAD:refs/heads/$branch"
    # A run that failed midway may have made the request. A closed request does not count.
    [ "$(gh pr list --head "$branch" --repo "$HOMEBREW_TAP" --state open --json number --jq length)" != 0 ] ||
        gh pr create --repo "$HOMEBREW_TAP" --head "$branch" --title "$title" --body "$repository/releases/tag/v$version"
}

case $channel in
crates) crates ;;
npm) npm_packages "$1" ;;
draft | image | chart | formula | homebrew) "$channel" "$@" ;;
*)
    sed -n '2s/^# //p' "$0" >&2
    exit 2
    ;;
esac
