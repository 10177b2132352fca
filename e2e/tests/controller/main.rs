//! Tests the promises of a controller on an API server.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod backoff;
mod deletes;
mod faults;
mod groups;
mod kinds;
mod manager;
mod membership;
mod optional;
mod order;
mod process;
mod replicas;
mod shards;
mod shutdowns;
mod world;
mod writes;
