//! The record of a key.

use crate::memory::{Indexed, Links, Position, Slab};
use crate::order::Ranked;
use crate::rule;
use crate::types::{Add, Asked, CancelReason, Phase, Slot, Time};

/// Flag of the delivery: it was detached from its ticket, and its key completes it.
const DETACHED: u8 = 1;
/// Flag of the delivery: a caller has cancelled its run by the key.
const CANCELLED: u8 = 1 << 1;
/// Flag of the delivery: an add has cancelled its run. The next run also serves the adds of this
/// run.
const RESTARTED: u8 = 1 << 2;
/// Flag of the pending run: the pace has delayed it, and the counter includes this delay.
const PACED: u8 = 1 << 3;
/// Flag of the delivery: its run can no longer be cancelled.
const SEALED: u8 = 1 << 4;

/// The data of one key. Each key with a state has one record. If the key takes 8 bytes, its record
/// takes 40 bytes.
pub(in crate::queue) struct Record<K> {
    pub(in crate::queue) key: K,
    /// 64 bits, whose meaning depends on the phase. Ready: the previous and the next key in the
    /// order. InFlight: the epoch of the delivery. Idle: the end of the backoff. A key that backs
    /// off stays Idle until its backoff has ended, so no other phase needs this time.
    link: [Option<Slot>; 2],
    pub(in crate::queue) hash: u32,
    /// The number of adds that the next run serves.
    pub(in crate::queue) adds: u32,
    pub(in crate::queue) add_flags: u32,
    pub(in crate::queue) priority: i32,
    /// The number of consecutive failures.
    pub(super) failures: u32,
    pub(super) phase: Phase,
    /// True if the key has a deadline in the timer heap.
    pub(super) waiting: bool,
    /// [`DETACHED`], [`CANCELLED`], [`RESTARTED`] and [`SEALED`] are about the present or last
    /// delivery, and [`PACED`] is about the pending run.
    flags: u8,
    pub(in crate::queue) position: Position,
}

impl<K> Record<K> {
    /// Creates the record of a new key. If the add is `delayed`, the key waits. Otherwise, it is
    /// Ready behind `tail`. The caller inserts the record, and then calls `Queue::admit_new`.
    #[inline(always)]
    pub(in crate::queue) const fn new(
        key: K,
        hash: u32,
        add: &Add,
        delayed: bool,
        tail: Option<Slot>,
        position: Position,
    ) -> Self {
        Self {
            key,
            link: if delayed { [None; 2] } else { [tail, None] },
            hash,
            adds: 1,
            add_flags: add.flags,
            priority: add.priority,
            failures: add.failed as u32,
            phase: if delayed { Phase::Idle } else { Phase::Ready },
            waiting: delayed,
            flags: 0,
            position,
        }
    }

    #[inline(always)]
    pub(in crate::queue) const fn phase(&self) -> Phase {
        self.phase
    }

    #[inline(always)]
    pub(in crate::queue) const fn is_waiting(&self) -> bool {
        self.waiting
    }

    pub(in crate::queue) const fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns true if the key will run, or run once more.
    pub(in crate::queue) const fn is_pending(&self) -> bool {
        self.phase.is_dirty() || self.waiting
    }

    /// Returns true if a run is pending or in flight. If not, only the failures of the key are the
    /// reason to keep its record.
    pub(in crate::queue) const fn is_known(&self) -> bool {
        self.is_pending() || self.phase.is_in_flight()
    }

    /// Returns true if the key has a state. The queue keeps only records of such keys.
    pub(in crate::queue) const fn has_state(&self) -> bool {
        !matches!(self.phase, Phase::Idle) || self.waiting || self.failures > 0
    }

    /// Merges the adds, flags and priority of `asked` into the pending run. If no run is pending,
    /// they become those of the next run.
    pub(in crate::queue) fn merge_asked(&mut self, asked: Asked) {
        // If no run is pending, the stored priority is that of the last run, and must not influence
        // the next run.
        let pending = if self.is_pending() { Some(self.priority) } else { None };
        self.priority = rule::priority(pending, asked.priority);
        self.adds = self.adds.saturating_add(asked.adds);
        self.add_flags |= asked.flags;
    }

    /// Returns the number of the delivery. The key must be in flight.
    pub(in crate::queue) fn epoch(&self) -> u64 {
        debug_assert!(self.phase.is_in_flight());
        from_link(self.link)
    }

    /// Returns true if the key is in flight with the delivery `epoch`, and is not dirty.
    #[inline]
    pub(in crate::queue) fn is_with(&self, epoch: u64) -> bool {
        self.phase == Phase::InFlight && self.epoch() == epoch
    }

    /// Returns true if the delivery was detached from its ticket. The key must be in flight.
    pub(in crate::queue) const fn is_detached(&self) -> bool {
        self.flags & DETACHED != 0
    }

    pub(in crate::queue) const fn detach(&mut self) {
        self.flags |= DETACHED;
    }

    /// Returns why the run was cancelled, if it was. The key must be in flight.
    pub(in crate::queue) fn cancel_reason(&self) -> Option<CancelReason> {
        debug_assert!(self.phase.is_in_flight());
        match self.flags & (CANCELLED | RESTARTED) {
            0 => None,
            CANCELLED => Some(CancelReason::Cancelled),
            _ => Some(CancelReason::Restarted),
        }
    }

    /// Cancels the run, unless it is already cancelled or is sealed. Returns true if this call has
    /// cancelled it.
    pub(in crate::queue) fn try_cancel(&mut self, reason: CancelReason) -> bool {
        debug_assert!(self.phase.is_in_flight());
        // The first reason is kept. If a caller has cancelled a run by its key, a later add must
        // not turn this into a restart.
        let is_open = self.flags & (CANCELLED | RESTARTED | SEALED) == 0;
        if is_open {
            self.flags |= if reason == CancelReason::Restarted { RESTARTED } else { CANCELLED };
        }
        is_open
    }

    /// Prevents any later cancellation of the run. The key must be in flight.
    pub(in crate::queue) const fn seal(&mut self) {
        self.flags |= SEALED;
    }

    /// Marks the pending run as delayed by the pace. Returns true if it was not yet marked.
    pub(in crate::queue) const fn mark_paced(&mut self) -> bool {
        let is_new = self.flags & PACED == 0;
        self.flags |= PACED;
        is_new
    }

    /// Forgets the adds of the pending run, because it is cancelled.
    pub(in crate::queue) const fn forget_adds(&mut self) {
        (self.adds, self.add_flags) = (0, 0);
        self.flags &= !PACED;
    }

    /// Returns the key after this one in the order. The key must be Ready.
    pub(in crate::queue) fn next_in_order(&self) -> Option<Slot> {
        debug_assert!(self.phase == Phase::Ready);
        self.link[1]
    }

    /// Returns the end of the backoff, or zero if there is none. The key must be Idle.
    pub(in crate::queue) fn not_before(&self) -> Time {
        debug_assert!(self.phase == Phase::Idle);
        Time::from_nanos(from_link(self.link))
    }

    pub(in crate::queue) fn set_not_before(&mut self, at: Time) {
        debug_assert!(self.phase == Phase::Idle);
        self.link = to_link(at.as_nanos());
    }

    /// → Ready, behind `tail` in the order. The caller must then make this record the successor of
    /// `tail`.
    pub(super) fn make_ready(&mut self, tail: Option<Slot>) {
        self.phase = Phase::Ready;
        self.link = [tail, None];
    }

    /// → InFlight. The caller has already removed the key from the order.
    pub(super) fn start_delivery(&mut self, epoch: u64) {
        self.phase = Phase::InFlight;
        // The flags of the previous delivery do not apply to this one.
        self.flags = 0;
        self.link = to_link(epoch);
    }

    /// → Idle, without a backoff.
    pub(super) fn make_idle(&mut self) {
        self.phase = Phase::Idle;
        self.set_not_before(Time::ZERO);
    }
}

impl<K> Indexed for Record<K> {
    #[inline]
    fn key_hash(&self) -> u32 {
        self.hash
    }

    #[inline]
    fn index_position(&self) -> Position {
        self.position
    }

    #[inline]
    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
}

impl<K> Links for Slab<Record<K>> {
    fn links_of(&mut self, slot: Slot) -> &mut [Option<Slot>; 2] {
        &mut self.get_mut(slot).link
    }
}

impl<K> Ranked for Slab<Record<K>> {
    fn priority(&self, slot: Slot) -> i32 {
        self.get(slot).priority
    }
}

/// Stores 64 bits as two links. The conversion needs no instruction in either direction.
#[inline(always)]
fn to_link(bits: u64) -> [Option<Slot>; 2] {
    [Slot::from_bits(bits as u32), Slot::from_bits((bits >> 32) as u32)]
}

#[inline(always)]
fn from_link([low, high]: [Option<Slot>; 2]) -> u64 {
    u64::from(Slot::to_bits(low)) | u64::from(Slot::to_bits(high)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_u64_takes_40_bytes() {
        assert_eq!(size_of::<Record<u64>>(), 40);
    }

    #[test]
    fn a_link_holds_a_number_of_64_bits() {
        let mut record = Record::new((), 0, &Add::now(), true, None, Position::OVERFLOWED);
        for number in [0, 1, u64::MAX - 1, 1 << 32, 0x1234_5678_9ABC_DEF0] {
            record.start_delivery(number);
            assert_eq!(record.epoch(), number);
            record.make_idle();
            assert_eq!(record.not_before(), Time::ZERO);
            record.set_not_before(Time::from_nanos(number));
            assert_eq!(record.not_before(), Time::from_nanos(number));
        }
    }
}
