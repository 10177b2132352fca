//! The activity of a queue in each minute, over all processes.

use std::time::Duration;

use requeue::Histogram;

use super::inspect::Entry;

/// The activity on a queue in a period, over all processes. See [`Queue::activity`](crate::Queue::activity).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// The number of adds, including coalesced adds. Adds made in SQL are not counted.
    pub adds: u64,
    /// The number of adds that were coalesced with a pending run.
    pub coalesced: u64,
    /// The number of deliveries.
    pub starts: u64,
    /// The number of runs that succeeded, including runs whose keys were added again.
    pub successes: u64,
    /// The number of runs that failed. The run of a worker that was killed is not counted.
    pub failures: u64,
    /// The number of keys that were given up, because a handler gave them up or because they failed too often.
    pub given_up: u64,
    /// How long each key was ready before its delivery.
    pub queued: Histogram,
    /// How long each delivery lasted, until its completion.
    pub worked: Histogram,
}

impl Tally {
    pub(crate) const COUNTS: [&str; 6] =
        ["adds", "coalesced", "starts", "successes", "failures", "given_up"];

    /// Returns the numbers in the order of [`COUNTS`](Self::COUNTS).
    pub(crate) const fn counts(&self) -> [u64; Self::COUNTS.len()] {
        let Self { adds, coalesced, starts, successes, failures, given_up, queued: _, worked: _ } =
            *self;
        [adds, coalesced, starts, successes, failures, given_up]
    }

    pub(crate) const fn new(
        counts: [u64; Self::COUNTS.len()],
        [queued, worked]: [Histogram; 2],
    ) -> Self {
        let [adds, coalesced, starts, successes, failures, given_up] = counts;
        Self { adds, coalesced, starts, successes, failures, given_up, queued, worked }
    }

    /// Returns the activity since the time at which this tally had the value `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let (mut counts, before) = (self.counts(), earlier.counts());
        for (count, before) in counts.iter_mut().zip(before) {
            *count = count.saturating_sub(before);
        }
        let times = [self.queued.since(&earlier.queued), self.worked.since(&earlier.worked)];
        Self::new(counts, times)
    }

    /// Adds the activity of another period or process.
    pub fn merge(&mut self, other: &Self) {
        let mut counts = self.counts();
        for (count, more) in counts.iter_mut().zip(other.counts()) {
            *count = count.saturating_add(more);
        }
        let mut times = [self.queued, self.worked];
        times[0].merge(&other.queued);
        times[1].merge(&other.worked);
        *self = Self::new(counts, times);
    }
}

/// The activity in one minute.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Minute {
    /// The number of the minute, counted from 1970 by the engine's clock.
    pub number: i64,
    /// The time since the minute began.
    pub ago: Duration,
    /// The activity in this minute.
    pub tally: Tally,
}

/// A worker that has recorded in the last 30 seconds that it is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LiveWorker {
    /// The worker's [name](crate::OpenOptions::worker).
    pub name: String,
    /// The time since the worker's last record. A worker records every 10 seconds that it is alive.
    pub seen: Duration,
    /// The worker's keys in flight, as far as they are among the first 256 keys in flight of the queue.
    pub running: Vec<Entry>,
}

/// The recent activity on a queue in all processes. See [`Queue::activity`](crate::Queue::activity).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Activity {
    /// The period that the numbers cover: from the beginning of the first minute to now.
    pub period: Duration,
    /// The minutes with activity, the oldest first.
    pub minutes: Vec<Minute>,
    /// The workers that are alive, sorted by name.
    pub workers: Vec<LiveWorker>,
}

impl Activity {
    /// Returns the sum of all minutes.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.minutes.iter().for_each(|minute| total.merge(&minute.tally));
        total
    }
}
