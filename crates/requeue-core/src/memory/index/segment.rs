//! A segment of the index: the buckets of all keys whose hashes have the same last bits.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU8;

use super::Indexed;
use super::bucket::{self, Bucket, WIDTH, WORDS};
use crate::memory::prefetch::prefetch;
use crate::memory::slab::Slab;
use crate::types::Slot;

/// The binary logarithm of the number of buckets in a segment (4 KiB), if the index has several
/// segments.
pub(super) const BITS: u32 = 6;
/// A segment with fewer than 2^`BITS` buckets is full at this average number of taken places per
/// bucket, out of twelve.
pub(super) const FULL: u32 = 7;
/// A segment with 2^`BITS` buckets is full at this average number of taken places per bucket. It
/// reaches the average only if many hashes have the same last bits, because the index splits its
/// segments earlier.
const CRAMMED: u32 = 10;

/// The position of a key's slot in the index. Each record stores this position, so that the index
/// can remove most slots without a search. The value is stored as `2 place + 1`, so that it is
/// never 0, like a [`Slot`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Position(NonZeroU8);

impl Position {
    /// The slot overflowed to a later bucket of its probe sequence.
    pub(crate) const OVERFLOWED: Self = Self::in_place(15);

    /// The slot is in the first bucket of its probe sequence, at `place`.
    #[inline]
    const fn in_place(place: usize) -> Self {
        match NonZeroU8::new((place as u8) << 1 | 1) {
            Some(bits) => Self(bits),
            None => Self(NonZeroU8::MIN),
        }
    }

    #[inline]
    const fn place(self) -> usize {
        (self.0.get() >> 1) as usize
    }
}

pub(super) struct Segment {
    words: Vec<u64>,
    /// The index of the word at which the first bucket begins. The address of this word is a
    /// multiple of 64, the size of a cache line.
    base: u8,
    /// The binary logarithm of the number of buckets.
    bits: u8,
    /// The number of keys that the segment can still take before it doubles its buckets.
    left: u32,
}

/// The result of a search in the first bucket of a key's probe sequence.
#[must_use]
pub(crate) enum Found<'a> {
    /// The key is in the index, with this slot.
    Slot(Slot),
    /// The key is not in the index. This place in its first bucket is free.
    Free(FreePlace<'a>),
    /// The first bucket does not decide: the key may be in a later bucket, or the index must grow
    /// before the insertion.
    Unclear,
}

/// A free place in the first bucket of a key's probe sequence.
#[must_use]
pub(crate) struct FreePlace<'a> {
    bucket: &'a mut Bucket,
    left: &'a mut u32,
    place: usize,
}

impl FreePlace<'_> {
    /// Returns the position that the new record must store.
    #[inline]
    pub(crate) const fn position(&self) -> Position {
        Position::in_place(self.place)
    }

    #[inline(always)]
    pub(crate) fn put_slot(self, hash: u32, slot: Slot) {
        bucket::put_slot(self.bucket, self.place, hash, slot);
        *self.left -= 1;
    }
}

impl Segment {
    pub(super) fn new(bits: u32) -> Self {
        let buckets = 1 << bits;
        // Safe code cannot choose the alignment of a vector. The additional words let the first
        // bucket begin at the start of a cache line.
        let words = vec![0; buckets * WORDS + WORDS - 1];
        let base = (words.as_ptr() as usize).wrapping_neg() % 64 / 8;
        let base = base.min(WORDS - 1) as u8;
        let full = if bits < BITS { FULL } else { CRAMMED };
        Self { words, base, bits: bits as u8, left: full << bits }
    }

    const fn len(&self) -> usize {
        1 << self.bits
    }

    #[inline]
    fn bucket(&self, at: usize) -> &Bucket {
        let start = self.base as usize + at * WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => words,
            None => unreachable!("there is no bucket {at}"),
        }
    }

    #[inline]
    fn bucket_mut(&mut self, at: usize) -> &mut Bucket {
        let start = self.base as usize + at * WORDS;
        match self.words[start..].first_chunk_mut() {
            Some(words) => words,
            None => unreachable!("there is no bucket {at}"),
        }
    }

    /// Returns the first bucket of the probe sequence of `hash`. The upper bits of the hash choose
    /// the bucket, because its lower bits have chosen the segment.
    #[inline]
    const fn first_bucket(&self, hash: u32) -> usize {
        (((hash as u64) << self.bits) >> 32) as usize
    }

    const fn next_bucket(&self, at: usize) -> usize {
        (at + 1) & (self.len() - 1)
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch(&self.words, self.base as usize + self.first_bucket(hash) * WORDS);
    }

    /// Searches only the first bucket of `hash`. If `full` is true, the index must grow first, and
    /// the function returns no free place.
    #[inline(always)]
    pub(super) fn find_in_first_bucket(
        &mut self,
        hash: u32,
        full: bool,
        mut is: impl FnMut(Slot) -> bool,
    ) -> Found<'_> {
        let start = self.base as usize + self.first_bucket(hash) * WORDS;
        let Some(bucket) = self.words[start..].first_chunk_mut() else { return Found::Unclear };
        for place in bucket::matching_places(bucket, hash) {
            if let Some(slot) = bucket::slot_at(bucket, place)
                && is(slot)
            {
                return Found::Slot(slot);
            }
        }
        match bucket::free_places(bucket).first() {
            Some(place) if !full && self.left > 0 && !bucket::has_overflowed(bucket) => {
                Found::Free(FreePlace { bucket, left: &mut self.left, place })
            }
            _ => Found::Unclear,
        }
    }

    /// Returns the slot that is stored under `hash` and for which `is` returns true.
    #[inline]
    pub(super) fn probe(&self, hash: u32, is: impl FnMut(Slot) -> bool) -> Option<Slot> {
        self.search(hash, is).map(|(_, _, slot)| slot)
    }

    /// Like [`probe`](Self::probe). Also returns the bucket and the place of the slot.
    #[inline]
    fn search(&self, hash: u32, mut is: impl FnMut(Slot) -> bool) -> Option<(usize, usize, Slot)> {
        let first = self.first_bucket(hash);
        let mut at = first;
        loop {
            let bucket = self.bucket(at);
            for place in bucket::matching_places(bucket, hash) {
                if let Some(slot) = bucket::slot_at(bucket, place)
                    && is(slot)
                {
                    return Some((at, place, slot));
                }
            }
            // If no key has overflowed from this bucket, the key is in no later bucket. Most
            // searches therefore read only one cache line.
            let overflowed = bucket::has_overflowed(bucket);
            at = self.next_bucket(at);
            if !overflowed || at == first {
                return None;
            }
        }
    }

    /// Inserts `slot`, and stores its position in the record.
    pub(super) fn insert<T: Indexed>(&mut self, records: &mut Slab<T>, slot: Slot) {
        if self.left == 0 {
            self.double_buckets(records);
        }
        let record = records.get_mut(slot);
        let position = self.put_slot(record.key_hash(), slot);
        record.set_position(position);
    }

    /// Puts `slot` into the first bucket of the probe sequence of `hash` that has a free place.
    fn put_slot(&mut self, hash: u32, slot: Slot) -> Position {
        // The loop terminates, because the caller makes sure that the segment has a free place.
        self.left -= 1;
        let first = self.first_bucket(hash);
        let mut at = first;
        loop {
            let bucket = self.bucket_mut(at);
            if let Some(place) = bucket::free_places(bucket).first() {
                bucket::put_slot(bucket, place, hash, slot);
                return if at == first { Position::in_place(place) } else { Position::OVERFLOWED };
            }
            bucket::add_overflow(bucket);
            at = self.next_bucket(at);
        }
    }

    /// Replaces `slot`, which is stored under `hash` at `position`, with `to`.
    pub(super) fn replace_slot(&mut self, hash: u32, slot: Slot, position: Position, to: Slot) {
        let found = match position {
            Position::OVERFLOWED => self.search(hash, |it| it == slot),
            _ => Some((self.first_bucket(hash), position.place(), slot)),
        };
        if let Some((at, place, _)) = found {
            bucket::set_slot(self.bucket_mut(at), place, to);
        }
    }

    /// Removes `slot`, which is stored under `hash` at `position`.
    #[inline]
    pub(super) fn remove(&mut self, hash: u32, slot: Slot, position: Position) {
        if position == Position::OVERFLOWED {
            return self.remove_overflowed(hash, slot);
        }
        let bucket = self.bucket_mut(self.first_bucket(hash));
        debug_assert!(bucket::slot_at(bucket, position.place()) == Some(slot));
        bucket::clear_place(bucket, position.place());
        self.left += 1;
    }

    // This search is a separate function, so that `remove` does not save registers for a search
    // that it rarely needs.
    #[cold]
    fn remove_overflowed(&mut self, hash: u32, slot: Slot) {
        self.take_slot(hash, |it| it == slot);
    }

    /// Removes the slot that is stored under `hash` and for which `is` returns true, and returns
    /// it.
    #[inline]
    pub(super) fn take_slot(&mut self, hash: u32, is: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let (found, place, slot) = self.search(hash, is)?;
        bucket::clear_place(self.bucket_mut(found), place);
        self.left += 1;
        // Each bucket between the first bucket and `found` counted the slot as overflowed.
        let mut at = self.first_bucket(hash);
        while at != found {
            bucket::remove_overflow(self.bucket_mut(at));
            at = self.next_bucket(at);
        }
        Some(slot)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..self.len()).flat_map(|at| {
            let bucket = self.bucket(at);
            bucket::taken_places(bucket).filter_map(|place| bucket::slot_at(bucket, place))
        })
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.len() * WIDTH
    }

    /// Doubles the number of buckets.
    #[cold]
    fn double_buckets<T: Indexed>(&mut self, records: &mut Slab<T>) {
        let mut new = Self::new(u32::from(self.bits) + 1);
        for slot in self.slots() {
            new.insert(records, slot);
        }
        *self = new;
    }

    /// Moves all keys whose hashes have `bit` into a new segment.
    ///
    /// A key in the first bucket of its probe sequence keeps its bucket number and place, in either
    /// segment. The split therefore reads the record of the key, but does not write to it.
    pub(super) fn split_off<T: Indexed>(&mut self, bit: u32, records: &mut Slab<T>) -> Self {
        let mut new = Self::new(u32::from(self.bits));
        // The first loop only reads the hashes. The records are far apart in memory, and the
        // processor can overlap reads that do not depend on each other.
        let mut slots = Vec::with_capacity(self.len() * WIDTH);
        slots.extend(self.slots());
        let hashes: Vec<u32> = slots.iter().map(|&slot| records.get(slot).key_hash()).collect();
        let mut keys = slots.into_iter().zip(hashes);
        let mut overflowed = Vec::new();
        let mut count = 0;
        for at in 0..self.len() {
            let (here, there) = (self.bucket(at), new.bucket_mut(at));
            let mut stay = *here;
            // The overflowed keys are inserted again below. These insertions count the overflows
            // again.
            bucket::clear_overflows(&mut stay);
            for (place, (slot, hash)) in bucket::taken_places(here).zip(&mut keys) {
                if self.first_bucket(hash) != at {
                    bucket::clear_place(&mut stay, place);
                    overflowed.push((hash, slot));
                } else if hash & bit != 0 {
                    bucket::clear_place(&mut stay, place);
                    bucket::put_slot(there, place, hash, slot);
                    count += 1;
                }
            }
            *self.bucket_mut(at) = stay;
        }
        self.left += count + overflowed.len() as u32;
        new.left -= count;
        for (hash, slot) in overflowed {
            let to = if hash & bit == 0 { &mut *self } else { &mut new };
            records.get_mut(slot).set_position(to.put_slot(hash, slot));
        }
        new
    }
}
