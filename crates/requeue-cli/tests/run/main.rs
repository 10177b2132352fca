//! Tests of `requeue` as a built program.

#[cfg(feature = "kube")]
mod api;
mod arguments;
mod coalescing;
mod exits;
mod failures;
#[cfg(feature = "sqlite")]
mod file_pipeline;
mod files;
mod giving_up;
#[cfg(feature = "postgres")]
mod go_worker;
#[cfg(feature = "kube")]
mod help;
mod input;
mod json;
mod killed;
mod left_out;
mod limit;
mod output;
mod pace;
mod pages;
mod replay;
mod reports;
mod restarts;
mod serve;
mod signals;
#[cfg(feature = "sqlite")]
mod store;
#[cfg(feature = "sqlite")]
mod store_faults;
#[cfg(feature = "sqlite")]
mod store_groups;
#[cfg(feature = "sqlite")]
mod store_keys;
#[cfg(feature = "sqlite")]
mod store_rates;
#[cfg(feature = "sqlite")]
mod store_schedules;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod store_server;
mod streams;
mod support;
mod terminal;
mod timeouts;
#[cfg(all(feature = "sqlite", feature = "tls"))]
mod tls;
#[cfg(all(feature = "opentelemetry", feature = "sqlite"))]
mod traces;
#[cfg(all(feature = "kube", feature = "postgres", feature = "sqlite"))]
mod untrusted;
#[cfg(feature = "kube")]
mod watch;
#[cfg(feature = "sqlite")]
mod why;
#[cfg(feature = "sqlite")]
mod work_http;
