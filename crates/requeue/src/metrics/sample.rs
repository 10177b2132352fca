//! What is shown of a queue.

use std::time::Duration;

use crate::{Counts, Histograms};

/// What a queue is in the middle of, and what it has done so far, as of one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Sample {
    /// Keys that are ready, or will be once their worker is done.
    pub depth: usize,
    /// Keys with a delayed add.
    pub waiting: usize,
    /// Keys with a worker.
    pub processing: usize,
    /// What has been counted.
    pub counts: Counts,
    /// Keys given up after too many failures.
    pub given_up: u64,
    /// Attempts that panicked.
    pub panics: u64,
    /// How long things took.
    pub times: Histograms,
    /// How long all keys with a worker have been with it, added up.
    pub unfinished_work: Duration,
    /// The longest of these.
    pub longest_running: Duration,
    /// How long the oldest ready key has been ready.
    pub oldest_ready: Duration,
    /// Keys that are out of the way until they are revived, where a queue has such.
    pub parked: Option<usize>,
}

/// A queue that metrics can be read of, be it that of this crate or one that keeps its keys
/// elsewhere.
pub trait Scrape: Send + Sync {
    /// Reads them, without waiting. `None` if that can't be done now: then nothing is shown.
    fn scrape(&self) -> Option<Sample>;
}
