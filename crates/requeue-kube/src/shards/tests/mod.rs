//! Tests of the protocol without an API server: each rule, and a simulation. Tests of its users, with
//! an API server in memory.

mod api;
mod manager;
mod rules;
mod server;
mod simulation;
