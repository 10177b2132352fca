//! The ends of the backoffs, before which no run starts under [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold).

use super::Queue;
use crate::rule;
use crate::types::{Phase, Slot, Time};

impl<K: Eq + Clone> Queue<K> {
    /// Starts the backoff of a key that is not ready. A pending run also waits until `at`.
    pub(super) fn back_off_until(&mut self, slot: Slot, at: Time) {
        // The rule is called before `withdraw_run`, which hides the pending run from the rule.
        let postpones = rule::postpones(&self.state_of(slot), at);
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle | Phase::Ready => record.set_not_before(at),
            Phase::InFlight | Phase::InFlightDirty => {
                self.backing_off.insert(record.epoch(), at);
            }
        }
        // A ready or dirty key would run before the backoff is over.
        self.withdraw_run(slot);
        if postpones {
            self.wait_until(slot, at);
        }
    }

    /// Returns the end of the backoff of a key that failed during the delivery with the number
    /// `epoch`.
    pub(super) fn backoff_of(&self, epoch: u64) -> Time {
        self.backing_off.get(&epoch).copied().unwrap_or(Time::ZERO)
    }

    /// Ends the backoff of the key in `slot`, whose failures are forgotten.
    pub(super) fn stop_backing_off(&mut self, slot: Slot) {
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle => record.set_not_before(Time::ZERO),
            Phase::Ready => {}
            Phase::InFlight | Phase::InFlightDirty => {
                self.backing_off.remove(&record.epoch());
            }
        }
    }
}
