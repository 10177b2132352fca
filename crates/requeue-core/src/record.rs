//! What the queue knows of a key.

use crate::index::{AWAY, Indexed, Place};
use crate::list::Links;
use crate::slab::{NONE, Slab};
use crate::{Asked, Time};

/// Where a key is between being added and being done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Neither ready nor with a worker: waiting for its time, or remembered for its failures.
    Idle,
    /// May be handed out.
    Ready,
    /// With a worker.
    Processing,
    /// With a worker, and added again since: it will be handed out once more.
    ProcessingDirty,
}

impl Phase {
    /// Whether a worker has the key.
    #[must_use]
    pub const fn is_processing(self) -> bool {
        matches!(self, Self::Processing | Self::ProcessingDirty)
    }

    /// Whether the key is to be handed out without waiting for any time (client-go's `dirty`).
    #[must_use]
    pub const fn is_dirty(self) -> bool {
        matches!(self, Self::Ready | Self::ProcessingDirty)
    }
}

/// One per key with a state; 40 bytes with a key of 8.
pub(crate) struct Record<K> {
    pub(crate) key: K,
    /// One of three things, by phase. Ready: the neighbours in the order. Processing: the epoch of
    /// the hand-out. Idle: the end of the backoff, which no other phase needs, because a key that
    /// is backing off stays Idle until then.
    link: [u32; 2],
    pub(crate) hash: u32,
    /// Adds that the next run stands for.
    pub(crate) adds: u32,
    pub(crate) reasons: u32,
    pub(crate) priority: i32,
    /// Failures in a row.
    pub(crate) failures: u32,
    pub(crate) phase: Phase,
    /// Whether there is a delayed add: whether `Timers` has an entry.
    pub(crate) waiting: bool,
    /// Whether the guard of the hand-out was given up, so that `done(&key)` may end it.
    pub(crate) released: bool,
    /// Where the index has it.
    pub(crate) place: Place,
}

impl<K> Record<K> {
    #[inline]
    pub(crate) const fn new(key: K, hash: u32) -> Self {
        Self {
            key,
            link: [0; 2],
            hash,
            adds: 0,
            reasons: 0,
            priority: 0,
            failures: 0,
            phase: Phase::Idle,
            waiting: false,
            released: false,
            place: AWAY,
        }
    }

    /// Whether a run is pending.
    pub(crate) const fn is_pending(&self) -> bool {
        self.phase.is_dirty() || self.waiting
    }

    /// Whether a run is pending or under way: not only remembered for its failures.
    pub(crate) const fn is_known(&self) -> bool {
        self.is_pending() || self.phase.is_processing()
    }

    /// Whether there is anything to keep a record for.
    pub(crate) const fn has_state(&self) -> bool {
        !matches!(self.phase, Phase::Idle) || self.waiting || self.failures > 0
    }

    /// An add has asked for the key.
    pub(crate) fn note(&mut self, priority: i32, adds: u32, reasons: u32) {
        let asked = Asked { adds, reasons, priority };
        self.note_with(asked, self.is_pending());
    }

    /// A run was not successful: what it was asked with is asked again.
    pub(crate) fn note_back(&mut self, asked: Asked, was_dirty: bool) {
        self.note_with(asked, was_dirty || self.waiting);
    }

    fn note_with(&mut self, asked: Asked, is_pending: bool) {
        // The highest priority asked for wins; what an earlier run was asked with is no ask.
        self.priority = if is_pending { self.priority.max(asked.priority) } else { asked.priority };
        self.adds = self.adds.saturating_add(asked.adds);
        self.reasons |= asked.reasons;
    }

    /// The hand-out that the key is with, while Processing.
    pub(crate) fn epoch(&self) -> u64 {
        debug_assert!(self.phase.is_processing());
        u64::from(self.link[0]) | u64::from(self.link[1]) << 32
    }

    /// Whether it is with the worker of that hand-out, and was not added since.
    #[inline]
    pub(crate) fn is_with(&self, epoch: u64) -> bool {
        self.phase == Phase::Processing && self.epoch() == epoch
    }

    /// The neighbour that comes after it in the order, while Ready.
    pub(crate) fn next(&self) -> u32 {
        debug_assert!(self.phase == Phase::Ready);
        self.link[1]
    }

    /// Idle, Ready → Processing. The record is in no list any more.
    pub(crate) fn start(&mut self, epoch: u64) {
        self.phase = Phase::Processing;
        self.released = false;
        self.link = [epoch as u32, (epoch >> 32) as u32];
    }

    /// → Idle, with nothing to back off from.
    pub(crate) fn rest(&mut self) {
        self.phase = Phase::Idle;
        self.set_not_before(Time::ZERO);
    }

    /// The end of the backoff, while Idle.
    pub(crate) fn not_before(&self) -> Time {
        debug_assert!(self.phase == Phase::Idle);
        Time::from_nanos(u64::from(self.link[0]) | u64::from(self.link[1]) << 32)
    }

    pub(crate) fn set_not_before(&mut self, at: Time) {
        debug_assert!(self.phase == Phase::Idle);
        self.link = [at.as_nanos() as u32, (at.as_nanos() >> 32) as u32];
    }

    /// → Ready, behind `before` in the order, which is about to link to it.
    pub(crate) fn make_ready(&mut self, before: u32) {
        self.phase = Phase::Ready;
        self.link = [before, NONE];
    }
}

impl<K> Indexed for Record<K> {
    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }

    #[inline]
    fn place(&self) -> Place {
        self.place
    }

    #[inline]
    fn set_place(&mut self, place: Place) {
        self.place = place;
    }
}

impl<K> Links for Slab<Record<K>> {
    fn links(&mut self, slot: u32) -> &mut [u32; 2] {
        &mut self.get_mut(slot).link
    }
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
        let mut record = Record::new((), 0);
        for number in [0, 1, u64::MAX - 1, 1 << 32, 0x1234_5678_9ABC_DEF0] {
            record.start(number);
            assert_eq!(record.epoch(), number);
            record.rest();
            assert_eq!(record.not_before(), Time::ZERO);
            record.set_not_before(Time::from_nanos(number));
            assert_eq!(record.not_before(), Time::from_nanos(number));
        }
    }
}
