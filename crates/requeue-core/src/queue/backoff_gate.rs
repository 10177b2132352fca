//! The backoff gate of [`ReAdd::Hold`](crate::ReAdd::Hold): no run starts before the backoff of
//! the last failure is over.

use super::Queue;
use crate::types::add::Add;
use crate::types::lifecycle::Phase;
use crate::types::slot::Slot;
use crate::types::time::Time;

impl<K: Eq + Clone> Queue<K> {
    /// Returns the time at which the run that `add` requests may start, or `None` for now. Also
    /// returns whether that is later than the add asks for. An add that reports a failure starts a
    /// backoff.
    pub(super) fn pass_gate(&mut self, slot: Slot, add: &Add, now: Time) -> (Option<Time>, bool) {
        let due = self.due_of(slot, add, now);
        let record = self.records.get(slot);
        let not_before = match record.phase() {
            Phase::Idle => record.not_before(),
            // A ready key stays ready.
            Phase::Ready => return (due, false),
            Phase::Processing | Phase::ProcessingDirty => self.backoff_of(record.epoch()),
        };
        let wanted = due.unwrap_or(now);
        let at = wanted.max(not_before);
        if add.failed && at > now {
            self.back_off_until(slot, at);
        }
        // A debounced add of a key that is already due leaves it due.
        ((at > now || due.is_some()).then_some(at), at > wanted)
    }

    /// Starts the backoff of a key that is not ready. A pending run also waits until `at`.
    pub(super) fn back_off_until(&mut self, slot: Slot, at: Time) {
        let record = self.records.get_mut(slot);
        match record.phase() {
            Phase::Idle | Phase::Ready => record.set_not_before(at),
            Phase::Processing | Phase::ProcessingDirty => {
                self.backing_off.insert(record.epoch(), at);
            }
        }
        let was_dirty = self.withdraw(slot) == Phase::ProcessingDirty;
        let waits_less = || self.timers.due(slot).is_some_and(|due| due < at);
        if was_dirty || (self.records.get(slot).is_waiting() && waits_less()) {
            self.start_waiting(slot);
            self.timers.set(slot, at);
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
            Phase::Processing | Phase::ProcessingDirty => {
                self.backing_off.remove(&record.epoch());
            }
        }
    }
}
