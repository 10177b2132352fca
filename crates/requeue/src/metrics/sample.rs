//! The values of one queue that metrics show.

use std::time::Duration;

use crate::{ConsecutiveFailures, Histogram, Totals};

/// The values of one queue that metrics show, all read at the same moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Sample {
    /// The number of ready and dirty keys.
    pub depth: usize,
    /// The number of keys that wait for a due time, including keys that back off.
    pub waiting: usize,
    /// The number of keys that back off, or `None` if the queue does not count them.
    pub backing_off: Option<usize>,
    /// The number of keys in flight.
    pub in_flight: usize,
    /// The counters of the queue.
    pub totals: Totals,
    /// The numbers of failed runs, by the number of consecutive failures that the key then had.
    pub consecutive: ConsecutiveFailures,
    /// The number of keys that were given up, for example after too many failures.
    pub given_up: u64,
    /// The number of attempts that panicked.
    pub panics: u64,
    /// Histograms and ages: how long keys are ready and in flight.
    pub times: Times,
    /// True if the queue is paused. `None` if the process does not know it yet.
    pub paused: Option<bool>,
    /// The ready keys whose groups have reached their limit. `None` if groups have no limit, or if
    /// the number is not known.
    pub at_group_limit: Option<AtGroupLimit>,
    /// The number of parked keys, or `None` if the queue cannot park keys.
    pub parked: Option<usize>,
    /// The time since the store last counted the keys, or `None` if the numbers are always current.
    pub counts_age: Option<Duration>,
    /// The counters of all processes that use the queue. `None` if only this process uses it, or if
    /// the counters are not known yet.
    pub fleet: Option<Fleet>,
}

/// The ready keys whose groups have reached their limit of keys in flight. Keys of paused groups
/// are not included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AtGroupLimit {
    /// The number of these keys.
    pub keys: usize,
    /// The time for which the oldest of these keys has been ready, or zero if there are none.
    pub oldest: Duration,
}

/// The counters of all processes that use a queue in a store. They include the work of this process
/// since it opened the queue, and the work of other processes since this process first read their
/// counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Fleet {
    /// The number of accepted adds, including those that became part of a pending run.
    pub adds: u64,
    /// The number of adds that became part of a pending run.
    pub coalesced: u64,
    /// The number of deliveries.
    pub starts: u64,
    /// The number of runs that succeeded.
    pub successes: u64,
    /// The number of runs that failed.
    pub failures: u64,
    /// The number of keys that were given up.
    pub given_up: u64,
    /// The times for which keys were ready before their delivery.
    pub queued: Histogram,
    /// The times for which keys were in flight.
    pub worked: Histogram,
    /// The number of workers that are alive.
    pub workers: usize,
    /// The longest time for which a key of these workers has been in flight, among the first 256
    /// keys in flight.
    pub longest_running: Duration,
}

/// The times for which keys of a queue were, or have been, ready and in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Times {
    /// The times for which keys were ready before their delivery
    /// (`workqueue_queue_duration_seconds`). If a key was added while it was in flight, the time
    /// begins at that add.
    pub queued: Histogram,
    /// The times in flight (`workqueue_work_duration_seconds`).
    pub worked: Histogram,
    /// The sum of the times for which the present keys in flight have been in flight.
    pub unfinished_work: Duration,
    /// The longest time for which a key in flight has been in flight.
    pub longest_running: Duration,
    /// The time for which the oldest ready key has been ready.
    pub oldest_ready: Duration,
}

/// A queue whose metrics can be read: a queue of this crate, or one that stores its keys elsewhere.
// The trait is hidden, because only requeue-store has queues that store their keys elsewhere.
#[doc(hidden)]
pub trait Scrape: Send + Sync {
    /// Reads the metrics without waiting.
    ///
    /// Returns `None` if that is impossible. The scrape then omits the queue.
    fn scrape(&self) -> Option<Sample>;
}
