//! Pausing, closing and shutting down.

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

    /// Closes the queue or shuts it down.
    ///
    /// A queue never returns to an earlier state. After a shutdown, the caller drops pending keys
    /// with [`drop_some`](Self::drop_some).
    pub fn end(&mut self, ending: Ending) {
        // A queue that was shut down stays shut down.
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

    /// Pauses deliveries. The call has no effect after a shutdown.
    pub fn pause(&mut self) {
        if !self.paused && self.ending != Ending::ShutDown {
            self.paused = true;
            self.record_all(None, Transition::Paused);
        }
    }

    /// Starts deliveries again. The call has no effect after a shutdown.
    pub fn resume(&mut self) {
        // After a shutdown, a queue that was paused must stay paused, because the pause decides
        // which keys are dropped.
        if self.paused && self.ending != Ending::ShutDown {
            self.paused = false;
            self.record_all(None, Transition::Resumed);
        }
    }

    /// Removes up to `max` keys that will not run after [`Ending::ShutDown`], and appends them to
    /// `keys`.
    ///
    /// These keys are the waiting keys, the ready keys of paused groups and, if the queue was paused, all ready keys.
    /// Returns true if there may be more such keys.
    ///
    /// # Panics
    ///
    /// Panics if a key's `clone` panics. `keys` then contains the keys that were removed before the
    /// panic.
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

    /// Drops the delayed run of the key in `slot`, or the run without a due time if there is no delayed run.
    pub(super) fn drop_slot(&mut self, slot: Slot, keys: &mut Vec<K>) {
        let record = self.records.get(slot);
        if !record.is_waiting() {
            self.withdraw_run(slot);
        } else {
            if record.phase() == Phase::InFlight {
                // The next run of the dirty key is lost.
                keys.push(record.key.clone());
            }
            self.stop_waiting(slot);
        }
        self.drop_idle(slot, keys);
    }

    /// Returns a ready key that is not delivered because the queue or its group is paused.
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

    /// Returns up to `max` keys that a custom order still contains although no key is ready.
    ///
    /// The keys were cancelled or dropped. The caller drops the returned values.
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

    /// Returns all keys and all copies of keys, for a caller that drops each key separately.
    pub fn into_keys(self) -> impl Iterator<Item = K> {
        let paced = self.pace.into_iter().flat_map(|pace| pace.into_keys());
        self.records.into_values().map(|record| record.key).chain(paced)
    }

    /// Returns true if a closed or shut-down queue delivers no key at present, as client-go's `Get`
    /// reports it.
    ///
    /// After a shutdown, the result becomes false again when the run of a dirty key completes.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        match self.ending {
            Ending::Open => false,
            Ending::Closed => self.is_empty() && self.in_flight() == 0 && self.timers.len() == 0,
            // Ready keys that are paused will be dropped, so getters must not wait for them.
            Ending::ShutDown => {
                self.paused || self.len() == self.ready.groups().map_or(0, Fair::paused_ready)
            }
        }
    }

    /// Returns true if a closed or shut-down queue will never deliver a key again.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        let dirty = self.ready_and_dirty() - self.len();
        let is_stopped = || dirty == self.ready.groups().map_or(0, Fair::paused_dirty);
        self.is_exhausted() && (self.paused || is_stopped())
    }

    /// Returns true if a closed or shut-down queue has no key ready and none in flight.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_exhausted() && self.in_flight() == 0
    }
}
