//! A line of the table: 64 bytes, one cache line.
//!
//! Eight words: the tags of places 0 to 7; those of 8 to 11, and above them how many keys have gone
//! past the line; then twelve slots, two a word. Words are read as they are written, whole: a read
//! that spans two writes waits for both.

/// Keys in a line.
const WIDTH: usize = 12;
/// Words in a line.
pub(super) const WORDS: usize = 8;

pub(super) type Line = [u64; WORDS];

/// Bits that say a place is taken, in the tags of a line read as one number.
const TAKEN: u128 = 0x8080_8080_8080_8080_8080_8080;
/// One in each of those bytes.
const ONES: u128 = TAKEN >> 7;
/// One key gone past the line.
const PAST: u64 = 1 << 32;

/// The tags of a line, each a byte: zero, or a bit that says so and seven of the hash.
#[inline]
fn tags(line: &Line) -> u128 {
    u128::from(line[0]) | u128::from(line[1] as u32) << 64
}

/// The tag of a key with `hash`.
#[inline]
const fn tag(hash: u32) -> u128 {
    (hash & 0x7F | 0x80) as u128
}

/// The places where a key with `hash` may be. A place above one that matches may be taken for one,
/// too; whoever looks compares anyway.
#[inline]
pub(super) fn matching(line: &Line, hash: u32) -> Places {
    let difference = tags(line) ^ (ONES * tag(hash));
    Places(difference.wrapping_sub(ONES) & !difference & TAKEN)
}

/// The places that are taken.
#[inline]
pub(super) fn taken(line: &Line) -> Places {
    Places(tags(line) & TAKEN)
}

#[inline]
pub(super) fn has_room(line: &Line) -> bool {
    tags(line) & TAKEN != TAKEN
}

#[inline]
pub(super) fn slot(line: &Line, place: usize) -> u32 {
    (line[2 + place % WIDTH / 2] >> (place % 2 * 32)) as u32
}

#[inline]
pub(super) fn set_slot(line: &mut Line, place: usize, slot: u32) {
    let shift = place % 2 * 32;
    let word = &mut line[2 + place % WIDTH / 2];
    *word = *word & !(0xFFFF_FFFF << shift) | u64::from(slot) << shift;
}

/// Puts `slot` into the first free place of a line that has room.
#[inline]
pub(super) fn put(line: &mut Line, hash: u32, slot: u32) {
    if let Some(place) = Places(!tags(line) & TAKEN).next() {
        line[place / 8 % 2] |= (tag(hash) as u64) << (place % 8 * 8);
        set_slot(line, place, slot);
    }
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

pub(super) fn one_more_past(line: &mut Line) {
    line[1] += PAST;
}

pub(super) fn one_less_past(line: &mut Line) {
    line[1] -= PAST;
}

/// Places of a line, as bits.
pub(super) struct Places(u128);

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_line_holds_twelve_and_gives_back_each() {
        let mut line = Line::default();
        for n in 0..12 {
            assert!(has_room(&line));
            put(&mut line, n * 7, 1000 + n);
        }
        assert!(!has_room(&line));
        for n in 0..12 {
            let place = matching(&line, n * 7).find(|&place| slot(&line, place) == 1000 + n);
            assert_eq!(place, Some(n as usize));
        }
        set_slot(&mut line, 9, 5);
        clear(&mut line, 3);
        assert_eq!(taken(&line).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!((slot(&line, 8), slot(&line, 9), slot(&line, 10)), (1008, 5, 1010));
        one_more_past(&mut line);
        assert!(overflows(&line));
        put(&mut line, 1, 2);
        one_less_past(&mut line);
        assert!(!overflows(&line) && !has_room(&line));
    }
}
