//! Shard groups against an API server: members, and replicas in their own processes that are
//! killed, frozen, cut off, stopped and replaced.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod costs;
mod manager;
mod members;
mod replica;
mod report;
mod schedule;
