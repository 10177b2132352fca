//! Tests of the protocol without an API server: each rule, a simulation, and processes that join.

pub(crate) mod http;
mod joins;
mod rules;
mod server;
mod simulation;
