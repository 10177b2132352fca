//! A line of the table: 64 bytes, one cache line.
//!
//! Eight words: the tags of places 0 to 7; those of 8 to 11, and above them how many keys have gone
//! past the line; then twelve slots, two a word. Words are read as they are written, whole: a read
//! that spans two writes waits for both.

use wide::u8x16;

/// Keys in a line.
const WIDTH: usize = 12;
/// Words in a line.
pub(super) const WORDS: usize = 8;

pub(super) type Line = [u64; WORDS];

/// A bit for each place.
const PLACES: u32 = (1 << WIDTH) - 1;
/// The four tags of the second word.
const SECOND: u64 = 0xFFFF_FFFF;
/// Which seven bits of the hash: those before tell the line, those after the segment.
const TAG: u32 = 19;
/// One key gone past the line.
const PAST: u64 = 1 << 32;

/// The tag of a key with `hash`: a bit that says the place is taken, and seven of the hash.
#[inline]
const fn tag(hash: u32) -> u8 {
    (hash >> TAG & 0x7F | 0x80) as u8
}

/// The first two words. Each is read whole.
#[inline]
fn tags(line: &Line) -> u8x16 {
    let tags = u128::from(line[0]) | u128::from(line[1]) << 64;
    u8x16::new(tags.to_le_bytes())
}

/// The places where a key with `hash` may be.
#[inline]
pub(super) fn matching(line: &Line, hash: u32) -> Places {
    Places(tags(line).simd_eq(u8x16::splat(tag(hash))).to_bitmask() & PLACES)
}

/// The places that are taken.
#[inline]
pub(super) fn taken(line: &Line) -> Places {
    Places(tags(line).to_bitmask() & PLACES)
}

/// The places that are not.
#[inline]
pub(super) fn free(line: &Line) -> Places {
    Places(!tags(line).to_bitmask() & PLACES)
}

#[inline]
pub(super) fn slot(line: &Line, place: usize) -> u32 {
    (line[2 + place % WIDTH / 2] >> (place % 2 * 32)) as u32
}

#[inline]
pub(super) fn set_slot(line: &mut Line, place: usize, slot: u32) {
    let shift = place % 2 * 32;
    let word = &mut line[2 + place % WIDTH / 2];
    *word = *word & !(SECOND << shift) | u64::from(slot) << shift;
}

/// Puts `slot` into a free place.
#[inline]
pub(super) fn put(line: &mut Line, place: usize, hash: u32, slot: u32) {
    line[place / 8 % 2] |= u64::from(tag(hash)) << (place % 8 * 8);
    set_slot(line, place, slot);
}

#[inline]
pub(super) fn clear(line: &mut Line, place: usize) {
    line[place / 8 % 2] &= !(0xFF << (place % 8 * 8));
}

/// Whether a key that belongs here, or before, is in a later line.
#[inline]
pub(super) fn overflows(line: &Line) -> bool {
    line[1] >= PAST
}

pub(super) fn forget_past(line: &mut Line) {
    line[1] &= SECOND;
}

pub(super) fn one_more_past(line: &mut Line) {
    line[1] += PAST;
}

pub(super) fn one_less_past(line: &mut Line) {
    line[1] -= PAST;
}

/// Places of a line, a bit each.
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
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn a_line_holds_twelve_and_gives_back_each() {
        let mut line = Line::default();
        for n in 0..12 {
            let place = free(&line).first().unwrap();
            put(&mut line, place, n << 20, 1000 + place as u32);
            assert!(matching(&line, n << 20).any(|at| at == place));
        }
        assert_eq!(free(&line).first(), None);
        set_slot(&mut line, 9, 5);
        clear(&mut line, 3);
        let places: BTreeSet<_> = taken(&line).collect();
        assert_eq!(places, (0..12).filter(|&place| place != 3).collect());
        assert_eq!(free(&line).collect::<Vec<_>>(), [3]);
        assert_eq!((slot(&line, 8), slot(&line, 9), slot(&line, 10)), (1008, 5, 1010));
        one_more_past(&mut line);
        assert!(overflows(&line));
        put(&mut line, 3, 1, 2);
        one_less_past(&mut line);
        assert!(!overflows(&line) && free(&line).first().is_none());
        assert_eq!(slot(&line, 3), 2);
    }
}
