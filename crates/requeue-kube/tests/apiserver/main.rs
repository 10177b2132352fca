//! Controllers on an API server in memory, with kube's own watchers.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod manager;
mod optional;
mod server;
mod shared;
