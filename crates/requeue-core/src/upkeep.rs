//! What every operation on a record is made of.

use alloc::boxed::Box;
use core::borrow::Borrow;

use crate::add::{Add, EarlyAdd, Merge};
use crate::order::Ready;
use crate::queue::fold;
use crate::record::{Phase, Record};
use crate::stats::Tracker;
use crate::{Queue, Time};

impl<K: Eq + Clone> Queue<K> {
    /// The slot of `key`, if the queue has a record of it.
    pub(crate) fn find<Q>(&self, key: &Q, hash: u64) -> Option<u32>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let wanted = fold(hash);
        let is = |record: &Record<K>| record.hash == wanted && record.key.borrow() == key;
        self.index.probe(&self.records, wanted, is)
    }

    /// A copy of the key for an order that holds keys of its own, if the key is going to be ready.
    /// Made before anything changes, because a key's `clone` may panic; and only where it will be
    /// used, because its `drop` may, too.
    pub(crate) fn key_if(&self, ready: bool, slot: u32) -> Option<K> {
        match &self.ready {
            Ready::Custom(_) if ready => Some(self.records.get(slot).key.clone()),
            _ => None,
        }
    }

    /// Whether the add takes the key from Idle to Ready.
    pub(crate) fn makes_ready(&self, record: &Record<K>, add: &Add, now: Time) -> bool {
        let afresh = add.merge == Merge::Exactly;
        let held = self.early_add == EarlyAdd::Hold && !afresh;
        add.due(now).is_none()
            && match record.phase {
                Phase::Idle => !held || record.not_before() <= now,
                Phase::Ready => afresh,
                Phase::Processing | Phase::ProcessingDirty => false,
            }
    }

    /// Removes the record in `slot` if there is nothing to keep it for, and returns its key.
    pub(crate) fn release_if_stateless(&mut self, slot: u32) -> Option<K> {
        if self.records.get(slot).has_state() {
            return None;
        }
        Some(self.remove(slot))
    }

    /// Removes the record in `slot`, which is Idle, and returns its key.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) -> K {
        let record = self.records.remove(slot);
        self.unnote(slot, &record);
        record.key
    }

    /// Forgets where `record` was, which has been taken out of `slot`.
    #[inline(always)]
    pub(crate) fn unnote(&mut self, slot: u32, record: &Record<K>) {
        self.index.remove(&mut self.records, slot, record.hash, record.place);
        if let Some(lanes) = self.ready.lanes_mut() {
            lanes.leave(slot);
        }
        if self.records.needs_care() {
            self.care();
        }
    }

    #[inline(never)]
    fn care(&mut self) {
        if self.records.is_sparse() {
            self.compact();
        }
        if self.records.has_shrunk() {
            self.trim();
        }
    }

    /// Moves a few records together, and gives back the memory above them.
    #[cold]
    fn compact(&mut self) {
        let Self { records, index, ready, timers, tracker, .. } = self;
        records.compact(|records, from, to| {
            index.moved(records, from, to);
            let phase = records.get(to).phase;
            timers.moved(from, to);
            if let Some(tracker) = tracker {
                tracker.moved(from, to, phase.is_processing());
            }
            match (&mut *ready, phase) {
                (Ready::Fifo(list), Phase::Ready) => list.moved(records, from, to),
                (Ready::Priorities(keys), Phase::Ready) => keys.moved(records, from, to),
                (Ready::Fifo(_) | Ready::Priorities(_), _) => {}
                (Ready::Lanes(lanes), _) => lanes.moved(from, to),
                (Ready::Custom(custom), _) => custom.lanes.moved(from, to),
            }
        });
    }

    /// Forgets what was noted of slots that are gone.
    #[cold]
    fn trim(&mut self) {
        let end = self.records.end();
        self.timers.truncate(end);
        if let Some(tracker) = &mut self.tracker {
            tracker.truncate(end);
        }
        match &mut self.ready {
            Ready::Fifo(_) => {}
            Ready::Priorities(keys) => keys.truncate(end),
            Ready::Lanes(lanes) => lanes.truncate(end),
            Ready::Custom(custom) => custom.lanes.truncate(end),
        }
    }

    /// Idle → Ready, at the tail.
    #[inline]
    pub(crate) fn make_ready(&mut self, slot: u32, order_key: Option<K>) {
        self.ready_len += 1;
        let record = self.records.get_mut(slot);
        record.make_ready(self.ready.tail());
        self.ready.append(&mut self.records, slot);
        self.enter(slot);
        if let (Ready::Custom(custom), Some(key)) = (&mut self.ready, order_key) {
            custom.push(key);
        }
    }

    /// Ready → Idle.
    pub(crate) fn unready(&mut self, slot: u32) {
        self.ready_len -= 1;
        self.leave(slot);
        match &mut self.ready {
            Ready::Fifo(list) => list.remove(&mut self.records, slot),
            Ready::Priorities(keys) => keys.remove(&mut self.records, slot),
            Ready::Lanes(lanes) => lanes.remove(slot),
            // The user's order still has the key; it is skipped when it comes.
            Ready::Custom(custom) => custom.lanes.remove(slot),
        }
        self.records.get_mut(slot).rest();
    }

    /// Tells the order of a ready key that was added again, perhaps with a higher priority.
    #[inline(never)]
    pub(crate) fn touch_if(&mut self, slot: u32, touch: bool) {
        let record = self.records.get(slot);
        if record.phase != Phase::Ready {
            return;
        }
        match &mut self.ready {
            Ready::Custom(custom) if touch => custom.order.touch(&record.key),
            ready => ready.lift(&mut self.records, slot),
        }
    }

    /// The key in `slot` gets a delayed add. Says whether it had none.
    pub(crate) fn start_waiting(&mut self, slot: u32) -> bool {
        let record = self.records.get_mut(slot);
        let starts = !core::mem::replace(&mut record.waiting, true);
        self.failing_len += usize::from(starts && record.failures > 0);
        starts
    }

    pub(crate) fn stop_waiting(&mut self, slot: u32) -> bool {
        let record = self.records.get_mut(slot);
        let waiting = core::mem::take(&mut record.waiting);
        if waiting {
            self.failing_len -= usize::from(record.failures > 0);
            self.timers.clear(slot);
        }
        waiting
    }

    pub(crate) fn fail_once_more(&mut self, slot: u32) {
        let failures = self.records.get(slot).failures;
        self.set_failures(slot, failures.saturating_add(1));
    }

    pub(crate) fn set_failures(&mut self, slot: u32, failures: u32) {
        let record = self.records.get_mut(slot);
        let before = core::mem::replace(&mut record.failures, failures);
        if record.waiting {
            self.failing_len += usize::from(failures > 0);
            self.failing_len -= usize::from(before > 0);
        }
    }

    /// There is a record in `slot`, of a key that was added now.
    #[inline]
    pub(crate) fn enroll(&mut self, slot: u32, now: Time) {
        if self.tracks {
            self.tracker.get_or_insert_with(|| Box::new(Tracker::new())).enroll(slot, now);
        }
    }

    #[inline]
    pub(crate) fn stamp(&mut self, slot: u32, now: Time) {
        if let Some(tracker) = &mut self.tracker {
            tracker.added(slot, now);
        }
    }

    /// The key in `slot` has become dirty: it counts for its priority.
    #[inline]
    pub(crate) fn enter(&mut self, slot: u32) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.enter(self.records.get(slot).priority);
        }
    }

    /// The key in `slot` is dirty no more, and has the priority still with which it was counted.
    #[inline]
    pub(crate) fn leave(&mut self, slot: u32) {
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.leave(self.records.get(slot).priority);
        }
    }

    /// The key in `slot` was added again, which may have raised its priority from `before`.
    #[inline(never)]
    pub(crate) fn raised(&mut self, slot: u32, before: i32) {
        let record = self.records.get(slot);
        if record.priority == before || !record.phase.is_dirty() {
            return;
        }
        if let Some(tracker) = &mut self.tracker {
            tracker.depths.leave(before);
            tracker.depths.enter(record.priority);
        }
    }
}

#[cfg(test)]
mod tests;
