//! The cancellation of runs in flight: by a caller who names the key, or by an add that restarts
//! the run.

use core::borrow::Borrow;
use core::time::Duration;

use alloc::vec::Vec;

use super::{Queue, Transition};
use crate::memory::Sparse;
use crate::types::{CancelReason, CancelledRun, Slot, Ticket, Time};

/// The state for restarts, in a queue where an add restarts the run in flight of its key.
pub(super) struct Restarts {
    at_most: Duration,
    /// The keys in a series of restarts, with the time from which adds no longer restart their
    /// runs. A series begins with the first restart. It ends when a run that was not restarted
    /// completes, or when no run of the key is pending.
    pub(super) series: Sparse<Time>,
    /// The numbers of the deliveries that were restarted since the last call of `take_restarted`.
    restarted: Vec<u64>,
}

impl Restarts {
    pub(super) const fn new(at_most: Duration) -> Self {
        Self { at_most, series: Sparse::new(), restarted: Vec::new() }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Cancels the run in flight of `key`. Returns the result. If this call has cancelled the run,
    /// also returns the number of the delivery.
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
            // The run is sealed, because its worker is about to complete it.
            None => (CancelledRun::NotInFlight, None),
        }
    }

    /// Returns why the run of this delivery was cancelled. Returns `None` if it was not cancelled,
    /// or if the delivery was completed.
    #[must_use]
    pub fn cancel_reason(&self, ticket: &Ticket) -> Option<CancelReason> {
        self.records.get(self.slot_of(ticket)?).cancel_reason()
    }

    /// Prevents any later cancellation of the run of this delivery. Returns why the run was
    /// cancelled, if it was.
    ///
    /// If a completion depends on the reason, the caller calls this method first. It then releases
    /// its lock, chooses the completion, and completes the delivery.
    pub fn seal(&mut self, ticket: &Ticket) -> Option<CancelReason> {
        let slot = self.slot_of(ticket)?;
        let record = self.records.get_mut(slot);
        record.seal();
        let reason = record.cancel_reason();
        // In a queue that does not restart runs, no later event depends on the seal.
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

    /// Returns the numbers of the deliveries that adds have cancelled since the last call of this
    /// method.
    ///
    /// In a queue that restarts runs, the caller must call this method after each operation, and
    /// notify the workers of these deliveries. Otherwise, the list of numbers grows without bound.
    #[must_use]
    pub fn take_restarted(&mut self) -> Vec<u64> {
        self.restarts.as_mut().map(|it| core::mem::take(&mut it.restarted)).unwrap_or_default()
    }

    /// Cancels the run of the key in `slot`, which is in flight and was added again at `now`. Does
    /// nothing if the queue does not restart runs, or if the series of restarts has reached its
    /// bound.
    #[cold]
    pub(super) fn restart_run(&mut self, slot: Slot, now: Time) {
        let Some(restarts) = &mut self.restarts else { return };
        let record = self.records.get_mut(slot);
        let series = restarts.series.get(slot);
        let until = series.unwrap_or(now + restarts.at_most);
        // A sealed run completes soon without being cancelled, so it is not restarted.
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

    /// Ends the series of restarts of the key in `slot`. Returns true if the key was in a series.
    #[inline]
    pub(super) fn end_series(&mut self, slot: Slot) -> bool {
        self.restarts.as_mut().is_some_and(|restarts| restarts.series.take(slot).is_some())
    }
}
