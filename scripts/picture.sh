#!/usr/bin/env bash
# Updates the picture of the dashboard in the README with the screenshot that a test makes: scripts/picture.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

picture=$target/tmp/incident-1024-light.png
# Without Chromium, the test does not run, and an old picture must not be copied.
rm -f "$picture"
cargo test -p requeue-http --all-features --test page -- --exact \
    overview::the_keys_or_the_errors_are_on_the_first_screen_of_each_size
cp "$picture" docs/page.png
