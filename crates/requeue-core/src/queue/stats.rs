//! The counters and histograms of a queue, and the times at which its keys changed their states.

use core::time::Duration;

use super::depths::Depths;
use crate::memory::{Chunked, Links, List};
use crate::types::{Id, Slot, Time};

/// Counters of a queue since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// The number of accepted adds, including those that became part of a pending run.
    pub adds: u64,
    /// How often a key became ready, or dirty while in flight (`workqueue_adds_total`). A delayed
    /// add is included when its key is due. Each retry is also included.
    pub enqueued: u64,
    /// The number of adds that became part of a pending run.
    pub coalesced: u64,
    /// The number of delayed adds, including those with a delay of zero
    /// (`workqueue_retries_total`). Debounced adds are not included.
    pub retries: u64,
    /// The number of deliveries.
    pub deliveries: u64,
    /// The number of deliveries that were completed as failures. The key was then retried or given
    /// up.
    pub failures: u64,
    /// The number of runs that the pace has delayed. Each run is included once.
    pub paced: u64,
}

/// The numbers of failed deliveries, in buckets by the number of consecutive failures of the key.
/// That number includes the failure of the delivery itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConsecutiveFailures {
    /// The number of failed deliveries in each bucket of [`BUCKETS`](Self::BUCKETS). The last entry
    /// is the number of deliveries above all buckets.
    pub counts: [u64; Self::BUCKETS.len() + 1],
    /// The sum of the numbers of consecutive failures, over all failed deliveries.
    pub sum: u64,
}

impl ConsecutiveFailures {
    /// The upper bound of each bucket, as a number of consecutive failures.
    pub const BUCKETS: [u32; 7] = [1, 2, 5, 10, 20, 50, 100];

    /// Adds a failed delivery. `failures` is the number of consecutive failures of its key.
    // This method is hidden, because only `requeue-store` needs it, for the same counters of its
    // queues.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::ConsecutiveFailures;
    /// let mut failures = ConsecutiveFailures::default();
    /// failures.observe(3);
    /// assert_eq!((failures.counts[2], failures.sum), (1, 3));
    /// ```
    #[doc(hidden)]
    pub fn observe(&mut self, failures: u32) {
        let bucket = Self::BUCKETS.partition_point(|&bound| bound < failures);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(u64::from(failures));
    }
}

/// The number of keys in each state. A key that will run, or is in flight, is in exactly one of the
/// first four states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StateCounts {
    /// The number of ready keys, including throttled keys.
    pub ready: usize,
    /// The number of keys that wait for a due time, and whose last run did not fail.
    pub waiting: usize,
    /// The number of keys that wait, and whose last run failed. They wait for a backoff, a delayed
    /// add or the pace.
    pub backing_off: usize,
    /// The number of keys in flight.
    pub in_flight: usize,
    /// The number of dirty keys in flight. `in_flight` includes them.
    pub dirty: usize,
}

impl StateCounts {
    /// Returns the number of keys that will run or are in flight: the sum of the first four fields.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// assert_eq!(requeue::StateCounts::default().total(), 0);
    /// ```
    #[must_use]
    pub const fn total(&self) -> usize {
        self.ready + self.waiting + self.backing_off + self.in_flight
    }
}

/// The longest duration of each bucket, in nanoseconds.
// The bounds are written out. A bound in seconds times 1e9 would be rounded, and two of the products
// would be too large.
const LONGEST: [u64; Histogram::BUCKETS.len()] = [
    10,
    100,
    1_000,
    9_999,
    99_999,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    100_000_000_000,
    1_000_000_000_000,
];

/// The number of fine buckets. Each doubling of the duration has four, from 1 µs to 13 days.
const FINE: usize = 4 * (50 - SHORTEST as usize);
/// The binary logarithm of the upper bound of the first fine bucket, in nanoseconds.
const SHORTEST: u32 = 10;

/// A histogram of durations. It has one bucket per power of ten, and finer buckets for
/// [quantiles](Self::quantile).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// The number of durations in each bucket of [`BUCKETS`](Self::BUCKETS). The last entry is the
    /// number of durations above all bounds.
    pub counts: [u64; Self::BUCKETS.len() + 1],
    /// The sum of all durations, in nanoseconds.
    pub sum: u128,
    fine: [u64; FINE],
}

impl Default for Histogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Returns the index of the fine bucket for a duration. It depends on the first bit of the
/// duration, and on the two bits after it.
fn fine_bucket(nanos: u128) -> usize {
    let log = nanos.checked_ilog2().unwrap_or(0);
    if log < SHORTEST {
        return 0;
    }
    let quarter = (nanos >> (log - 2)) as usize & 3;
    ((log - SHORTEST) as usize * 4 + quarter).min(FINE - 1)
}

impl Histogram {
    /// The upper bound of each bucket, in seconds: the ten bounds of Kubernetes' component-base,
    /// and two larger ones.
    ///
    /// Each bound is ten times the previous bound, as Go computes it with floating-point numbers.
    /// Two bounds are therefore not exact powers of ten. The bounds must equal those of programs in
    /// Go, because only histograms with the same bounds can be added.
    pub const BUCKETS: [f64; 12] = [
        1e-8,
        1e-7,
        1e-6,
        9.999999999999999e-6,
        9.999999999999999e-5,
        1e-3,
        1e-2,
        0.1,
        1.0,
        10.0,
        100.0,
        1e3,
    ];

    pub(super) const EMPTY: Self =
        Self { counts: [0; Self::BUCKETS.len() + 1], sum: 0, fine: [0; FINE] };

    /// Returns a histogram of the durations that were added to this histogram since `earlier`,
    /// which is an earlier copy of it.
    // This method is hidden, because only the dashboard and the reports of `requeue` need it. They
    // show the durations of one period.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// histogram.observe(Duration::from_secs(9));
    /// let earlier = histogram;
    /// histogram.observe(Duration::from_millis(3));
    /// assert_eq!(histogram.since(&earlier).sum, 3_000_000);
    /// ```
    #[doc(hidden)]
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        // If `earlier` is not an earlier copy of this histogram, the result is too small, but the
        // subtraction does not panic.
        let mut since = *self;
        for (now, before) in since.counts.iter_mut().zip(earlier.counts) {
            *now = now.saturating_sub(before);
        }
        for (now, before) in since.fine.iter_mut().zip(earlier.fine) {
            *now = now.saturating_sub(before);
        }
        since.sum = since.sum.saturating_sub(earlier.sum);
        since
    }

    /// Returns the quantile `q` (0 to 1): a duration that this share of all durations does not
    /// exceed. The error is at most 12 %. Durations below 1 µs are treated as 1 µs. Returns `None`
    /// if the histogram is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// for n in 1..=100 {
    ///     histogram.observe(Duration::from_millis(n));
    /// }
    /// let median = histogram.quantile(0.5).unwrap();
    /// assert!(median > Duration::from_millis(44) && median < Duration::from_millis(56));
    /// ```
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count: u64 = self.fine.iter().sum();
        if count == 0 {
            return None;
        }
        let share = q.clamp(0.0, 1.0) * count as f64;
        // The rank is rounded up by hand, because `f64::ceil` needs `std`.
        let rank = share as u64 + u64::from(share > (share as u64) as f64);
        let rank = rank.clamp(1, count);
        let mut below = 0;
        let bucket = self.fine.iter().position(|&n| {
            below += n;
            below >= rank
        })?;
        // The result is the middle of the bucket.
        let (log, quarter) = (SHORTEST + bucket as u32 / 4, bucket as u64 % 4);
        let middle = (1_u64 << log) + (2 * quarter + 1) * (1_u64 << (log - 3));
        Some(Duration::from_nanos(if bucket == 0 { 1_000 } else { middle }))
    }

    /// Returns the number of durations in the histogram.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// assert_eq!(Histogram::default().count(), 0);
    /// ```
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds all durations of `other` to this histogram.
    // This method and the next two are hidden, because only `requeue-store` needs them: it stores
    // histograms, and adds stored histograms.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// histogram.observe(Duration::from_millis(3));
    /// let other = histogram;
    /// histogram.merge(&other);
    /// assert_eq!((histogram.count(), histogram.sum), (2, 6_000_000));
    /// ```
    #[doc(hidden)]
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        for (count, more) in self.fine.iter_mut().zip(other.fine) {
            *count = count.saturating_add(more);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Returns the number of durations in each bucket. The buckets of [`counts`](Self::counts) come
    /// first, and then the finer buckets.
    #[doc(hidden)]
    pub fn buckets(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().chain(&self.fine).copied()
    }

    /// Creates a histogram from the sum of its durations and its [buckets](Self::buckets). Missing
    /// buckets are treated as empty.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// histogram.observe(Duration::from_millis(3));
    /// assert_eq!(Histogram::from_buckets(histogram.sum, histogram.buckets()), histogram);
    /// ```
    #[doc(hidden)]
    #[must_use]
    pub fn from_buckets(sum: u128, buckets: impl IntoIterator<Item = u64>) -> Self {
        let mut histogram = Self { sum, ..Self::EMPTY };
        let mut buckets = buckets.into_iter();
        for (to, count) in histogram.counts.iter_mut().zip(&mut buckets) {
            *to = count;
        }
        for (to, count) in histogram.fine.iter_mut().zip(&mut buckets) {
            *to = count;
        }
        histogram
    }

    /// Adds one duration to the histogram.
    // This method is hidden, because only `requeue-store` needs it, for the histograms of its queues.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// # use requeue::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// histogram.observe(Duration::from_millis(3));
    /// assert_eq!((histogram.count(), histogram.sum), (1, 3_000_000));
    /// ```
    #[doc(hidden)]
    pub fn observe(&mut self, took: Duration) {
        let nanos = took.as_nanos();
        let bucket = LONGEST.partition_point(|&longest| u128::from(longest) < nanos);
        self.counts[bucket] += 1;
        self.fine[fine_bucket(nanos)] += 1;
        self.sum += nanos;
    }
}

/// The times at which one key last changed its state.
#[derive(Clone)]
pub(super) struct Stamp {
    /// The time at which the key last became ready or dirty, or began to wait.
    pub(super) added: Time,
    /// The time of the last delivery of the key.
    pub(super) started: Time,
    /// The time for which the key was ready before its last delivery.
    pub(super) queued: Duration,
    links: [Option<Slot>; 2],
}

/// The list of the keys in flight is linked through the stamps.
impl Links for Chunked<Stamp> {
    fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
        &mut self.get_mut(slot.index()).links
    }
}

/// The times of all keys and the depth of each priority, for a queue that tracks times.
pub(super) struct Tracker {
    pub(super) depths: Depths,
    stamps: Chunked<Stamp>,
    /// The keys in flight, in the order of their deliveries.
    running: List,
    count: u64,
    /// The sum of `started` over all keys in flight.
    started: u128,
    pub(super) queued: Histogram,
    pub(super) worked: Histogram,
    pub(super) consecutive: ConsecutiveFailures,
}

impl Tracker {
    pub(super) fn new() -> Self {
        Self {
            depths: Depths::new(),
            stamps: Chunked::new(),
            running: List::new(),
            count: 0,
            started: 0,
            queued: Histogram::default(),
            worked: Histogram::default(),
            consecutive: ConsecutiveFailures::default(),
        }
    }

    /// Creates the stamp of a new key in `slot`, which was added at `now`.
    pub(super) fn enroll(&mut self, slot: Slot, now: Time) {
        let stamp =
            Stamp { added: now, started: Time::ZERO, queued: Duration::ZERO, links: [None; 2] };
        self.stamps.extend_to(slot.index() + 1, &stamp);
        *self.stamps.get_mut(slot.index()) = stamp;
    }

    pub(super) fn stamp_added(&mut self, slot: Slot, now: Time) {
        self.stamps.get_mut(slot.index()).added = now;
    }

    /// Records a delivery. Returns the time for which the key was ready.
    pub(super) fn record_delivery(&mut self, slot: Slot, now: Time) -> Duration {
        let stamp = self.stamps.get_mut(slot.index());
        stamp.started = now;
        let queued = now.since(stamp.added);
        stamp.queued = queued;
        self.count += 1;
        self.started += u128::from(now.as_nanos());
        self.running.push_back(&mut self.stamps, slot);
        self.queued.observe(queued);
        queued
    }

    /// Records a completion. Returns the time for which the key was in flight.
    pub(super) fn record_completion(&mut self, slot: Slot, now: Time) -> Duration {
        let started = self.stamps.get(slot.index()).started;
        self.count -= 1;
        self.started -= u128::from(started.as_nanos());
        self.running.remove(&mut self.stamps, slot);
        let worked = now.since(started);
        self.worked.observe(worked);
        worked
    }

    /// Replaces slot `from` with slot `to`, after the slab has moved the record.
    pub(super) fn move_slot(&mut self, from: Slot, to: Slot, is_running: bool) {
        let stamp = self.stamps.get(from.index()).clone();
        *self.stamps.get_mut(to.index()) = stamp;
        if is_running {
            self.running.move_slot(&mut self.stamps, from, to);
        }
    }

    pub(super) fn truncate_slots(&mut self, end: usize) {
        self.stamps.truncate(end);
    }

    /// Returns the stamp of the key in `slot`.
    pub(super) fn stamp(&self, slot: Slot) -> &Stamp {
        self.stamps.get(slot.index())
    }

    /// Returns the sum of the times for which the present keys in flight have been in flight.
    pub(super) fn unfinished_work(&self, now: Time) -> Duration {
        // The sum of the starts is kept up to date. The result is therefore one subtraction, for
        // any number of keys in flight.
        let sum = u128::from(now.as_nanos()) * u128::from(self.count);
        Duration::from_nanos(u64::try_from(sum.saturating_sub(self.started)).unwrap_or(u64::MAX))
    }

    /// Returns the slots of the keys in flight, in the order of their deliveries.
    pub(super) fn running(&self) -> impl Iterator<Item = Slot> {
        core::iter::successors(self.running.head(), |&at| self.stamps.get(at.index()).links[1])
    }

    /// Returns the time for which the oldest delivery has been in flight.
    pub(super) fn longest_running(&self, now: Time) -> Duration {
        self.running.head().map_or(Duration::ZERO, |slot| now.since(self.stamp(slot).started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tracker {
        /// Returns the number of slots for which the side table has entries.
        pub(in crate::queue) fn slots(&self) -> usize {
            self.stamps.len()
        }
    }

    #[test]
    fn a_bucket_holds_what_is_at_most_its_bound() {
        let cases = [
            (0, 0),
            (1, 0),
            (10, 0),
            (11, 1),
            (100, 1),
            (101, 2),
            (9_999, 3),
            (10_000, 4),
            (1_000_000_000, 8),
            (1_000_000_001, 9),
            (1_000_000_000_000, 11),
            (1_000_000_000_001, 12),
            (u64::MAX, 12),
        ];
        for (nanos, bucket) in cases {
            let mut histogram = Histogram::default();
            histogram.observe(Duration::from_nanos(nanos));
            assert_eq!(histogram.counts.iter().position(|&n| n == 1), Some(bucket), "{nanos} ns");
            assert_eq!(histogram.sum, u128::from(nanos));
        }
    }

    #[test]
    fn a_failure_is_in_the_bucket_of_its_number() {
        for (number, bucket) in
            [(1, 0), (2, 1), (3, 2), (5, 2), (6, 3), (10, 3), (100, 6), (101, 7)]
        {
            let mut failures = ConsecutiveFailures::default();
            failures.observe(number);
            assert_eq!(failures.counts.iter().position(|&n| n == 1), Some(bucket), "{number}");
        }
    }

    #[test]
    fn the_bounds_are_those_that_component_base_computes() {
        let mut bound = 10e-9;
        for (&bucket, &longest) in Histogram::BUCKETS.iter().zip(&LONGEST) {
            assert_eq!(bucket, bound);
            bound *= 10.0;
            assert!(longest as f64 / 1e9 <= bucket, "{longest} ns is in {bucket}");
            assert!((longest + 1) as f64 / 1e9 > bucket, "{longest} ns is the last in {bucket}");
        }
    }
}
