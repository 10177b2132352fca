//! Tests of the protocol without an API server: tests of each rule, a simulation, and tests of
//! processes that join.

mod joins;
mod rules;
mod simulation;
