//! An index that maps the hash of a key to the slot of the key's record.
//!
//! The index consists of segments, and each segment consists of buckets of 64 bytes. A bucket
//! contains the tags and slots of up to twelve keys (module `bucket`), so that most lookups read
//! only one cache line. If a bucket is full, its keys overflow to later buckets, and the bucket
//! counts them. A removal decrements these counters and therefore leaves no tombstone. This is the
//! layout of F14 (N. Bronson and X. Shi, *Open-sourcing F14*, 2019).
//!
//! The number of segments grows and shrinks by linear hashing (W. Litwin, *Linear hashing: a new
//! tool for file and table addressing*, 1980). As keys are added, the index splits one segment
//! after the other in two. As keys are removed, it merges them again. The usual alternative is to
//! rehash all keys in one step, which would block every caller for tens of milliseconds. A split
//! moves a few hundred keys at most: half the keys of the segment move to the new segment, and keep
//! their bucket number and place.

mod bucket;
mod segment;

use alloc::vec::Vec;

use self::segment::{BITS, FULL, Segment};
pub(crate) use self::segment::{Found, Position};
use super::chunked::give_back;
use super::slab::Slab;
use crate::types::Slot;

/// The number of buckets in a segment of an index that has several segments.
const BUCKETS: usize = 1 << BITS;
/// The number of segments that fit into the nearest caches of the processor.
const CACHED: usize = 64;

/// A record that stores the hash of its key, and the position of its slot in the index.
pub(crate) trait Indexed {
    fn key_hash(&self) -> u32;
    fn index_position(&self) -> Position;
    fn set_position(&mut self, position: Position);
}

/// Reduces a key's hash to the 32 bits that records store. Every bit of the result depends on all
/// bits of `hash`. Hashes that differ in few bits therefore choose different segments, buckets and
/// tags.
pub(crate) const fn fold(hash: u64) -> u32 {
    let product = hash as u128 * 0x9E37_79B9_7F4A_7C15;
    (product ^ product >> 64) as u32
}

pub(crate) struct Index {
    segments: Vec<Segment>,
    /// The number of segments, rounded down to a power of two. The segments with an index of `half`
    /// or above were split off from the segments with an index below `half`.
    half: u32,
    /// The next segment is split when the index has more keys than this number.
    most: u32,
    /// The last segment is merged when the index has fewer keys than this number.
    least: u32,
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { segments: Vec::new(), half: 1, most: 0, least: 0 }
    }

    /// Returns the index of the segment that contains the keys with `hash`.
    #[inline]
    const fn segment_of(&self, hash: u32) -> usize {
        let at = hash & (self.half * 2 - 1);
        // If segment `at` does not exist yet, its keys are still in the segment from which it will
        // be split off.
        if at as usize >= self.segments.len() { (at ^ self.half) as usize } else { at as usize }
    }

    /// Returns true if the index does not fit into the nearest caches of the processor, so that
    /// prefetching saves time.
    #[inline]
    pub(crate) const fn is_large(&self) -> bool {
        self.segments.len() > CACHED
    }

    /// Makes the processor load the first bucket of `hash` into its cache.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(segment) = self.segments.get(self.segment_of(hash)) {
            segment.prefetch(hash);
        }
    }

    /// Returns the slot of the record that has `hash` and for which `is` returns true.
    #[inline]
    pub(crate) fn probe<T: Indexed>(
        &self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<Slot> {
        self.segments.get(self.segment_of(hash))?.probe(hash, |slot| is(records.get(slot)))
    }

    /// Searches only the first bucket of `hash`. Returns the slot of a record for which `is`
    /// returns true, or a free place for a new record.
    #[inline(always)]
    pub(crate) fn find_in_first_bucket<T: Indexed>(
        &mut self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Found<'_> {
        let at = self.segment_of(hash);
        // If the index must grow before the next insertion, the function returns no free place: a
        // split could move the place.
        let full = records.len() >= self.most as usize;
        match self.segments.get_mut(at) {
            Some(segment) => segment.find_in_first_bucket(hash, full, |slot| is(records.get(slot))),
            None => Found::Unclear,
        }
    }

    /// Inserts `slot` into the index. The caller has just inserted the record with `hash` into
    /// `records` at this slot.
    pub(crate) fn insert<T: Indexed>(&mut self, records: &mut Slab<T>, hash: u32, slot: Slot) {
        // `records` already contains the new record. The index grows before the insertion, so that
        // the segment has a free place.
        if records.len() > self.most as usize {
            self.split_segment(records);
        }
        let at = self.segment_of(hash);
        self.segments[at].insert(records, slot);
    }

    /// Removes `slot` from the index. The caller has just removed its record from `records`.
    #[inline]
    pub(crate) fn remove<T: Indexed>(
        &mut self,
        records: &mut Slab<T>,
        slot: Slot,
        hash: u32,
        position: Position,
    ) {
        let at = self.segment_of(hash);
        self.segments[at].remove(hash, slot, position);
        self.shrink_if_sparse(records);
    }

    /// Removes the slot of the record that has `hash` and for which `is` returns true, and returns
    /// this slot. The caller then removes the record from `records`, and calls
    /// [`shrink_if_sparse`](Self::shrink_if_sparse).
    #[inline]
    pub(crate) fn take_slot<T: Indexed>(
        &mut self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<Slot> {
        let at = self.segment_of(hash);
        self.segments.get_mut(at)?.take_slot(hash, |slot| is(records.get(slot)))
    }

    /// Merges the last segment if few records are left.
    #[inline]
    pub(crate) fn shrink_if_sparse<T: Indexed>(&mut self, records: &mut Slab<T>) {
        if records.len() < self.least as usize {
            self.merge_segment(records);
        }
    }

    /// Replaces slot `from` with slot `to`, after the slab has moved the record.
    pub(crate) fn move_slot<T: Indexed>(&mut self, records: &Slab<T>, from: Slot, to: Slot) {
        let record = records.get(to);
        let hash = record.key_hash();
        let at = self.segment_of(hash);
        self.segments[at].replace_slot(hash, from, record.index_position(), to);
    }

    #[cold]
    fn split_segment<T: Indexed>(&mut self, records: &mut Slab<T>) {
        if self.segments.is_empty() {
            self.segments.push(Segment::new(0));
        } else {
            let next = self.segments.len() - self.half as usize;
            let new = self.segments[next].split_off(self.half, records);
            self.segments.push(new);
        }
        self.update_bounds();
    }

    #[cold]
    fn merge_segment<T: Indexed>(&mut self, records: &mut Slab<T>) {
        let Some(last) = self.segments.pop() else { return };
        self.update_bounds();
        let into = self.segments.len() - self.half as usize;
        // Every key fits, because `insert` doubles a segment that is full. This happens only if
        // many hashes have the same last bits.
        for slot in last.slots() {
            self.segments[into].insert(records, slot);
        }
        give_back(&mut self.segments);
    }

    /// Computes the numbers of keys at which the next segment is split, and at which the last
    /// segment is merged.
    ///
    /// While the average number of keys per bucket grows from `FULL` to `FULL + 1`, each segment is
    /// split one time. A segment is merged if the average is below three keys per two buckets.
    fn update_bounds(&mut self) {
        let segments = self.segments.len();
        self.half = 1 << segments.ilog2();
        let split = segments - self.half as usize;
        let most = BUCKETS * (self.half as usize * FULL as usize + split);
        let least = if segments > 1 { BUCKETS * segments * 3 / 2 } else { 0 };
        // The index has fewer than 2^32 keys, because a record stores 32 bits of its hash.
        let number = |keys: usize| u32::try_from(keys).unwrap_or(u32::MAX);
        (self.most, self.least) = (number(most), number(least));
    }

    /// Calls `visit` for the records of whole segments, from rank `from` on, until it has visited
    /// at least `limit` records. Returns the rank at which the next call continues, or `None` if
    /// all segments have been visited.
    ///
    /// The rank of a hash consists of the bits of the hash in reverse order. Each segment contains
    /// a contiguous range of ranks, regardless of the splits that created it. A walk by rank
    /// therefore visits each record one time even if the index grows during the walk.
    pub(crate) fn visit_segments(
        &self,
        from: u32,
        limit: usize,
        mut visit: impl FnMut(Slot),
    ) -> Option<u32> {
        let mut from = from;
        let mut seen = 0;
        loop {
            let at = self.segment_of(from.reverse_bits());
            for slot in self.segments.get(at)?.slots() {
                seen += 1;
                visit(slot);
            }
            // The hashes of a segment that was split have one more bit in common, so the segment
            // contains half as many ranks.
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
