//! Runs in flight that are cancelled, by name or by an add that restarts them.

use requeue_core::{Asked, CancelReason, CancelledRun, InFlightPolicy};

use super::{Model, later};
use crate::How;

impl<K: Ord + Clone> Model<K> {
    /// Cancels the run in flight of a key. Also returns the number of the delivery, if this call has cancelled the run.
    pub fn cancel_running(&mut self, key: &K) -> (CancelledRun, Option<u64>) {
        let Some(run) = self.processing.get_mut(key) else {
            return (CancelledRun::NotInFlight, None);
        };
        if run.cancelled.is_some() {
            return (CancelledRun::AlreadyCancelled, None);
        }
        if run.sealed {
            return (CancelledRun::NotInFlight, None);
        }
        run.cancelled = Some(CancelReason::Cancelled);
        (CancelledRun::Cancelled, Some(run.epoch))
    }

    /// Returns the reason why this delivery was cancelled. From now on, nothing cancels the delivery.
    pub fn seal(&mut self, epoch: u64) -> Option<CancelReason> {
        let run = self.processing.values_mut().find(|run| run.epoch == epoch)?;
        run.sealed = true;
        run.cancelled
    }

    /// Returns true if this delivery was cancelled and has not been completed.
    pub fn is_cancelled(&self, epoch: u64) -> bool {
        self.processing.values().any(|run| run.epoch == epoch && run.cancelled.is_some())
    }

    /// Restarts the run of a key that is in flight and has become dirty, if adds restart runs.
    pub(super) fn restart(&mut self, key: &K) {
        let InFlightPolicy::Restart { at_most } = self.rerun else { return };
        let until = self.series.get(key).copied().unwrap_or(later(self.now, at_most));
        if let Some(run) = self.processing.get_mut(key)
            && run.cancelled.is_none()
            && !run.sealed
            && self.now < until
        {
            run.cancelled = Some(CancelReason::Restarted);
            self.restarted.push(run.epoch);
            self.series.insert(key.clone(), until);
        }
    }

    /// Returns the numbers of the deliveries that were restarted since the last call.
    pub fn take_restarted(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.restarted)
    }

    /// Handles the cancellation at the beginning of a completion. Returns true if the run was restarted. The next run,
    /// if any, then serves the adds of this run.
    pub(super) fn end_cancelled(&mut self, key: &K, how: How, asked: Asked) -> bool {
        let restarted = self.processing[key].cancelled == Some(CancelReason::Restarted);
        if let Some(run) = self.processing.get_mut(key) {
            // The run is marked as cancelled, so that the adds of its completion do not restart it.
            run.cancelled.get_or_insert(CancelReason::Cancelled);
        }
        if how == How::Cancelled && restarted && self.is_pending(key) {
            self.note(key, asked);
        }
        how == How::Cancelled && restarted
    }
}
