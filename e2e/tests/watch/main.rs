//! Tests `requeue watch` with controllers in the shell.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod access;
mod chart;
mod custom;
mod events;
mod example;
mod finalizer;
mod leader;
mod maps;
mod related;
mod relists;
mod snapshots;
mod support;
