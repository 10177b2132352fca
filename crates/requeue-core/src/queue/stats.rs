//! What the queue counts, and how long things took.

use core::time::Duration;

use crate::Time;
use crate::chunked::Chunked;
use crate::depths::Depths;
use crate::list::{Links, List};
use crate::slab::NONE;

/// Counts since the queue was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Keys that became ready, or dirty while with a worker (`workqueue_adds_total`).
    pub adds: u64,
    /// Adds that became part of a run that was pending already.
    pub coalesced: u64,
    /// Delayed adds, of any delay, zero included (`workqueue_retries_total`).
    pub retries: u64,
    /// Hand-outs.
    pub hand_outs: u64,
    /// Hand-outs that ended as a failure.
    pub failures: u64,
}

/// Upper bounds of the buckets of a [`Histogram`], in seconds: the ten of Kubernetes'
/// component-base, and two more.
///
/// They are 1e-8 × 10ⁿ as repeated multiplication has it, two of them not quite round: buckets of
/// programs in Go and in Rust add up only if their bounds are the same number.
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

/// The longest duration of each bucket, in nanoseconds.
const LONGEST: [u64; BUCKETS.len()] = [
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

/// Durations by power of ten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// How many durations fell into each bucket of [`BUCKETS`], and the last: into none.
    pub counts: [u64; BUCKETS.len() + 1],
    /// The sum of all durations, in nanoseconds.
    pub sum: u128,
}

impl Histogram {
    pub(crate) const EMPTY: Self = Self { counts: [0; BUCKETS.len() + 1], sum: 0 };

    /// How many durations were observed.
    ///
    /// ```
    /// # use requeue_core::Histogram;
    /// assert_eq!(Histogram::default().count(), 0);
    /// ```
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Counts one more.
    ///
    /// ```
    /// # use requeue_core::Histogram;
    /// # use std::time::Duration;
    /// let mut histogram = Histogram::default();
    /// histogram.observe(Duration::from_millis(3));
    /// assert_eq!((histogram.count(), histogram.sum), (1, 3_000_000));
    /// ```
    pub fn observe(&mut self, took: Duration) {
        let nanos = took.as_nanos();
        let bucket = LONGEST.partition_point(|&longest| u128::from(longest) < nanos);
        self.counts[bucket] += 1;
        self.sum += nanos;
    }
}

#[derive(Clone)]
struct Stamp {
    /// When the key became ready, dirty, or began to wait.
    added: Time,
    /// When it was handed out.
    started: Time,
    links: [u32; 2],
}

struct Running<'a>(&'a mut Chunked<Stamp>);

impl Links for Running<'_> {
    fn links(&mut self, slot: u32) -> &mut [u32; 2] {
        &mut self.0.get_mut(slot as usize).links
    }
}

/// Times of keys, and the depth by priority: kept only where a user has asked for times.
pub(crate) struct Tracker {
    pub(crate) depths: Depths,
    stamps: Chunked<Stamp>,
    /// Keys with a worker, by the time of their hand-out.
    running: List,
    count: u64,
    /// The sum of `started` of all running keys.
    started: u128,
    pub(crate) queued: Histogram,
    pub(crate) worked: Histogram,
}

impl Tracker {
    pub(crate) fn new() -> Self {
        Self {
            depths: Depths::new(),
            stamps: Chunked::new(),
            running: List::new(),
            count: 0,
            started: 0,
            queued: Histogram::default(),
            worked: Histogram::default(),
        }
    }

    /// There is a record in `slot`, of a key that was added now.
    pub(crate) fn enroll(&mut self, slot: u32, now: Time) {
        let stamp = Stamp { added: now, started: Time::ZERO, links: [NONE; 2] };
        self.stamps.extend_to(slot as usize + 1, &stamp);
        *self.stamps.get_mut(slot as usize) = stamp;
    }

    pub(crate) fn added(&mut self, slot: u32, now: Time) {
        self.stamps.get_mut(slot as usize).added = now;
    }

    /// The key is handed out: how long it was ready, or dirty and ready.
    pub(crate) fn start(&mut self, slot: u32, now: Time) -> Duration {
        let stamp = self.stamps.get_mut(slot as usize);
        stamp.started = now;
        let queued = now.since(stamp.added);
        self.count += 1;
        self.started += u128::from(now.as_nanos());
        self.running.push_back(&mut Running(&mut self.stamps), slot);
        self.queued.observe(queued);
        queued
    }

    /// The worker is done with the key: how long it took.
    pub(crate) fn finish(&mut self, slot: u32, now: Time) -> Duration {
        let started = self.stamps.get(slot as usize).started;
        self.count -= 1;
        self.started -= u128::from(started.as_nanos());
        self.running.remove(&mut Running(&mut self.stamps), slot);
        let worked = now.since(started);
        self.worked.observe(worked);
        worked
    }

    /// The record in `from` is in `to`, below it, from now on.
    pub(crate) fn moved(&mut self, from: u32, to: u32, is_running: bool) {
        let stamp = self.stamps.get(from as usize).clone();
        *self.stamps.get_mut(to as usize) = stamp;
        if is_running {
            self.running.moved(&mut Running(&mut self.stamps), from, to);
        }
    }

    pub(crate) fn truncate(&mut self, end: usize) {
        self.stamps.truncate(end);
    }

    pub(crate) fn added_at(&self, slot: u32) -> Time {
        self.stamps.get(slot as usize).added
    }

    pub(crate) fn started_at(&self, slot: u32) -> Time {
        self.stamps.get(slot as usize).started
    }

    /// The time that all running keys together have been running.
    pub(crate) fn unfinished(&self, now: Time) -> Duration {
        let sum = u128::from(now.as_nanos()) * u128::from(self.count);
        Duration::from_nanos(u64::try_from(sum.saturating_sub(self.started)).unwrap_or(u64::MAX))
    }

    /// The slots of running keys, those handed out first before the others.
    pub(crate) fn running(&self) -> impl Iterator<Item = u32> {
        let slot = |slot: u32| if slot == NONE { None } else { Some(slot) };
        core::iter::successors(self.running.head(), move |&at| {
            slot(self.stamps.get(at as usize).links[1])
        })
    }

    /// How long the key that was handed out first of those running has been running.
    pub(crate) fn longest(&self, now: Time) -> Duration {
        self.running.head().map_or(Duration::ZERO, |slot| now.since(self.started_at(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tracker {
        /// Of how many slots times are kept.
        pub(crate) fn slots(&self) -> usize {
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
    fn the_bounds_are_those_that_component_base_computes() {
        let mut bound = 10e-9;
        for (&bucket, &longest) in BUCKETS.iter().zip(&LONGEST) {
            assert_eq!(bucket, bound);
            bound *= 10.0;
            assert!(longest as f64 / 1e9 <= bucket, "{longest} ns is in {bucket}");
            assert!((longest + 1) as f64 / 1e9 > bucket, "{longest} ns is the last in {bucket}");
        }
    }
}
