//! The number of keys in each state, and the numbers of adds, deliveries and failures. Only
//! `transitions` changes them.

use crate::order::Fair;
use crate::queue::{Queue, StateCounts, Totals};
use crate::types::{Add, Ending, Time};

/// The number of keys in each state, and the totals. A queue has fewer than 2^32 keys, because
/// slots are 32-bit numbers.
#[derive(Default)]
pub(in crate::queue) struct Counters {
    /// The number of keys that are Ready.
    pub(super) ready: u32,
    /// The number of keys that are InFlight or InFlightDirty.
    pub(super) in_flight: u32,
    /// The number of keys that are InFlightDirty.
    pub(super) dirty: u32,
    /// The number of waiting keys whose last run failed.
    pub(super) failing: u32,
    /// The number of waiting keys that are not Idle.
    pub(super) busy_waiting: u32,
    /// The number of waiting keys that are not Idle and whose last run failed.
    pub(super) busy_failing: u32,
    pub(super) totals: Totals,
}

impl Counters {
    /// Counts an accepted add.
    #[inline(always)]
    pub(in crate::queue) fn count_add(&mut self, add: &Add) {
        self.totals.adds += 1;
        self.count_retry(add.is_retry());
    }

    /// Counts an add as a retry if `is_retry` is true. Delayed adds are retries, even with a delay
    /// of zero.
    #[inline(always)]
    pub(in crate::queue) fn count_retry(&mut self, is_retry: bool) {
        self.totals.retries += u64::from(is_retry);
    }

    /// Counts a delivery that was completed as a failure.
    pub(in crate::queue) const fn count_failure(&mut self) {
        self.totals.failures += 1;
    }

    /// Counts a run that the pace delays.
    pub(in crate::queue) const fn count_paced(&mut self) {
        self.totals.paced += 1;
    }

    /// Counts an add that became part of a pending run.
    #[inline(always)]
    pub(in crate::queue) const fn count_coalesced(&mut self) {
        self.totals.coalesced += 1;
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the counters of the queue since it was created.
    #[must_use]
    pub const fn totals(&self) -> Totals {
        self.counters.totals
    }

    /// Returns the number of ready keys, including throttled keys (client-go's `Len`).
    #[must_use]
    pub const fn len(&self) -> usize {
        self.counters.ready as usize
    }

    /// Returns true if no key is ready.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of ready and dirty keys (`workqueue_depth`).
    #[must_use]
    pub const fn ready_and_dirty(&self) -> usize {
        self.counters.ready as usize + self.counters.dirty as usize
    }

    /// Returns the number of keys with a due time, including keys that are also ready or in flight.
    #[must_use]
    pub fn waiting(&self) -> usize {
        // After a shutdown, all keys with a deadline are being dropped.
        if self.ending == Ending::ShutDown { 0 } else { self.timers.len() }
    }

    /// Returns the number of keys with a due time whose last run failed.
    #[must_use]
    pub fn failing(&self) -> usize {
        if self.ending == Ending::ShutDown { 0 } else { self.counters.failing as usize }
    }

    /// Returns the number of keys in each state.
    #[must_use]
    pub fn states(&self) -> StateCounts {
        let (waiting, failing) = match self.ending {
            Ending::ShutDown => (0, 0),
            _ => {
                // A key that is ready or in flight is counted only in that state, even if it also
                // has a deadline.
                let Counters { failing, busy_waiting, busy_failing, .. } = self.counters;
                (self.timers.len() - busy_waiting as usize, (failing - busy_failing) as usize)
            }
        };
        StateCounts {
            ready: self.counters.ready as usize,
            waiting: waiting - failing,
            backing_off: failing,
            in_flight: self.counters.in_flight as usize,
            dirty: self.counters.dirty as usize,
        }
    }

    /// Returns the number of keys in flight.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.counters.in_flight as usize
    }

    /// Returns the number of keys with a record. These keys are ready, waiting or in flight, or
    /// have failures that the queue remembers.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.records.len()
    }

    /// Returns the number of ready keys that may be delivered now.
    #[must_use]
    pub fn eligible(&self) -> usize {
        if self.paused {
            return 0;
        }
        self.ready.groups().map_or(self.len(), Fair::eligible)
    }

    /// Returns the number of ready keys whose groups are at their limit. Returns `None` if groups
    /// have no limit.
    #[must_use]
    pub fn at_group_limit(&self) -> Option<usize> {
        let groups = self.ready.groups().filter(|groups| groups.has_limit())?;
        Some(self.len() - groups.eligible() - groups.paused_ready())
    }

    /// Returns the time at which the next waiting key becomes ready. Returns `None` if no waiting
    /// key will become ready.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.timers.next_time().filter(|&at| self.ending != Ending::ShutDown && at < Time::NEVER)
    }
}
