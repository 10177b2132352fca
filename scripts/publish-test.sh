#!/usr/bin/env bash
# Tests scripts/publish.sh with a fake cargo and a fake index: scripts/publish-test.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/index"
printf '#!/bin/sh\nprintf "%%s\\n" "$*" >>"%s/published"\n' "$dir" >"$dir/bin/cargo"
# The last argument is the URL. A crate without a file is not in the index.
cat >"$dir/bin/curl" <<END
#!/bin/sh
for url; do :; done
crate=\${url##*/}
[ "\$url" = "https://index.crates.io/re/qu/\$crate" ] || { printf '\n400'; exit; }
[ ! -e "$dir/status" ] || { cat "$dir/status"; exit; }
[ -e "$dir/index/\$crate" ] || { printf 'no such key\n404'; exit; }
cat "$dir/index/\$crate"
printf '\n200'
END
chmod +x "$dir/bin"/*

version=$(scripts/release-info.sh version)
mapfile -t crates < <(scripts/release-info.sh crates)
publishes() {
    : >"$dir/published"
    PATH=$dir/bin:$PATH scripts/publish.sh >"$dir/log" 2>&1 || printf 'failed\n' >>"$dir/published"
    local expected=$1
    [ "$(cat "$dir/published")" = "$expected" ] || {
        printf 'expected: %s\nfound: %s\n' "$expected" "$(cat "$dir/published" "$dir/log")" >&2
        exit 1
    }
}
all='publish --locked --no-verify'

# The first publication publishes all crates.
publishes "$all$(printf ' -p %s' "${crates[@]}")"
# The first publication failed at the last crate. A version that only begins with the same digits does not count.
for crate in "${crates[@]}"; do
    printf '{"name":"%s","vers":"%s0"}\n{"name":"%s","vers":"%s"}\n' "$crate" "$version" "$crate" "$version" >"$dir/index/$crate"
done
last=${crates[-1]}
printf '{"name":"%s","vers":"%s0"}\n' "$last" "$version" >"$dir/index/$last"
publishes "$all -p $last"
# All crates are in the index.
cp "$dir/index/${crates[0]}" "$dir/index/$last"
publishes ''
# If the index does not answer as expected, no crate is published.
printf 'busy\n503' >"$dir/status"
publishes failed
