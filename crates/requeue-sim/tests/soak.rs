//! Memory comes back; `make soak` goes on from here.
//!
//! One test, in a program of its own: the allocator counts for all threads together.

use std::alloc::System;
use std::time::Duration;

use requeue_sim::soak::{crowd, hour};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn memory_comes_back() -> Result<(), String> {
    // The thread that waits for this one comes to rest in the first, or one of the next. What leaks
    // does so in all.
    let _ = hour(0, 1);
    for hour in hour(1, 1).or_else(|_| hour(1, 1)).or_else(|_| hour(1, 1))? {
        println!("{hour}");
    }
    println!("{}", crowd(1, Some(20), Duration::ZERO)?);
    Ok(())
}
