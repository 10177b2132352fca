//! From a key's hash to its slot.
//!
//! Segments of lines of 64 bytes, each with the tags and slots of up to twelve keys (`line`), so that
//! a probe mostly touches one cache line; a line that has overflowed counts the keys that went on
//! to the next, so that nothing is left behind where a key was. This is the layout of F14 (N.
//! Bronson and X. Shi, *Open-sourcing F14*, 2019).
//!
//! The segments are the buckets of linear hashing (W. Litwin, *Linear hashing: a new tool for file
//! and table addressing*, 1980): as keys come they are split in two one after the other, and merged
//! again as keys go. One large step would stop everybody for tens of milliseconds; a step here
//! touches a few hundred keys, of which half stay where they are and the others keep their line and
//! place in the new segment.

mod line;
mod segment;

use alloc::vec::Vec;

pub(crate) use self::segment::{AWAY, Found, Place};
use self::segment::{BITS, FULL, Segment};
use crate::chunked::give_back;
use crate::slab::Slab;

/// Lines of a segment.
const LINES: usize = 1 << BITS;
/// How many segments the caches next to a processor hold.
const CACHED: usize = 64;

/// What lies in the slots: it knows its hash, and keeps where the index has it.
pub(crate) trait Indexed {
    fn hash(&self) -> u32;
    fn place(&self) -> Place;
    fn set_place(&mut self, place: Place);
}

pub(crate) struct Index {
    segments: Vec<Segment>,
    /// The number of segments, rounded down to a power of two: those beyond have come by splits of
    /// the first ones.
    half: u32,
    /// With more keys, the next segment is split; with fewer, the last one merged.
    most: usize,
    least: usize,
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { segments: Vec::new(), half: 1, most: 0, least: 0 }
    }

    /// Where the segment of keys with `hash` is.
    #[inline]
    const fn at(&self, hash: u32) -> usize {
        let at = hash & (self.half * 2 - 1);
        // Its segment may be one that has not been split yet.
        if at as usize >= self.segments.len() { (at ^ self.half) as usize } else { at as usize }
    }

    /// Whether there is more of it than the caches next to a processor hold.
    #[inline]
    pub(crate) const fn is_large(&self) -> bool {
        self.segments.len() > CACHED
    }

    /// Has the processor fetch the line of `hash`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(segment) = self.segments.get(self.at(hash)) {
            segment.prefetch(hash);
        }
    }

    /// The slot of the record with `hash` for which `is` holds.
    #[inline]
    pub(crate) fn probe<T: Indexed>(
        &self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<u32> {
        self.segments.get(self.at(hash))?.probe(hash, |slot| is(records.get(slot)))
    }

    /// What the first line of the way of `hash` says: the slot of a record for which `is` holds, or
    /// where one can be noted at once, if there is none.
    #[inline(always)]
    pub(crate) fn glance<T: Indexed>(
        &mut self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Found<'_> {
        let at = self.at(hash);
        let full = records.len() >= self.most;
        match self.segments.get_mut(at) {
            Some(segment) => segment.glance(hash, full, |slot| is(records.get(slot))),
            None => Found::Unclear,
        }
    }

    /// Notes the record in `slot`, which has just been put there.
    pub(crate) fn insert<T: Indexed>(&mut self, records: &mut Slab<T>, hash: u32, slot: u32) {
        if records.len() > self.most {
            self.grow(records);
        }
        let at = self.at(hash);
        self.segments[at].note(records, slot);
    }

    /// Takes out what is noted of a record that was in `slot`.
    #[inline]
    pub(crate) fn remove<T: Indexed>(
        &mut self,
        records: &mut Slab<T>,
        slot: u32,
        hash: u32,
        place: Place,
    ) {
        let at = self.at(hash);
        self.segments[at].take_out(hash, slot, place);
        self.fit(records);
    }

    /// Takes out what is noted of the record with `hash` for which `is` holds, and says which slot it
    /// is in. The record is to be removed, and then [`fit`](Self::fit) called.
    #[inline]
    pub(crate) fn take<T: Indexed>(
        &mut self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<u32> {
        let at = self.at(hash);
        self.segments.get_mut(at)?.take(hash, |slot| is(records.get(slot)))
    }

    /// A record has gone.
    #[inline]
    pub(crate) fn fit<T: Indexed>(&mut self, records: &mut Slab<T>) {
        if records.len() < self.least {
            self.shrink(records);
        }
    }

    /// The record that was in `from` is in `to`.
    pub(crate) fn moved<T: Indexed>(&mut self, records: &Slab<T>, from: u32, to: u32) {
        let record = records.get(to);
        let hash = record.hash();
        let at = self.at(hash);
        self.segments[at].change(hash, from, record.place(), to);
    }

    #[cold]
    fn grow<T: Indexed>(&mut self, records: &mut Slab<T>) {
        if self.segments.is_empty() {
            self.segments.push(Segment::new(0));
        } else {
            let next = self.segments.len() - self.half as usize;
            let new = self.segments[next].split(self.half, records);
            self.segments.push(new);
        }
        self.measure();
    }

    #[cold]
    fn shrink<T: Indexed>(&mut self, records: &mut Slab<T>) {
        let Some(last) = self.segments.pop() else { return };
        self.measure();
        let into = self.segments.len() - self.half as usize;
        for slot in last.slots() {
            self.segments[into].note(records, slot);
        }
        give_back(&mut self.segments);
    }

    /// How many keys are right for so many segments.
    ///
    /// All are split while those that have not been go from `FULL` keys a line to one more. They are
    /// merged when there are fewer than three for two lines.
    fn measure(&mut self) {
        let segments = self.segments.len();
        self.half = 1 << segments.ilog2();
        let split = segments - self.half as usize;
        self.most = LINES * (self.half as usize * FULL as usize + split);
        self.least = if segments > 1 { LINES * segments * 3 / 2 } else { 0 };
    }

    /// Calls `visit` with the slots of all records whose rank is at least `from`, in about the order
    /// of their ranks, and perhaps with others, until it has seen `limit` of them. Returns the rank
    /// up to which it has seen all; `None` if it has seen all there are.
    ///
    /// A hash's rank is its bits in reverse: of the keys of a segment, whatever splits have made it,
    /// no other segment has one in between.
    pub(crate) fn visit(&self, from: u32, limit: usize, mut visit: impl FnMut(u32)) -> Option<u32> {
        let mut from = from;
        let mut seen = 0;
        loop {
            let at = self.at(from.reverse_bits());
            for slot in self.segments.get(at)?.slots() {
                seen += 1;
                visit(slot);
            }
            let split = at >= self.half as usize || at + (self.half as usize) < self.segments.len();
            let shift = 32 - (self.half.ilog2() + u32::from(split));
            let end = ((u64::from(from) >> shift) + 1) << shift;
            from = u32::try_from(end).ok()?;
            if seen >= limit {
                return Some(from);
            }
        }
    }
}

#[cfg(test)]
mod tests;
