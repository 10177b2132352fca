//! A part of the index: lines for the keys whose hashes end in the same bits.

use alloc::vec;
use alloc::vec::Vec;

use super::Indexed;
use super::line::{self, Line, WORDS};
use crate::prefetch::prefetch;
use crate::slab::Slab;

/// A segment has 2 to this many lines, once there are several: 4 KiB.
pub(super) const BITS: u32 = 6;
/// How many of a line's twelve places are taken on average when a small segment is full.
pub(super) const FULL: u32 = 7;
/// The same for one of the usual size: so many only where hashes are alike.
const CRAMMED: u32 = 10;

/// The place in its line of a key that is in the first line of its way; of others, `AWAY`.
pub(crate) type Place = u8;
pub(crate) const AWAY: Place = 15;

pub(super) struct Segment {
    words: Vec<u64>,
    /// Where the first line begins: at an address that is a multiple of 64.
    base: u8,
    /// There are 2 to this many lines.
    bits: u8,
    /// How many more keys it takes before it has to be doubled.
    left: u32,
}

/// What a glance at the first line of a key's way shows.
#[must_use]
pub(crate) enum Found<'a> {
    /// The slot of the key.
    Slot(u32),
    /// There is no such key, and room for it.
    Room(Room<'a>),
    /// More has to be looked at, or done.
    Unclear,
}

/// A free place in the first line of a key's way.
#[must_use]
pub(crate) struct Room<'a> {
    line: &'a mut Line,
    left: &'a mut u32,
    place: usize,
}

impl Room<'_> {
    /// What the record that is put there has to say.
    #[inline]
    pub(crate) const fn place(&self) -> Place {
        self.place as Place
    }

    #[inline]
    pub(crate) fn put(self, hash: u32, slot: u32) {
        line::put(self.line, self.place, hash, slot);
        *self.left -= 1;
    }
}

impl Segment {
    pub(super) fn new(bits: u32) -> Self {
        let lines = 1 << bits;
        let words = vec![0; lines * WORDS + WORDS - 1];
        let base = (words.as_ptr() as usize).wrapping_neg() % 64 / 8;
        let base = base.min(WORDS - 1) as u8;
        Self { words, base, bits: bits as u8, left: Self::most(bits) }
    }

    const fn most(bits: u32) -> u32 {
        let full = if bits < BITS { FULL } else { CRAMMED };
        full << bits
    }

    const fn bits(&self) -> u32 {
        self.bits as u32
    }

    const fn lines(&self) -> usize {
        1 << self.bits
    }

    #[inline]
    fn line(&self, line: usize) -> &Line {
        let start = self.base as usize + line * WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => words,
            None => unreachable!("there is no line {line}"),
        }
    }

    #[inline]
    fn line_mut(&mut self, line: usize) -> &mut Line {
        let start = self.base as usize + line * WORDS;
        match self.words[start..].first_chunk_mut() {
            Some(words) => words,
            None => unreachable!("there is no line {line}"),
        }
    }

    /// The line where a key with `hash` belongs. The first bits tell it, as the last ones tell the
    /// segment.
    #[inline]
    const fn first(&self, hash: u32) -> usize {
        (((hash as u64) << self.bits) >> 32) as usize
    }

    const fn next(&self, line: usize) -> usize {
        (line + 1) & (self.lines() - 1)
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch(&self.words, self.base as usize + self.first(hash) * WORDS);
    }

    /// What the first line of the way of `hash` says; no room is found where the index is `full`.
    #[inline(always)]
    pub(super) fn glance(
        &mut self,
        hash: u32,
        full: bool,
        mut is: impl FnMut(u32) -> bool,
    ) -> Found<'_> {
        let start = self.base as usize + self.first(hash) * WORDS;
        let Some(line) = self.words[start..].first_chunk_mut() else { return Found::Unclear };
        for place in line::matching(line, hash) {
            let slot = line::slot(line, place);
            if is(slot) {
                return Found::Slot(slot);
            }
        }
        match line::free(line).first() {
            Some(place) if !full && self.left > 0 && !line::overflows(line) => {
                Found::Room(Room { line, left: &mut self.left, place })
            }
            _ => Found::Unclear,
        }
    }

    /// The slot under `hash` for which `is` holds.
    #[inline]
    pub(super) fn probe(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let first = self.first(hash);
        let mut at = first;
        loop {
            let line = self.line(at);
            let mut slots = line::matching(line, hash).map(|place| line::slot(line, place));
            if let Some(slot) = slots.find(|&slot| is(slot)) {
                return Some(slot);
            }
            let overflows = line::overflows(line);
            at = self.next(at);
            if !overflows || at == first {
                return None;
            }
        }
    }

    /// Notes the record in `slot`.
    pub(super) fn note<T: Indexed>(&mut self, records: &mut Slab<T>, slot: u32) {
        if self.left == 0 {
            self.double(records);
        }
        let record = records.get_mut(slot);
        let place = self.put(record.hash(), slot);
        record.set_place(place);
    }

    /// Puts `slot` into the first line with room on its way.
    fn put(&mut self, hash: u32, slot: u32) -> Place {
        self.left -= 1;
        let first = self.first(hash);
        let mut at = first;
        loop {
            let line = self.line_mut(at);
            if let Some(place) = line::free(line).first() {
                line::put(line, place, hash, slot);
                return if at == first { place as Place } else { AWAY };
            }
            line::one_more_past(line);
            at = self.next(at);
        }
    }

    /// Writes `to` in the place of `slot`, which is noted under `hash` at `place`.
    pub(super) fn change(&mut self, hash: u32, slot: u32, place: Place, to: u32) {
        if let Some((at, place)) = self.locate(hash, slot, place) {
            line::set_slot(self.line_mut(at), place, to);
        }
    }

    /// Takes out `slot`, which is noted under `hash` at `place`.
    #[inline]
    pub(super) fn take_out(&mut self, hash: u32, slot: u32, place: Place) {
        if place == AWAY {
            return self.take_back(hash, slot);
        }
        let line = self.line_mut(self.first(hash));
        debug_assert!(line::slot(line, place.into()) == slot);
        line::clear(line, place.into());
        self.left += 1;
    }

    /// Takes out the slot under `hash` for which `is` holds.
    #[inline]
    pub(super) fn take(&mut self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let line = self.line_mut(self.first(hash));
        for place in line::matching(line, hash) {
            let slot = line::slot(line, place);
            if is(slot) {
                line::clear(line, place);
                self.left += 1;
                return Some(slot);
            }
        }
        if !line::overflows(line) {
            return None;
        }
        let slot = self.probe(hash, is)?;
        self.take_back(hash, slot);
        Some(slot)
    }

    /// As `take_out`, of a key that went past the first line of its way.
    #[cold]
    fn take_back(&mut self, hash: u32, slot: u32) {
        let Some((line, place)) = self.locate(hash, slot, AWAY) else { return };
        line::clear(self.line_mut(line), place);
        self.left += 1;
        let mut at = self.first(hash);
        while at != line {
            line::one_less_past(self.line_mut(at));
            at = self.next(at);
        }
    }

    /// The line and place of `slot`.
    fn locate(&self, hash: u32, slot: u32, place: Place) -> Option<(usize, usize)> {
        let first = self.first(hash);
        if place != AWAY {
            return Some((first, place.into()));
        }
        let mut at = first;
        loop {
            let line = self.line(at);
            let mut places = line::matching(line, hash);
            if let Some(place) = places.find(|&place| line::slot(line, place) == slot) {
                return Some((at, place));
            }
            at = self.next(at);
            if at == first {
                return None;
            }
        }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        (0..self.lines()).flat_map(|at| {
            let line = self.line(at);
            line::taken(line).map(|place| line::slot(line, place))
        })
    }

    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.lines() * 12
    }

    /// Has twice the lines.
    #[cold]
    fn double<T: Indexed>(&mut self, records: &mut Slab<T>) {
        let mut new = Self::new(self.bits() + 1);
        for slot in self.slots() {
            new.note(records, slot);
        }
        *self = new;
    }

    /// Takes out all keys whose hashes have `bit`, into a segment of their own.
    ///
    /// A key in its first line stays in that line and place, here or there, so that its record is
    /// read and not written.
    pub(super) fn split<T: Indexed>(&mut self, bit: u32, records: &mut Slab<T>) -> Self {
        let mut new = Self::new(self.bits());
        // All hashes first: records are far apart, and reads that nothing depends on wait together.
        let mut slots = Vec::with_capacity(self.lines() * 12);
        slots.extend(self.slots());
        let hashes: Vec<u32> = slots.iter().map(|&slot| records.get(slot).hash()).collect();
        let mut hashes = hashes.into_iter();
        let mut strays = Vec::new();
        let mut count = 0;
        for at in 0..self.lines() {
            let (here, there) = (self.line(at), new.line_mut(at));
            let mut stay = *here;
            line::forget_past(&mut stay);
            for (place, hash) in line::taken(here).zip(&mut hashes) {
                let slot = line::slot(here, place);
                if self.first(hash) != at {
                    line::clear(&mut stay, place);
                    strays.push((hash, slot));
                } else if hash & bit != 0 {
                    line::clear(&mut stay, place);
                    line::put(there, place, hash, slot);
                    count += 1;
                }
            }
            *self.line_mut(at) = stay;
        }
        self.left += count + strays.len() as u32;
        new.left -= count;
        for (hash, slot) in strays {
            let to = if hash & bit == 0 { &mut *self } else { &mut new };
            records.get_mut(slot).set_place(to.put(hash, slot));
        }
        new
    }
}
