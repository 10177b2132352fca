//! Tests of the protocol without an API server: each rule, a simulation, and processes that join.

mod joins;
mod rules;
mod simulation;
