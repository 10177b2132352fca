//! Tests the harness by the effects that a client observes.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod faults;
mod gone;
mod network;
mod server;
mod support;
mod victim;
