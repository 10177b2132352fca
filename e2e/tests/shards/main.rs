//! Shard groups on an API server. The tests use members, and replicas in separate processes that
//! are killed, frozen, cut off, stopped and replaced.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod costs;
mod manager;
mod members;
mod replica;
mod report;
mod schedule;
