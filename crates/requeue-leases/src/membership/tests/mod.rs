//! Tests of the protocol without an API server: each rule, a simulation, and processes that join.
//! Tests of its users, with an API server in memory.

mod api;
pub(crate) mod http;
mod joins;
mod manager;
mod outages;
mod rules;
mod server;
mod simulation;
