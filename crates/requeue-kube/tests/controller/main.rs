//! What a controller promises, on watches that are fed by hand, or from a client that is mocked.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod backoff;
mod closures;
mod common;
mod ends;
mod metrics;
mod orders;
mod releases;
mod relists;
mod starts;
