//! Shard groups against an API server.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod members;
