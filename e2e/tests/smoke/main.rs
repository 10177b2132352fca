//! What the harness can do, by what a client sees of it.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod faults;
mod gone;
mod network;
mod server;
mod support;
mod victim;
