//! A bucket of the index: the tags and the slots of up to twelve keys in 64 bytes, a cache line.
//!
//! The first word holds the tags of places 0 to 7. The second word holds the tags of places 8 to 11. Its upper bytes
//! count the keys that have overflowed to later buckets. Six words hold two slots each. Words are read and written
//! whole, because a read that spans two writes waits for both.

use wide::u8x16;

use crate::types::Slot;

/// The number of places in a bucket.
pub(super) const WIDTH: usize = 12;
/// The number of 64-bit words in a bucket.
pub(super) const WORDS: usize = 8;

pub(super) type Bucket = [u64; WORDS];

/// One bit for each place.
const PLACES: u32 = (1 << WIDTH) - 1;
/// The lower half of a word, because the second word holds only four tags.
const SECOND: u64 = 0xFFFF_FFFF;
/// The position of the tag's seven bits in the hash. The bits above choose the bucket, and the bits below choose the
/// segment.
const TAG_SHIFT: u32 = 19;
/// One overflowed key, as counted in the second word.
const OVERFLOW: u64 = 1 << 32;

/// Returns the tag of a key with `hash`: a bit that marks the place as taken, and seven bits of the
/// hash.
#[inline]
const fn tag(hash: u32) -> u8 {
    (hash >> TAG_SHIFT & 0x7F | 0x80) as u8
}

/// Returns the tags of all places. The four bytes above the tags are not tags.
#[inline]
fn tags(bucket: &Bucket) -> u8x16 {
    let tags = u128::from(bucket[0]) | u128::from(bucket[1]) << 64;
    u8x16::new(tags.to_le_bytes())
}

/// Returns the places where a key with `hash` may be.
#[inline]
pub(super) fn matching_places(bucket: &Bucket, hash: u32) -> Places {
    // The mask removes the bytes of the overflow count, because these bytes can look like tags.
    Places(tags(bucket).simd_eq(u8x16::splat(tag(hash))).to_bitmask() & PLACES)
}

/// Returns the places that are taken.
#[inline]
pub(super) fn taken_places(bucket: &Bucket) -> Places {
    Places(tags(bucket).to_bitmask() & PLACES)
}

/// Returns the places that are free.
#[inline]
pub(super) fn free_places(bucket: &Bucket) -> Places {
    Places(!tags(bucket).to_bitmask() & PLACES)
}

#[inline]
pub(super) fn slot_at(bucket: &Bucket, place: usize) -> Option<Slot> {
    Slot::from_bits((bucket[2 + place % WIDTH / 2] >> (place % 2 * 32)) as u32)
}

#[inline]
pub(super) fn set_slot(bucket: &mut Bucket, place: usize, slot: Slot) {
    let shift = place % 2 * 32;
    let word = &mut bucket[2 + place % WIDTH / 2];
    *word = *word & !(SECOND << shift) | u64::from(Slot::to_bits(Some(slot))) << shift;
}

/// Puts `slot` into a free place.
#[inline]
pub(super) fn put_slot(bucket: &mut Bucket, place: usize, hash: u32, slot: Slot) {
    bucket[place / 8 % 2] |= u64::from(tag(hash)) << (place % 8 * 8);
    set_slot(bucket, place, slot);
}

#[inline]
pub(super) fn clear_place(bucket: &mut Bucket, place: usize) {
    bucket[place / 8 % 2] &= !(0xFF << (place % 8 * 8));
}

/// Returns true if a key was inserted into a later bucket because this bucket was full.
#[inline]
pub(super) fn has_overflowed(bucket: &Bucket) -> bool {
    bucket[1] >= OVERFLOW
}

pub(super) fn clear_overflows(bucket: &mut Bucket) {
    bucket[1] &= SECOND;
}

pub(super) fn add_overflow(bucket: &mut Bucket) {
    bucket[1] += OVERFLOW;
}

pub(super) fn remove_overflow(bucket: &mut Bucket) {
    bucket[1] -= OVERFLOW;
}

/// A set of places, with one bit for each.
#[derive(Clone, Copy)]
pub(super) struct Places(u32);

impl Places {
    #[inline]
    pub(super) const fn first(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as usize) }
    }
}

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let place = self.first()?;
        self.0 &= self.0 - 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Id;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn a_line_holds_twelve_and_gives_back_each() {
        let at = |index| Slot::new(index);
        let mut bucket = Bucket::default();
        for n in 0..12 {
            let place = free_places(&bucket).first().unwrap();
            put_slot(&mut bucket, place, n << 20, at(1000 + place));
            assert!(matching_places(&bucket, n << 20).any(|at| at == place));
        }
        assert_eq!(free_places(&bucket).first(), None);
        set_slot(&mut bucket, 9, at(5));
        clear_place(&mut bucket, 3);
        let places: BTreeSet<_> = taken_places(&bucket).collect();
        assert_eq!(places, (0..12).filter(|&place| place != 3).collect());
        assert_eq!(free_places(&bucket).collect::<Vec<_>>(), [3]);
        assert_eq!(
            [8, 9, 10].map(|place| slot_at(&bucket, place)),
            [1008, 5, 1010].map(|index| Some(at(index)))
        );
        add_overflow(&mut bucket);
        assert!(has_overflowed(&bucket));
        put_slot(&mut bucket, 3, 1, at(2));
        remove_overflow(&mut bucket);
        assert!(!has_overflowed(&bucket) && free_places(&bucket).first().is_none());
        assert_eq!(slot_at(&bucket, 3), Some(at(2)));
    }
}
