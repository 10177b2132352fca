//! [`EarlyAdd::Hold`](crate::EarlyAdd::Hold): no run comes before the backoff of a failure has passed.

use crate::record::Phase;
use crate::{Add, Queue, Time};

impl<K: Eq + Clone> Queue<K> {
    /// When the run that is asked for may come, and whether that is later than asked.
    pub(crate) fn hold(&mut self, slot: u32, add: &Add, now: Time) -> (Option<Time>, bool) {
        let due = add.due(now);
        let record = self.records.get(slot);
        let not_before = match record.phase {
            Phase::Idle => record.not_before(),
            // No key is taken back that is ready.
            Phase::Ready => return (due, false),
            Phase::Processing | Phase::ProcessingDirty => self.backing_off(record.epoch()),
        };
        let wanted = due.unwrap_or(now);
        let at = wanted.max(not_before);
        if add.failed && at > now {
            self.back_off_until(slot, at);
        }
        ((at > now).then_some(at), at > wanted)
    }

    /// A key that is not ready has failed, and whatever is pending waits.
    pub(crate) fn back_off_until(&mut self, slot: u32, at: Time) {
        let record = self.records.get_mut(slot);
        match record.phase {
            Phase::Idle | Phase::Ready => record.set_not_before(at),
            Phase::Processing | Phase::ProcessingDirty => {
                self.backing_off.insert(record.epoch(), at);
            }
        }
        let was_dirty = record.phase == Phase::ProcessingDirty;
        if was_dirty {
            record.phase = Phase::Processing;
            self.dirty_len -= 1;
            self.leave(slot);
        }
        let record = self.records.get(slot);
        if was_dirty || (record.waiting && self.timers.due(slot).is_some_and(|due| due < at)) {
            self.start_waiting(slot);
            self.timers.set(slot, at);
        }
    }

    /// The end of the backoff of a key that has failed while with its worker.
    pub(crate) fn backing_off(&self, epoch: u64) -> Time {
        self.backing_off.get(&epoch).copied().unwrap_or(Time::ZERO)
    }

    /// The failures of the key in `slot` are forgotten.
    pub(crate) fn stop_backing_off(&mut self, slot: u32) {
        let record = self.records.get_mut(slot);
        match record.phase {
            Phase::Idle => record.rest(),
            Phase::Ready => {}
            Phase::Processing | Phase::ProcessingDirty => {
                self.backing_off.remove(&record.epoch());
            }
        }
    }
}
