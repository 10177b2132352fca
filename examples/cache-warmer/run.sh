#!/bin/sh
# Shows the cache warmer: Redis, a website, two workers, and a hundred readers of a page that is not in the cache.
# REDIS_URL names a running server, and CACHE_WARMER a built program.
# shellcheck disable=SC2046,SC2086
set -eu
cd "$(dirname "$0")"

refuse() {
    printf 'run.sh: %s\n' "$1" >&2
    exit 2
}
# It is several words.
warmer=${CACHE_WARMER:-cargo run --quiet --package cache-warmer --}
command -v python3 >/dev/null || refuse 'python3 is not in PATH; it serves the website of this example'

dir=$(mktemp -d)
parts=
trap 'kill $parts 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

if [ -z "${REDIS_URL-}" ]; then
    server=$(command -v redis-server || command -v valkey-server) || refuse 'no redis-server and no valkey-server in PATH; install one, or set REDIS_URL'
    port=$((10000 + $$ % 20000))
    "$server" --bind 127.0.0.1 --port "$port" --dir "$dir" --save '' --appendonly yes >"$dir/redis.log" &
    redis=$!
    parts="$parts $redis"
    until grep -q 'Ready to accept' "$dir/redis.log"; do
        kill -0 "$redis" 2>/dev/null || refuse "$server has not started: $(tail -n 1 "$dir/redis.log")"
        sleep 0.1
    done
    REDIS_URL=redis://127.0.0.1:$port
fi
export REDIS_URL

mkdir "$dir/website"
for page in 1 2 3; do echo "This is product $page." >"$dir/website/product-$page"; done
python3 -u -m http.server --bind 127.0.0.1 --directory "$dir/website" 0 >"$dir/origin.log" 2>&1 &
parts="$parts $!"
until port=$(sed -n 's/^Serving HTTP on .* port \([0-9]*\) .*/\1/p' "$dir/origin.log") && [ -n "$port" ]; do sleep 0.1; done

$warmer warm --popular /product-1
$warmer warm $(yes /product-2 | head -n 100)

for _ in 1 2; do
    $warmer work --origin "http://127.0.0.1:$port" --ttl 3 &
    parts="$parts $!"
done
for page in 1 2; do
    until $warmer get "/product-$page" 2>/dev/null; do sleep 0.5; done
done
echo "Requests for product 2: $(grep -c 'GET /product-2 ' "$dir/origin.log")"
until [ "$(grep -c 'GET /product-2 ' "$dir/origin.log")" -gt 1 ]; do sleep 0.5; done
echo 'Product 2 was fetched again.'
