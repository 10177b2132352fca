//! Tests of `requeue` as a built program.

#[cfg(feature = "kube")]
mod api;
mod arguments;
mod coalescing;
mod exits;
mod failures;
#[cfg(feature = "files")]
mod files;
mod giving_up;
mod help;
mod input;
mod json;
mod killed;
mod limit;
mod output;
mod pace;
mod pages;
mod reports;
mod restarts;
mod serve;
mod signals;
mod store;
mod store_faults;
mod store_keys;
mod store_server;
mod streams;
mod support;
mod terminal;
mod timeouts;
#[cfg(feature = "kube")]
mod watch;
