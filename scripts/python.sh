#!/usr/bin/env bash
# Checks and builds the Python package, installs its wheel into an empty environment, and runs the example of its page
# and its tests there: scripts/python.sh [TEST...]. Then works on a queue with a client that is generated from the
# description of the HTTP API. With `--wheel FILE`, installs that wheel, and runs only the example.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
package=$PWD/bindings/python
out=$target/python
export CARGO_TARGET_DIR=$target
# The build finds the Python of the wheel, and not another one in PATH.
export PYO3_PYTHON=$tools/python/bin/python

version=$(scripts/release-info.sh version)
grep -qxF "version = \"$version\"" "$package/Cargo.toml" || {
    printf 'bindings/python/Cargo.toml has another version than Cargo.toml, which has %s\n' "$version" >&2
    exit 1
}
rm -rf "$out"
if [ "${1-}" = --wheel ]; then
    wheel=$2
else
    cargo clippy --manifest-path "$package/Cargo.toml" --locked -- -D warnings
    cargo build --locked -p requeue-servers
    "$tools/python/bin/maturin" build --quiet --locked --auditwheel skip --manifest-path "$package/Cargo.toml" --out "$out/wheels"
    wheel=$(echo "$out"/wheels/*.whl)
fi
"$PYO3_PYTHON" -m venv "$out/empty"
python=$out/empty/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --no-index "$wheel"

# The directory contains no sources of the package.
mkdir "$out/work"
cd "$out/work"
awk '/^```$/ { exit } inside; /^```python$/ { inside = 1 }' "$package/README.md" >example.py
example=$(within 60 "$python" example.py | sort)
[ "$example" = $'mail for alice\nmail for bob' ] || {
    printf 'The example of bindings/python/README.md has printed:\n%s\n' "$example" >&2
    exit 1
}

[ "${1-}" != --wheel ] || exit 0
export REQUEUE_SERVERS=$target/debug/requeue-servers
if [ $# -gt 0 ]; then
    cd "$package/tests"
    PYTHONDONTWRITEBYTECODE=1 "$python" -m unittest "$@"
else
    PYTHONDONTWRITEBYTECODE=1 within 600 "$python" -m unittest discover -s "$package/tests"

    cd "$package/../.."
    cargo build --locked -p requeue-cli
    "$tools/python/bin/openapi-python-client" generate --meta none --output-path "$out/work/requeue_api" \
        --path crates/requeue-http/assets/openapi.json >"$out/generator.log"
    PYTHONPATH=$out/work within 120 "$PYO3_PYTHON" scripts/generated-client.py "$target/debug/requeue"
fi
