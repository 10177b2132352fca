//! A bucket of the index: the tags and slots of up to twelve keys, in 64 bytes, the size of a cache
//! line.
//!
//! A bucket has eight words. The first word contains the tags of places 0 to 7. The lower half of
//! the second word contains the tags of places 8 to 11, and its upper half the number of keys that
//! have overflowed to later buckets. The other six words contain two slots each. All reads and
//! writes are of whole words, because the processor delays a read that spans two recent writes.

use wide::u8x16;

use crate::types::Slot;

/// The number of places in a bucket.
pub(super) const WIDTH: usize = 12;
/// The number of 64-bit words in a bucket.
pub(super) const WORDS: usize = 8;

pub(super) type Bucket = [u64; WORDS];

/// A mask with one bit for each place.
const PLACES: u32 = (1 << WIDTH) - 1;
/// A mask for the lower half of a word. In the second word, only this half contains tags.
const SECOND: u64 = 0xFFFF_FFFF;
/// The position of the tag's seven bits in the hash. The bits above them choose the bucket, and the
/// bits below them choose the segment.
const TAG_SHIFT: u32 = 19;
/// The value that the second word gains for each overflowed key.
const OVERFLOW: u64 = 1 << 32;

/// Returns the tag of a key with `hash`. The highest bit marks the place as taken, and the other
/// seven bits are from the hash.
#[inline]
const fn tag(hash: u32) -> u8 {
    (hash >> TAG_SHIFT & 0x7F | 0x80) as u8
}

/// Returns the tags of the twelve places, followed by four bytes that are not tags.
#[inline]
fn tags(bucket: &Bucket) -> u8x16 {
    let tags = u128::from(bucket[0]) | u128::from(bucket[1]) << 64;
    u8x16::new(tags.to_le_bytes())
}

/// Returns the places whose tag equals the tag of `hash`. Only these places can contain a key with
/// `hash`.
#[inline]
pub(super) fn matching_places(bucket: &Bucket, hash: u32) -> Places {
    // The mask removes the four bytes of the overflow counter, because they can look like tags.
    Places(tags(bucket).simd_eq(u8x16::splat(tag(hash))).to_bitmask() & PLACES)
}

/// Returns the places that contain a slot.
#[inline]
pub(super) fn taken_places(bucket: &Bucket) -> Places {
    Places(tags(bucket).to_bitmask() & PLACES)
}

/// Returns the places that contain no slot.
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

/// Puts `slot` into `place`, which must be free.
#[inline]
pub(super) fn put_slot(bucket: &mut Bucket, place: usize, hash: u32, slot: Slot) {
    bucket[place / 8 % 2] |= u64::from(tag(hash)) << (place % 8 * 8);
    set_slot(bucket, place, slot);
}

#[inline]
pub(super) fn clear_place(bucket: &mut Bucket, place: usize) {
    bucket[place / 8 % 2] &= !(0xFF << (place % 8 * 8));
}

/// Returns true if the index put a key into a later bucket because this bucket was full.
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

/// A set of places, as a mask with one bit for each place.
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
