#!/bin/sh
# Runs rustdoc with the permission to write JSON, as the `RUSTDOC` of scripts/api.sh. Only rustdoc receives the
# variable. If cargo received it, cargo would build the dependencies again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
