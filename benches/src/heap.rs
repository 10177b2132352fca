//! How much memory is in use, to the byte.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// The system's allocator, which counts; of every program that links this crate. A request costs
/// an atomic addition or two more than usual: the operations that are timed allocate rarely.
#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that are allocated and not freed, as they were asked for.
#[must_use]
pub fn live() -> usize {
    let stats = COUNTING.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// What `make` made, and how many bytes that takes.
pub fn cost_of<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = live();
    let made = make();
    (made, live().saturating_sub(before))
}
