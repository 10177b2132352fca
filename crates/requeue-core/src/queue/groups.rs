//! Operations on the keys of one group: pause, cancel and count.
//!
//! A paused group is a group whose limit of keys in flight is 0, so the order delivers none of its
//! keys. The records of a group are not linked to each other. An operation on all of them walks
//! through all records of the queue.

use alloc::vec::Vec;

use super::{Queue, StateCounts, Transition, Walk};
use crate::order::{GroupId, Ready};
use crate::types::{CancelReason, Ending, Slot};

impl<K: Eq + Clone> Queue<K> {
    /// Returns true if the keys of the queue have groups.
    #[inline(always)]
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.ready.groups().is_some()
    }

    /// Pauses the deliveries of a group. After a shutdown, or if the queue has no groups, the call
    /// has no effect.
    pub fn pause_group(&mut self, group: GroupId) {
        self.set_group_paused(group, true);
    }

    /// Resumes the deliveries of a group. After a shutdown, or if the queue has no groups, the call
    /// has no effect.
    ///
    /// In a queue with a custom order, the caller must then call
    /// [`return_skipped`](Self::return_skipped) until it returns false.
    pub fn resume_group(&mut self, group: GroupId) {
        self.set_group_paused(group, false);
    }

    pub(super) fn set_group_paused(&mut self, group: GroupId, pauses: bool) {
        if self.ending != Ending::ShutDown
            && let Some(groups) = self.ready.groups_mut()
            && groups.is_paused(group) != pauses
        {
            groups.set_paused(group, pauses);
            let transition = match pauses {
                true => Transition::GroupPaused(group.id()),
                false => Transition::GroupResumed(group.id()),
            };
            self.record_all(None, transition);
        }
    }

    /// Returns true if a group is paused.
    #[must_use]
    pub fn is_group_paused(&self, group: GroupId) -> bool {
        self.ready.groups().is_some_and(|groups| groups.is_paused(group))
    }

    /// Pushes up to `max` keys to the custom order again. These are the keys that the order
    /// returned while the group was paused. Returns true if there may be more of them.
    ///
    /// # Panics
    ///
    /// Panics if the `clone` of a key panics. The key then stays among the skipped keys.
    #[must_use]
    pub fn return_skipped(&mut self, group: GroupId, max: usize) -> bool {
        for _ in 0..max {
            let Ready::Custom(custom) = &mut self.ready else { return false };
            let Some(slot) = custom.by_age.skipped_of(group) else { return false };
            let key = self.records.get(slot).key.clone();
            // The key is copied before the lists change. If the copy panics, the key stays among
            // the skipped keys.
            custom.by_age.unskip_key(slot);
            custom.push(key);
        }
        true
    }

    /// Returns the number of keys of a group in each state.
    #[must_use]
    pub fn group_states(&self, group: GroupId) -> StateCounts {
        let Some(groups) = self.ready.groups() else { return StateCounts::default() };
        let counts = groups.counts(group);
        // After a shutdown, the waiting keys are being dropped, so the result does not include
        // them.
        let (waiting, backing_off) = match self.ending {
            Ending::ShutDown => (0, 0),
            _ => (counts.waiting - counts.backing_off, counts.backing_off),
        };
        StateCounts {
            ready: counts.ready as usize,
            waiting: waiting as usize,
            backing_off: backing_off as usize,
            in_flight: counts.in_flight as usize,
            dirty: counts.dirty as usize,
        }
    }

    /// Examines up to `max` slots, and [cancels](Self::cancel) the keys of the groups for which
    /// `is_cancelled` returns true. Returns the number of keys that had a pending run.
    ///
    /// Appends to `keys` the keys that no longer have a record, and copies of the keys in flight.
    /// The caller drops them outside its lock.
    ///
    /// # Panics
    ///
    /// Panics if the `clone` of a key panics. `keys` then contains the keys that were cancelled
    /// before the panic.
    pub fn cancel_groups(
        &mut self,
        is_cancelled: impl Fn(GroupId) -> bool,
        walk: &mut Walk,
        max: usize,
        keys: &mut Vec<K>,
    ) -> usize {
        let mut count = 0;
        for slot in walk.advance(max) {
            if !self.group_at(slot).is_some_and(&is_cancelled) {
                continue;
            }
            // The key is copied before anything changes, because the `clone` of a key may panic.
            let in_flight = self.records.get(slot).phase().is_in_flight();
            let copy = in_flight.then(|| self.records.get(slot).key.clone());
            count += usize::from(self.cancel_slot(slot).any());
            keys.extend(self.release_if_stateless(slot));
            keys.extend(copy);
        }
        count
    }

    /// Examines up to `max` slots, and cancels the runs of `group` that are in flight. Appends the
    /// number of each cancelled delivery to `epochs`.
    pub fn cancel_running_group(
        &mut self,
        group: GroupId,
        walk: &mut Walk,
        max: usize,
        epochs: &mut Vec<u64>,
    ) {
        for slot in walk.advance(max) {
            if self.group_at(slot).is_none_or(|it| it.id() != group.id()) {
                continue;
            }
            let record = self.records.get_mut(slot);
            let reason = CancelReason::Cancelled;
            if record.phase().is_in_flight() && record.try_cancel(reason) {
                let number = record.epoch();
                epochs.push(number);
                self.record_slot_now(slot, Transition::Cancelled { number, reason });
            }
        }
    }

    /// Returns the group of the key in `slot`. Returns `None` if the slot is vacant, or if the
    /// queue has no groups.
    fn group_at(&self, slot: Slot) -> Option<GroupId> {
        let groups = self.ready.groups().filter(|_| self.records.find_record(slot).is_some());
        groups.map(|groups| groups.group_of(slot))
    }

    /// Returns true if the group of the key in `slot` is paused.
    pub(super) fn is_in_paused_group(&self, slot: Slot) -> bool {
        self.ready.groups().is_some_and(|groups| groups.is_in_paused(slot))
    }
}
