//! The state machine of [requeue](https://docs.rs/requeue): pure functions of (state, key, `now`).
//!
//! Nothing here reads a clock, starts a thread, wakes a task or draws a random number: time and
//! seeds are parameters.

#![no_std]

extern crate alloc;

pub mod limiter;
mod time;
pub mod wait;

pub use crate::limiter::RateLimiter;
pub use crate::time::Time;
