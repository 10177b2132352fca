//! `soak [SECONDS] [FIRST]` simulates an hour on a fake clock, and runs threads and tasks for
//! SECONDS seconds. All memory must be returned.

use std::alloc::System;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use requeue_sim::soak;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let (Ok(seconds), Ok(seed)) = (args.next().unwrap_or(Ok(60)), args.next().unwrap_or(Ok(0)))
    else {
        eprintln!("soak [SECONDS] [FIRST]: numbers");
        return ExitCode::from(2);
    };
    println!("seed {seed}");
    match soak_for(Duration::from_secs(seconds), seed) {
        Ok(()) => {
            println!("All memory was returned each time.");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("seed {seed}: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn soak_for(time: Duration, seed: u64) -> Result<(), String> {
    let started = Instant::now();
    for hour in soak::hour(seed, 10)? {
        println!("{hour}");
    }
    println!("70 minutes of each, in {:.1} s", started.elapsed().as_secs_f64());
    println!("{}", soak::crowd(seed, None, time)?);
    Ok(())
}
