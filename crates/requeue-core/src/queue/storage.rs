//! The storage of records: the lookup by key, the removal, and the compaction when few records are
//! left.

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
        // The hashes are compared first, because the `Eq` of a key is user code and may be slow.
        let is = |record: &Record<K>| record.hash == wanted && record.key.borrow() == key;
        self.index.probe(&self.records, wanted, is)
    }

    /// Returns a copy of the key in `slot`, if the queue has a custom order and `is_ready` returns
    /// true.
    ///
    /// The caller calls this function before it changes anything, because the `clone` of a key may
    /// panic. The function makes no copy that is not needed, because dropping it may also panic.
    pub(super) fn key_if(&self, slot: Slot, is_ready: impl FnOnce() -> bool) -> Option<K> {
        match &self.ready {
            Ready::Custom(_) if is_ready() => Some(self.records.get(slot).key.clone()),
            _ => None,
        }
    }

    /// Removes the record in `slot` if its key has no state. Returns the key.
    pub(super) fn release_if_stateless(&mut self, slot: Slot) -> Option<K> {
        if self.records.get(slot).has_state() {
            return None;
        }
        let record = self.records.remove(slot);
        self.forget_slot(slot, &record);
        Some(record.key)
    }

    /// Removes `record` from the index, the reasons and its group. The caller has already removed
    /// it from `slot`.
    #[inline(always)]
    pub(super) fn forget_slot(&mut self, slot: Slot, record: &Record<K>) {
        self.index.remove(&mut self.records, slot, record.hash, record.position);
        if let Some(reasons) = &mut self.reasons {
            reasons.remove_slot(slot);
        }
        if let Some(groups) = self.ready.groups_mut() {
            groups.leave_group(slot);
        }
        // One flag covers the need to compact and the need to truncate, so most removals test only
        // one byte.
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

    /// Moves a few records to lower slots, so that the slab can free the memory of higher slots.
    #[cold]
    fn compact(&mut self) {
        let Self { records, index, ready, timers, tracker, restarts, reasons, .. } = self;
        // After each move, everything that refers to the old slot is updated, before the next
        // record moves.
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
            // same field contains other data.
            let phase = records.get(to).phase();
            if let Some(tracker) = tracker {
                tracker.move_slot(from, to, phase.is_in_flight());
            }
            ready.move_slot(records, from, to, phase == Phase::Ready);
        });
    }

    /// Frees the memory that side tables have for slots above the last slot of the slab.
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
