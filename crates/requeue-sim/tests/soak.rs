//! All memory must be freed. `make soak` runs for longer.
//!
//! This file has one test, in a separate program, because the allocator counts the memory of all
//! threads together.

use std::alloc::System;
use std::time::Duration;

use requeue_sim::soak::{crowd, hour};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn memory_comes_back() -> Result<(), String> {
    // The main thread of the test program may allocate memory during the first runs. A leak, in
    // contrast, occurs in every run.
    let _ = hour(0, 1);
    for hour in hour(1, 1).or_else(|_| hour(1, 1)).or_else(|_| hour(1, 1))? {
        println!("{hour}");
    }
    println!("{}", crowd(1, Some(20), Duration::ZERO)?);
    Ok(())
}
