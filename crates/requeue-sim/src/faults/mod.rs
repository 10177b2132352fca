//! The queue as its users have it, with workers that fail in every way there is.
//!
//! One thread polls all tasks, in an order that the seed decides, and moves the clock; the same seed
//! is the same run. Beside the queue goes the model: what each says to an operation, which key is
//! handed out, and all that can be seen of the two afterwards must be the same after every step.
//! Then the faults stop, and everything has to finish.

mod hooks;
mod limiter;
mod run;
mod tasks;
mod world;

use std::panic;

pub use self::run::{Report, run};

/// Runs a seed twice, as what can't be repeated can't be looked into.
///
/// # Errors
///
/// As [`run`]; and if the two runs differ.
pub fn run_twice(seed: u64) -> Result<Report, String> {
    let reports = [run(seed)?, run(seed)?];
    if reports[0] != reports[1] {
        return Err(format!("two runs differ: {reports:?}"));
    }
    Ok(reports[0])
}

/// Has panics that are meant print nothing.
pub fn quiet() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !limiter::ON_PURPOSE.get() {
            hook(info);
        }
    }));
}
