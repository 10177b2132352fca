//! The guarantees of a controller, with events from the test.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod backoff;
mod closures;
mod common;
mod ends;
mod groups;
mod metrics;
mod orders;
mod releases;
mod relists;
mod shards;
mod starts;
mod writes;
