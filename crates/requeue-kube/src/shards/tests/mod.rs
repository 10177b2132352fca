//! Tests of the protocol without an API server: each rule, and a simulation.

mod rules;
mod server;
mod simulation;
