//! Pause, resume, close and shutdown of the queue.

use alloc::vec::Vec;

use super::{Queue, Transition};
use crate::order::{Fair, Ready};
use crate::types::{Ending, Phase, Slot};

impl<K: Eq + Clone> Queue<K> {
    /// Returns the lifecycle state: open, closed or shut down.
    #[must_use]
    pub const fn ending(&self) -> Ending {
        self.ending
    }

    /// Closes the queue, or shuts it down.
    ///
    /// A queue never returns to an earlier state. After a shutdown, the caller calls
    /// [`drop_some`](Self::drop_some) until it returns false, to drop the keys that will not run.
    pub fn end(&mut self, ending: Ending) {
        // A queue that was shut down cannot become closed.
        if ending > self.ending {
            self.ending = ending;
            let is_closed = ending == Ending::Closed;
            let transition = if is_closed { Transition::Closed } else { Transition::ShutDown };
            self.record_all(None, transition);
        }
    }

    /// Returns true if deliveries are paused.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Pauses all deliveries. After a shutdown, the call has no effect.
    pub fn pause(&mut self) {
        if !self.paused && self.ending != Ending::ShutDown {
            self.paused = true;
            self.record_all(None, Transition::Paused);
        }
    }

    /// Resumes all deliveries. After a shutdown, the call has no effect.
    pub fn resume(&mut self) {
        // After a shutdown, a paused queue stays paused, because the pause decides which keys are
        // dropped.
        if self.paused && self.ending != Ending::ShutDown {
            self.paused = false;
            self.record_all(None, Transition::Resumed);
        }
    }

    /// Removes up to `max` keys that will not run after [`Ending::ShutDown`], and appends them to
    /// `keys`.
    ///
    /// These keys are the waiting keys and the ready keys of paused groups. If the queue is paused,
    /// they also include all ready keys. Returns true if there may be more of them.
    ///
    /// # Panics
    ///
    /// Panics if the `clone` of a key panics. `keys` then contains the keys that were removed
    /// before the panic.
    #[must_use]
    pub fn drop_some(&mut self, max: usize, keys: &mut Vec<K>) -> bool {
        if self.ending != Ending::ShutDown {
            return false;
        }
        for _ in 0..max {
            let slot = self.timers.cheapest_to_remove().or_else(|| self.any_stopped());
            let Some(slot) = slot else { return false };
            self.drop_slot(slot, keys);
        }
        true
    }

    /// Drops the delayed run of the key in `slot`. If it has no delayed run, drops the run that has
    /// no due time.
    pub(super) fn drop_slot(&mut self, slot: Slot, keys: &mut Vec<K>) {
        let record = self.records.get(slot);
        if !record.is_waiting() {
            self.withdraw_run(slot);
        } else {
            if record.phase() == Phase::InFlight {
                // The key stays in flight, so the caller gets a copy of it to report the lost run.
                keys.push(record.key.clone());
            }
            self.stop_waiting(slot);
        }
        self.drop_idle(slot, keys);
    }

    /// Returns a ready key that is not delivered, because the queue or its group is paused.
    fn any_stopped(&self) -> Option<Slot> {
        match self.paused {
            true => self.ready.any_ready(),
            false => self.ready.groups().and_then(Fair::any_paused),
        }
    }

    fn drop_idle(&mut self, slot: Slot, keys: &mut Vec<K>) {
        self.record_slot_now(slot, Transition::Dropped);
        if self.records.get(slot).phase() == Phase::Idle {
            self.set_failures(slot, 0);
            self.end_series(slot);
            keys.extend(self.release_if_stateless(slot));
        }
    }

    /// Removes up to `max` keys from a custom order that still contains keys although no key is
    /// ready, and returns them.
    ///
    /// The queue has cancelled or dropped these keys. The caller drops the returned keys.
    #[must_use]
    pub fn drain_order(&mut self, max: usize) -> Vec<K> {
        let is_empty = self.is_empty();
        match &mut self.ready {
            Ready::Custom(custom) if is_empty => {
                core::iter::from_fn(|| custom.pop()).take(max).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns all keys, and all copies of keys, so that the caller can drop each one separately.
    pub fn into_keys(self) -> impl Iterator<Item = K> {
        let paced = self.pace.into_iter().flat_map(|pace| pace.into_keys());
        self.records.into_values().map(|record| record.key).chain(paced)
    }

    /// Returns true if the queue is closed or shut down and has no key to deliver at present.
    /// client-go's `Get` then reports the shutdown.
    ///
    /// After a shutdown, the result can become false again: the completion of a dirty key makes it
    /// ready.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => self.is_empty() && self.in_flight() == 0 && self.timers.len() == 0,
            // The ready keys of a paused queue or group will be dropped, so getters must not wait
            // for them.
            Ending::ShutDown => {
                self.paused || self.len() == self.ready.groups().map_or(0, Fair::paused_ready)
            }
        }
    }

    /// Returns true if the queue is closed or shut down, and will never deliver a key again.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let dirty = self.ready_and_dirty() - self.len();
        let is_stopped = || dirty == self.ready.groups().map_or(0, Fair::paused_dirty);
        self.is_exhausted() && (self.paused || is_stopped())
    }

    /// Returns true if the queue is closed or shut down, and has no key to deliver and none in
    /// flight.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_exhausted() && self.in_flight() == 0
    }
}
