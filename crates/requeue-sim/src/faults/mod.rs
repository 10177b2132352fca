//! The queue of the public API, with workers that fail in every possible way.
//!
//! One thread polls all tasks, in an order that the seed determines, and moves the clock. The same
//! seed gives the same run. The model runs in parallel with the queue. After every step, queue and
//! model must agree on the result of the operation, on the key that is delivered, and on all
//! visible state. Then the faults stop, and all runs must complete.

mod hooks;
mod limiter;
mod run;
mod tasks;
mod world;

use std::panic;

pub use self::run::{Report, run};

/// Runs a seed twice, because a run that cannot be repeated cannot be investigated.
///
/// # Errors
///
/// Returns an error in the same cases as [`run`], and if the two runs differ.
pub fn run_twice(seed: u64) -> Result<Report, String> {
    let reports = [run(seed)?, run(seed)?];
    if reports[0] != reports[1] {
        return Err(format!("two runs differ: {reports:?}"));
    }
    Ok(reports[0])
}

/// Suppresses the output of intended panics.
pub fn quiet() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !limiter::ON_PURPOSE.get() {
            hook(info);
        }
    }));
}
