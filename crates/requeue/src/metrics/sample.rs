//! The values that metrics show of a queue.

use std::time::Duration;

use crate::{ConsecutiveFailures, Histogram, Totals};

/// The values that metrics show of a queue, all read at one moment.
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
    /// The queue's counters.
    pub totals: Totals,
    /// The number of failed runs by the number of consecutive failures of their keys.
    pub consecutive: ConsecutiveFailures,
    /// The number of keys that were given up, for example after too many failures.
    pub given_up: u64,
    /// The number of attempts that panicked.
    pub panics: u64,
    /// The times for which keys have been or were ready, and have been or were in flight.
    pub times: Times,
    /// True if deliveries are paused, or `None` if the state is not known yet.
    pub paused: Option<bool>,
    /// The ready keys whose groups have reached their limit, or `None` if groups have no limit, or if the number of
    /// keys is not known.
    pub at_group_limit: Option<AtGroupLimit>,
    /// The number of parked keys, or `None` if the queue has no such state.
    pub parked: Option<usize>,
    /// The time since the keys were counted, or `None` if the numbers of keys are always current.
    pub counts_age: Option<Duration>,
    /// The counts of all processes that use the queue, or `None` if only this process uses the queue, or if the counts
    /// are not known yet.
    pub fleet: Option<Fleet>,
}

/// The ready keys whose groups have as many keys in flight as the limit permits. Groups that are paused do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AtGroupLimit {
    /// The number of ready keys at the limit of their groups.
    pub keys: usize,
    /// The time for which the oldest of these keys has been ready, or zero if there are no such
    /// keys.
    pub oldest: Duration,
}

/// The counts of all processes that use a queue in a store. The counts include the work of this process since it opened
/// the queue, and the work of other processes since this process first read their counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Fleet {
    /// Accepted adds, including adds that became part of a pending run.
    pub adds: u64,
    /// Adds that became part of a pending run.
    pub coalesced: u64,
    /// Deliveries.
    pub starts: u64,
    /// Runs that succeeded.
    pub successes: u64,
    /// Runs that failed.
    pub failures: u64,
    /// Keys that were given up.
    pub given_up: u64,
    /// The times from ready to delivery.
    pub queued: Histogram,
    /// The times from delivery to completion.
    pub worked: Histogram,
    /// The workers that are alive.
    pub workers: usize,
    /// The longest time for which one of these workers has had a key in flight, among the first 256 keys in flight.
    pub longest_running: Duration,
}

/// The times for which keys of a queue have been or were ready, and have been or were in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Times {
    /// The time from becoming ready to the delivery (`workqueue_queue_duration_seconds`). For a key
    /// that was added while in flight, the time counts from that add.
    pub queued: Histogram,
    /// The time in flight (`workqueue_work_duration_seconds`).
    pub worked: Histogram,
    /// The sum of the times for which the keys in flight have been in flight.
    pub unfinished_work: Duration,
    /// The longest time for which a key in flight has been in flight.
    pub longest_running: Duration,
    /// The time for which the oldest ready key has been ready.
    pub oldest_ready: Duration,
}

/// A queue whose metrics can be read: a queue of this crate, or a queue that keeps its keys elsewhere.
// The trait is hidden, because only requeue-store has queues that keep their keys elsewhere.
#[doc(hidden)]
pub trait Scrape: Send + Sync {
    /// Reads the metrics without waiting.
    ///
    /// Returns `None` if the metrics cannot be read without waiting. The scrape then omits the
    /// queue.
    fn scrape(&self) -> Option<Sample>;
}
