//! An index from the hash of a key to the slot of its record.
//!
//! The index consists of segments, and a segment of buckets of 64 bytes. Each bucket has the tags
//! and slots of up to twelve keys (`bucket`), so that most probes touch one cache line. A bucket
//! that has overflowed counts the keys that went to later buckets, so that a removal leaves no
//! tombstone. This is the layout of F14 (N. Bronson and X. Shi, *Open-sourcing F14*, 2019).
//!
//! The segments are the buckets of linear hashing (W. Litwin, *Linear hashing: a new tool for file and table
//! addressing*, 1980). As keys are added, segments are split in two, one after the other; as keys are removed, segments
//! are merged again. Rehashing all keys in one step would block every caller for tens of milliseconds. A step here
//! touches a few hundred keys. Half of them stay where they are. The other keys move to the same bucket and place of
//! the new segment.

mod bucket;
mod segment;

use alloc::vec::Vec;

use self::segment::{BITS, FULL, Segment};
pub(crate) use self::segment::{Found, Position};
use super::chunked::give_back;
use super::slab::Slab;
use crate::types::Slot;

/// The number of buckets in a segment.
const BUCKETS: usize = 1 << BITS;
/// The number of segments that fit into the processor's nearest caches.
const CACHED: usize = 64;

/// A record that stores the hash of its key, and its position in the index.
pub(crate) trait Indexed {
    fn key_hash(&self) -> u32;
    fn index_position(&self) -> Position;
    fn set_position(&mut self, position: Position);
}

/// Folds a key's hash into the 32 bits that records store. Every bit depends on all bits of `hash`,
/// so that hashes that differ in few bits choose different segments, buckets and tags.
pub(crate) const fn fold(hash: u64) -> u32 {
    let product = hash as u128 * 0x9E37_79B9_7F4A_7C15;
    (product ^ product >> 64) as u32
}

pub(crate) struct Index {
    segments: Vec<Segment>,
    /// The number of segments, rounded down to a power of two. Each segment with this number or a higher number was
    /// split off a lower segment.
    half: u32,
    /// If the index has more keys than this number, the next segment is split.
    most: u32,
    /// If the index has fewer keys than this number, the last segment is merged.
    least: u32,
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { segments: Vec::new(), half: 1, most: 0, least: 0 }
    }

    /// Returns the number of the segment of keys with `hash`.
    #[inline]
    const fn segment_of(&self, hash: u32) -> usize {
        let at = hash & (self.half * 2 - 1);
        // If segment `at` does not exist yet, its keys are still in the segment that will be split.
        if at as usize >= self.segments.len() { (at ^ self.half) as usize } else { at as usize }
    }

    /// Returns true if the index is larger than the processor's nearest caches, so that prefetching
    /// pays.
    #[inline]
    pub(crate) const fn is_large(&self) -> bool {
        self.segments.len() > CACHED
    }

    /// Makes the processor fetch the first bucket of `hash` into its cache.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(segment) = self.segments.get(self.segment_of(hash)) {
            segment.prefetch(hash);
        }
    }

    /// Returns the slot of the record with `hash` for which `is` returns true.
    #[inline]
    pub(crate) fn probe<T: Indexed>(
        &self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Option<Slot> {
        self.segments.get(self.segment_of(hash))?.probe(hash, |slot| is(records.get(slot)))
    }

    /// Looks up `hash` in the first bucket only. Finds the slot of a record for which `is` returns
    /// true, or a free place for a new record.
    #[inline(always)]
    pub(crate) fn find_in_first_bucket<T: Indexed>(
        &mut self,
        records: &Slab<T>,
        hash: u32,
        mut is: impl FnMut(&T) -> bool,
    ) -> Found<'_> {
        let at = self.segment_of(hash);
        // An index that must grow offers no free place, because the split comes before the
        // insertion.
        let full = records.len() >= self.most as usize;
        match self.segments.get_mut(at) {
            Some(segment) => segment.find_in_first_bucket(hash, full, |slot| is(records.get(slot))),
            None => Found::Unclear,
        }
    }

    /// Inserts the record in `slot`, which the caller has just inserted into `records`.
    pub(crate) fn insert<T: Indexed>(&mut self, records: &mut Slab<T>, hash: u32, slot: Slot) {
        // The record is already in `records`. The index grows first, because the insertion needs a
        // free place.
        if records.len() > self.most as usize {
            self.split_segment(records);
        }
        let at = self.segment_of(hash);
        self.segments[at].insert(records, slot);
    }

    /// Removes a record that the caller has just removed from `slot`.
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

    /// Removes the record with `hash` for which `is` returns true, and returns its slot. The caller
    /// then removes the record from `records` and calls [`shrink_if_sparse`](Self::shrink_if_sparse).
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

    /// Shrinks the index if few records are left.
    #[inline]
    pub(crate) fn shrink_if_sparse<T: Indexed>(&mut self, records: &mut Slab<T>) {
        if records.len() < self.least as usize {
            self.merge_segment(records);
        }
    }

    /// Replaces the slot of a record that has moved from `from` to `to`.
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
        // If many hashes have the same last bits, `insert` doubles the segment. Every key therefore
        // fits.
        for slot in last.slots() {
            self.segments[into].insert(records, slot);
        }
        give_back(&mut self.segments);
    }

    /// Sets the numbers of keys at which the next segment is split or the last segment is merged.
    ///
    /// While the average grows from `FULL` to `FULL + 1` keys per bucket, each segment is split one
    /// time. Segments are merged if the average is below three keys per two buckets.
    fn update_bounds(&mut self) {
        let segments = self.segments.len();
        self.half = 1 << segments.ilog2();
        let split = segments - self.half as usize;
        let most = BUCKETS * (self.half as usize * FULL as usize + split);
        let least = if segments > 1 { BUCKETS * segments * 3 / 2 } else { 0 };
        // There are fewer than 2^32 keys.
        let number = |keys: usize| u32::try_from(keys).unwrap_or(u32::MAX);
        (self.most, self.least) = (number(most), number(least));
    }

    /// Calls `visit` for the records of whole segments, from the segment of rank `from` on, until
    /// it has visited at least `limit` records. Returns the rank before which all records have been
    /// visited, or `None` if all records have been visited.
    ///
    /// The rank of a hash is its bits in reverse. The ranks of a segment are a contiguous range,
    /// regardless of the splits that created it, so that a walk by rank is stable while the index
    /// grows.
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
            // The hashes of a segment that was split have one more bit in common, so the segment covers half as many
            // ranks.
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
