#!/bin/sh
# rustdoc that may write JSON, for `RUSTDOC`: scripts/api.sh. Only rustdoc gets the variable. If cargo had it, it would
# build the dependencies again.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
