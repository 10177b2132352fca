//! Counts the memory in use, to the byte.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator with counters, in every program that links this crate. Each request costs
/// one or two additional atomic additions, but the timed operations rarely allocate.
#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the bytes that are allocated and not freed, as they were requested.
#[must_use]
pub fn live() -> usize {
    let stats = COUNTING.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// Returns the result of `make`, and the number of bytes that it occupies.
pub fn cost_of<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = live();
    let made = make();
    (made, live().saturating_sub(before))
}
