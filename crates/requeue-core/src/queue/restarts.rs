//! Cancels runs in flight: runs that a caller names, and runs that an add restarts.

use core::borrow::Borrow;
use core::time::Duration;

use alloc::vec::Vec;

use super::{Queue, Transition};
use crate::memory::Sparse;
use crate::types::{CancelReason, CancelledRun, Slot, Ticket, Time};

/// The state of a queue in which an add restarts the run in flight.
pub(super) struct Restarts {
    at_most: Duration,
    /// The keys in a series of restarts. The value of a key is the time after which adds no longer
    /// restart its runs. A series lasts from the first restart until a run that was not restarted
    /// completes, or until no run is pending.
    pub(super) series: Sparse<Time>,
    /// The deliveries that were restarted since the last call of `take_restarted`.
    restarted: Vec<u64>,
}

impl Restarts {
    pub(super) const fn new(at_most: Duration) -> Self {
        Self { at_most, series: Sparse::new(), restarted: Vec::new() }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Cancels the run in flight of `key`. Returns the result, and the number of the delivery if
    /// this call has cancelled it.
    pub fn cancel_running<Q>(&mut self, key: &Q, hash: u64) -> (CancelledRun, Option<u64>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let slot = self.find_slot(key, hash);
        let Some(slot) = slot.filter(|&slot| self.records.get(slot).phase().is_in_flight()) else {
            return (CancelledRun::NotInFlight, None);
        };
        let record = self.records.get_mut(slot);
        if record.try_cancel(CancelReason::Cancelled) {
            let number = record.epoch();
            let reason = CancelReason::Cancelled;
            self.record_slot_now(slot, Transition::Cancelled { number, reason });
            return (CancelledRun::Cancelled, Some(number));
        }
        match record.cancel_reason() {
            Some(_) => (CancelledRun::AlreadyCancelled, None),
            // The run is sealed, because its item is being dropped.
            None => (CancelledRun::NotInFlight, None),
        }
    }

    /// Returns the reason for the cancellation if this delivery was cancelled and has not been completed.
    #[must_use]
    pub fn cancel_reason(&self, ticket: &Ticket) -> Option<CancelReason> {
        self.records.get(self.slot_of(ticket)?).cancel_reason()
    }

    /// Returns the reason for the cancellation if this delivery was cancelled. From now on, nothing cancels its run.
    ///
    /// If a completion depends on the reason, the caller calls this method first. It then releases
    /// its lock, and completes the delivery.
    pub fn seal(&mut self, ticket: &Ticket) -> Option<CancelReason> {
        let slot = self.slot_of(ticket)?;
        let record = self.records.get_mut(slot);
        record.seal();
        let reason = record.cancel_reason();
        // Without restarts, no later event depends on the seal.
        if self.restarts() {
            self.record_slot_now(slot, Transition::Sealed);
        }
        reason
    }

    /// Returns true if an add restarts the run in flight of its key.
    #[must_use]
    pub const fn restarts(&self) -> bool {
        self.restarts.is_some()
    }

    /// Returns the numbers of the deliveries that adds have cancelled since the last call.
    ///
    /// In a queue that restarts runs, the caller must call this method after each operation, and
    /// notify the workers. Otherwise, the list of numbers grows.
    #[must_use]
    pub fn take_restarted(&mut self) -> Vec<u64> {
        self.restarts.as_mut().map(|it| core::mem::take(&mut it.restarted)).unwrap_or_default()
    }

    /// Cancels the run of the key in `slot`, which is in flight and was added again at `now`, if
    /// the queue restarts runs and the bound of the series has not passed.
    #[cold]
    pub(super) fn restart_run(&mut self, slot: Slot, now: Time) {
        let Some(restarts) = &mut self.restarts else { return };
        let record = self.records.get_mut(slot);
        let series = restarts.series.get(slot);
        let until = series.unwrap_or(now + restarts.at_most);
        // A sealed run is about to complete, and does not count as restarted.
        if now >= until || !record.try_cancel(CancelReason::Restarted) {
            return;
        }
        if series.is_none() {
            restarts.series.insert(slot, until);
        }
        let number = record.epoch();
        restarts.restarted.push(number);
        let reason = CancelReason::Restarted;
        self.record_slot(slot, now, Transition::Cancelled { number, reason });
    }

    /// Ends the series of restarts of the key in `slot`. Returns false if the key was in no series.
    #[inline]
    pub(super) fn end_series(&mut self, slot: Slot) -> bool {
        self.restarts.as_mut().is_some_and(|restarts| restarts.series.take(slot).is_some())
    }
}
