//! The records of a queue: lookup by key, removal, and compaction when few records are left.

use core::borrow::Borrow;

use super::{Queue, Record};
use crate::memory::fold;
use crate::order::Ready;
use crate::types::{Phase, Slot};

impl<K: Eq + Clone> Queue<K> {
    /// Returns the slot of `key`, if the queue has a record of it.
    pub(super) fn find_slot<Q>(&self, key: &Q, hash: u64) -> Option<Slot>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let wanted = fold(hash);
        // The hashes are compared first, because `Eq` is user code and may be slow.
        let is = |record: &Record<K>| record.hash == wanted && record.key.borrow() == key;
        self.index.probe(&self.records, wanted, is)
    }

    /// Returns a copy of the key for a custom order, if the key will become ready.
    ///
    /// The copy is made before any change, because a key's `clone` may panic. No copy is made that is not used, because
    /// its `drop` may also panic.
    pub(super) fn key_if(&self, slot: Slot, is_ready: impl FnOnce() -> bool) -> Option<K> {
        match &self.ready {
            Ready::Custom(_) if is_ready() => Some(self.records.get(slot).key.clone()),
            _ => None,
        }
    }

    /// Removes the record in `slot` if its key has no state, and returns the key.
    pub(super) fn release_if_stateless(&mut self, slot: Slot) -> Option<K> {
        if self.records.get(slot).has_state() {
            return None;
        }
        let record = self.records.remove(slot);
        self.forget_slot(slot, &record);
        Some(record.key)
    }

    /// Removes `record`, which the caller has removed from `slot`, from the index and from its
    /// group.
    #[inline(always)]
    pub(super) fn forget_slot(&mut self, slot: Slot, record: &Record<K>) {
        self.index.remove(&mut self.records, slot, record.hash, record.position);
        if let Some(reasons) = &mut self.reasons {
            reasons.remove_slot(slot);
        }
        if let Some(groups) = self.ready.groups_mut() {
            groups.leave_group(slot);
        }
        // One flag covers both kinds of work, so most removals test only one byte.
        if self.records.take_needs_care() {
            self.compact_and_truncate();
        }
    }

    #[inline(never)]
    fn compact_and_truncate(&mut self) {
        if self.records.is_sparse() {
            self.compact();
        }
        if self.records.take_shrunk() {
            self.truncate_side_tables();
        }
    }

    /// Moves a few records to lower slots. The slab then frees the memory of higher slots.
    #[cold]
    fn compact(&mut self) {
        let Self { records, index, ready, timers, tracker, restarts, reasons, .. } = self;
        // All data that contains the slot is updated after each move, before the next record is
        // moved.
        records.compact(|records, from, to| {
            index.move_slot(records, from, to);
            timers.move_slot(from, to);
            if let Some(restarts) = restarts {
                restarts.series.move_slot(from, to);
            }
            if let Some(reasons) = reasons {
                reasons.move_slot(from, to);
            }
            // The links of a record are valid only while its key is ready. In other phases, the
            // field stores other data.
            let phase = records.get(to).phase();
            if let Some(tracker) = tracker {
                tracker.move_slot(from, to, phase.is_in_flight());
            }
            ready.move_slot(records, from, to, phase == Phase::Ready);
        });
    }

    /// Frees the memory of side tables above the last slot with memory.
    #[cold]
    fn truncate_side_tables(&mut self) {
        let end = self.records.slots_end();
        self.timers.truncate_slots(end);
        if let Some(restarts) = &mut self.restarts {
            restarts.series.truncate_slots(end);
        }
        if let Some(tracker) = &mut self.tracker {
            tracker.truncate_slots(end);
        }
        self.ready.truncate_slots(end);
    }
}

#[cfg(test)]
mod tests;
