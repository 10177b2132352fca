//! The activity of a queue per minute, over all processes.

use std::time::Duration;

use requeue::Histogram;

use super::inspect::Entry;

/// The work on a queue in a period, over all processes. See [`Queue::activity`](crate::Queue::activity).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Adds, including adds that became part of a pending run. Adds made in SQL are not counted.
    pub adds: u64,
    /// Adds that became part of a pending run.
    pub coalesced: u64,
    /// Deliveries.
    pub starts: u64,
    /// Runs that succeeded, even if their keys were added again.
    pub successes: u64,
    /// Runs that failed. The run of a worker that was killed is not counted.
    pub failures: u64,
    /// Keys that were given up, because a handler asked for it or because of too many failures.
    pub given_up: u64,
    /// The durations from ready to delivery.
    pub queued: Histogram,
    /// The durations from delivery to completion.
    pub worked: Histogram,
}

impl Tally {
    pub(crate) const COUNTS: [&str; 6] =
        ["adds", "coalesced", "starts", "successes", "failures", "given_up"];

    /// Returns the counts in the order of [`COUNTS`](Self::COUNTS).
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

    /// Returns the counts since `earlier`, an earlier value.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let (mut counts, before) = (self.counts(), earlier.counts());
        for (count, before) in counts.iter_mut().zip(before) {
            *count = count.saturating_sub(before);
        }
        let times = [self.queued.since(&earlier.queued), self.worked.since(&earlier.worked)];
        Self::new(counts, times)
    }

    /// Adds the numbers of another period or process.
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

/// The numbers of one minute of the engine's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Minute {
    /// The number of the minute since 1970, by the engine's clock.
    pub number: i64,
    /// The time since the minute began.
    pub ago: Duration,
    /// The work in this minute.
    pub tally: Tally,
}

/// A worker that has recorded in the last 30 seconds that it is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LiveWorker {
    /// The worker's [name](crate::OpenOptions::worker).
    pub name: String,
    /// The time since this record, which a worker writes every 10 seconds.
    pub seen: Duration,
    /// The worker's keys in flight, among the first 256 keys in flight of the queue.
    pub running: Vec<Entry>,
}

/// The recent work on a queue in all processes. See [`Queue::activity`](crate::Queue::activity).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Activity {
    /// The period that the numbers cover: from the beginning of the first minute to now.
    pub period: Duration,
    /// The minutes with activity, the oldest first.
    pub minutes: Vec<Minute>,
    /// The workers that are alive, by name.
    pub workers: Vec<LiveWorker>,
}

impl Activity {
    /// Returns the sum over all minutes.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.minutes.iter().for_each(|minute| total.merge(&minute.tally));
        total
    }
}
