//! One table of lines.

use alloc::vec;
use alloc::vec::Vec;

use super::line::{self, Line, WORDS};

/// How many of a line's twelve places are taken on average when a table is full: more, and many a
/// probe goes on to a second line.
const FULL: usize = 9;

/// A table; without lines it has no memory.
pub(super) struct Table {
    words: Vec<u64>,
    /// Where the first line begins: at an address that is a multiple of 64.
    base: usize,
    pub(super) lines: usize,
    pub(super) len: usize,
}

/// Where a key that is not in the index can be put.
#[must_use]
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// The first line with room on the key's way; `None` if that was not looked for to its end.
    pub(super) line: Option<usize>,
    /// Whether that is the first line of the way.
    pub(super) direct: bool,
}

impl Table {
    pub(super) const fn new() -> Self {
        Self { words: Vec::new(), base: 0, lines: 0, len: 0 }
    }

    pub(super) fn with_room_for(keys: usize) -> Self {
        let lines = keys.div_ceil(FULL).max(1);
        // Zeroed memory comes from the system untouched: nothing is written here.
        let words = vec![0; lines * WORDS + WORDS - 1];
        let base = (words.as_ptr() as usize).wrapping_neg() % 64 / 8;
        Self { words, base: base.min(WORDS - 1), lines, len: 0 }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.lines * FULL
    }

    #[inline]
    fn line(&self, line: usize) -> &Line {
        let start = self.base + line * WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => words,
            None => unreachable!("line {line} of {}", self.lines),
        }
    }

    fn line_mut(&mut self, line: usize) -> &mut Line {
        let start = self.base + line * WORDS;
        match self.words[start..].first_chunk_mut() {
            Some(words) => words,
            None => unreachable!("line {line} of {}", self.lines),
        }
    }

    /// The line where a key with `hash` belongs: lines are in the order of hashes.
    #[inline]
    const fn first(&self, hash: u32) -> usize {
        ((hash as u64 * self.lines as u64) >> 32) as usize
    }

    const fn next(&self, line: usize) -> usize {
        if line + 1 == self.lines { 0 } else { line + 1 }
    }

    /// The slot under `hash` for which `is` holds, or the first line with room on the way.
    #[inline]
    pub(super) fn probe(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Result<u32, Room> {
        if self.lines == 0 {
            return Err(Room { line: None, direct: false });
        }
        let first = self.first(hash);
        let mut room = None;
        let mut at = first;
        loop {
            let line = self.line(at);
            for place in line::matching(line, hash) {
                let slot = line::slot(line, place);
                if is(slot) {
                    return Ok(slot);
                }
            }
            if room.is_none() && line::has_room(line) {
                room = Some(at);
            }
            at = self.next(at);
            if !line::overflows(line) || at == first {
                return Err(Room { line: room, direct: room == Some(first) });
            }
        }
    }

    /// Puts `slot` where there is room: `from` is a line on its way, with all before it full.
    pub(super) fn put(&mut self, hash: u32, slot: u32, room: Option<usize>) {
        let mut at = self.first(hash);
        // A line with room that was found may lie behind some that are full.
        while room.is_some_and(|room| room != at) || !line::has_room(self.line(at)) {
            line::one_more_past(self.line_mut(at));
            at = self.next(at);
        }
        self.put_at(at, hash, slot);
    }

    /// Puts `slot` into a line that has room, and is the first of its way or behind full ones.
    #[inline]
    pub(super) fn put_at(&mut self, at: usize, hash: u32, slot: u32) {
        line::put(self.line_mut(at), hash, slot);
        self.len += 1;
    }

    /// Writes `to` in the place of `slot`, which is noted under `hash`; `None` takes it out.
    #[inline]
    pub(super) fn change(&mut self, hash: u32, slot: u32, to: Option<u32>) {
        let first = self.first(hash);
        let mut at = first;
        loop {
            let line = self.line_mut(at);
            for place in line::matching(line, hash) {
                if line::slot(line, place) != slot {
                    continue;
                }
                match to {
                    Some(to) => line::set_slot(line, place, to),
                    None => {
                        line::clear(line, place);
                        self.len -= 1;
                        self.come_back(first, at);
                    }
                }
                return;
            }
            let overflows = line::overflows(line);
            at = self.next(at);
            if !overflows || at == first {
                return;
            }
        }
    }

    /// One key less has gone past the lines from `from` to before `to`.
    fn come_back(&mut self, mut from: usize, to: usize) {
        while from != to {
            line::one_less_past(self.line_mut(from));
            from = self.next(from);
        }
    }

    /// Calls `visit` with all slots whose hash may be at least `from`, and perhaps others, until
    /// `stop` says to; returns the lowest hash that may have been left out.
    pub(super) fn visit(
        &self,
        from: u32,
        mut visit: impl FnMut(u32),
        mut stop: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        if self.lines == 0 {
            return None;
        }
        let mut at = self.first(from);
        let mut spilled = false;
        loop {
            let line = self.line(at);
            line::taken(line).for_each(|place| visit(line::slot(line, place)));
            let overflows = line::overflows(line);
            at += 1;
            if spilled || at == self.lines {
                // What belongs to the last lines may have gone on to the first ones.
                if !overflows || at % self.lines == self.first(from) {
                    return None;
                }
                (at, spilled) = (if spilled { at } else { 0 }, true);
                continue;
            }
            // The least hash that belongs to line `at`.
            let bound = (((at as u64) << 32).div_ceil(self.lines as u64)) as u32;
            if !overflows && stop(bound) {
                return Some(bound);
            }
        }
    }
}
