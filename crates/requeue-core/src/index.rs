//! From a key's hash to its slot.
//!
//! An open table of lines of 64 bytes, each with the tags and slots of up to twelve keys, so that
//! a probe mostly touches one cache line; a line that has overflowed counts the keys that went on
//! to the next, so that nothing is left behind where a key was. This is the layout of F14 (N.
//! Bronson and X. Shi, *Open-sourcing F14*, 2019). Lines are in the order of hashes.
//!
//! The table grows and shrinks by moving into another one, a few keys with each operation: one
//! large step would stop everybody for tens of milliseconds. The move goes by slots, in the order
//! of memory; each record notes in which of the two tables it is.

use alloc::vec;
use alloc::vec::Vec;

use crate::record::Record;
use crate::slab::Slab;

/// Keys in a line.
const WIDTH: usize = 12;
/// How many of a line's places are taken on average when a table is full: more, and many a probe
/// goes on to a second line.
const FULL: usize = 9;
/// Words of 32 bits in a line: four for the tags, then the slots.
const WORDS: usize = 16;
/// The byte after the tags: how many keys have gone past this line. It sticks at its end.
const OVERFLOW: u32 = u32::MAX >> 24;
/// Slots looked at in one step of a move.
const STEP: usize = 8;
/// A table with fewer keys than this moves at once.
const FEW: usize = 64;

/// A table; without lines it has no memory.
struct Table {
    words: Vec<u32>,
    /// Where the first line begins: at an address that is a multiple of 64.
    base: usize,
    lines: usize,
    len: usize,
}

/// Where a key that is not in the index can be put.
#[must_use]
pub(crate) struct Room {
    line: Option<usize>,
}

pub(crate) struct Index {
    current: Table,
    /// The table that is being moved from.
    old: Option<Table>,
    /// Slots below this have been looked at by the move.
    cursor: usize,
    /// What `Record::home` says of records in `current`.
    home: bool,
}

/// Bits that say a place is taken, in the tags of a line read as one number.
const TAKEN: u128 = 0x8080_8080_8080_8080_8080_8080;

/// The tags of a line, each a byte: zero, or a bit that says so and seven of the hash.
#[inline]
fn tags(line: &[u32; WORDS]) -> u128 {
    let low = u64::from(line[0]) | u64::from(line[1]) << 32;
    u128::from(low) | u128::from(line[2]) << 64
}

/// The bytes of `tags` that equal `tag`: the high bit of each. A byte above one that matches may
/// be taken for one, too; whoever looks compares anyway.
#[inline]
const fn matching(tags: u128, tag: u8) -> u128 {
    const ONES: u128 = TAKEN >> 7;
    let difference = tags ^ (ONES * tag as u128);
    difference.wrapping_sub(ONES) & !difference & TAKEN
}

/// The places of a line that a set of bits stands for.
struct Places(u128);

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

const fn tag(hash: u32) -> u8 {
    (hash & 0x7F | 0x80) as u8
}

impl Table {
    const fn new() -> Self {
        Self { words: Vec::new(), base: 0, lines: 0, len: 0 }
    }

    fn with_room_for(keys: usize) -> Self {
        let lines = keys.div_ceil(FULL).max(1);
        // Zeroed memory comes from the system untouched: nothing is written here.
        let words = vec![0; lines * WORDS + WORDS - 1];
        let base = (words.as_ptr() as usize).wrapping_neg() % 64 / 4;
        Self { words, base: base.min(WORDS - 1), lines, len: 0 }
    }

    const fn capacity(&self) -> usize {
        self.lines * FULL
    }

    #[inline]
    fn line(&self, line: usize) -> &[u32; WORDS] {
        let start = self.base + line * WORDS;
        match self.words[start..].first_chunk() {
            Some(words) => words,
            None => unreachable!("line {line} of {}", self.lines),
        }
    }

    fn line_mut(&mut self, line: usize) -> &mut [u32; WORDS] {
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
    fn probe(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Result<u32, Option<usize>> {
        if self.lines == 0 {
            return Err(None);
        }
        let tag = tag(hash);
        let mut room = None;
        let mut at = self.first(hash);
        for _ in 0..self.lines {
            let line = self.line(at);
            let tags = tags(line);
            for place in Places(matching(tags, tag)) {
                let slot = line[4 + place % WIDTH];
                if is(slot) {
                    return Ok(slot);
                }
            }
            if room.is_none() && tags & TAKEN != TAKEN {
                room = Some(at);
            }
            if line[3] & OVERFLOW == 0 {
                break;
            }
            at = self.next(at);
        }
        Err(room)
    }

    /// Puts `slot` where there is room: `from` is a line on its way, with all before it full.
    fn put(&mut self, hash: u32, slot: u32, room: Option<usize>) {
        let mut at = self.first(hash);
        // A line with room that was found may lie behind some that are full.
        while room.is_some_and(|room| room != at) || !has_room(self.line(at)) {
            let line = self.line_mut(at);
            if line[3] & OVERFLOW < OVERFLOW {
                line[3] += 1;
            }
            at = self.next(at);
        }
        let line = self.line_mut(at);
        if let Some(place) = Places(!tags(line) & TAKEN).next() {
            line[place / 4] |= u32::from(tag(hash)) << (place % 4 * 8);
            line[4 + place] = slot;
        }
        self.len += 1;
    }

    /// Calls `change` with the place of `slot`; it is taken out if that says so.
    fn change(&mut self, hash: u32, slot: u32, to: Option<u32>) -> bool {
        let tag = tag(hash);
        let first = self.first(hash);
        let mut at = first;
        for _ in 0..self.lines {
            let line = self.line_mut(at);
            for place in Places(matching(tags(line), tag)) {
                if line[4 + place % WIDTH] != slot {
                    continue;
                }
                match to {
                    Some(to) => line[4 + place] = to,
                    None => {
                        line[place / 4] &= !(0xFF << (place % 4 * 8));
                        self.len -= 1;
                        self.undo_overflow(first, at);
                    }
                }
                return true;
            }
            if line[3] & OVERFLOW == 0 {
                break;
            }
            at = self.next(at);
        }
        false
    }

    fn undo_overflow(&mut self, mut from: usize, to: usize) {
        while from != to {
            let line = self.line_mut(from);
            if line[3] & OVERFLOW < OVERFLOW {
                line[3] -= 1;
            }
            from = self.next(from);
        }
    }

    /// Calls `visit` with all slots whose hash may be at least `from`, and perhaps others, until
    /// `stop` says to; returns the lowest hash that may have been left out.
    fn visit(
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
            Places(tags(line) & TAKEN).for_each(|place| visit(line[4 + place]));
            let overflows = line[3] & OVERFLOW != 0;
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

fn has_room(line: &[u32; WORDS]) -> bool {
    tags(line) & TAKEN != TAKEN
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { current: Table::new(), old: None, cursor: 0, home: false }
    }

    /// What `Record::home` is to say of a record that is noted now.
    pub(crate) const fn home(&self) -> bool {
        self.home
    }

    /// The slot of the record with `hash` for which `is` holds, or where it could be noted.
    #[inline]
    pub(crate) fn probe<K>(
        &self,
        records: &Slab<Record<K>>,
        hash: u32,
        mut is: impl FnMut(&Record<K>) -> bool,
    ) -> Result<u32, Room> {
        let room = match self.current.probe(hash, |slot| is(records.get(slot))) {
            Ok(slot) => return Ok(slot),
            Err(room) => room,
        };
        if let Some(old) = &self.old {
            // Records that have moved on, or are gone, are still in the old table.
            let found = old.probe(hash, |slot| {
                records.find(slot).is_some_and(|record| record.home != self.home && is(record))
            });
            if let Ok(slot) = found {
                return Ok(slot);
            }
        }
        Err(Room { line: room })
    }

    /// Notes the record in `slot`, which has just been put there, with its `home` as it is to be.
    #[inline]
    pub(crate) fn insert<K>(
        &mut self,
        records: &mut Slab<Record<K>>,
        hash: u32,
        slot: u32,
        room: &Room,
    ) {
        let mut line = room.line;
        if self.old.is_some() {
            self.step(records, STEP);
            // The move may have taken the room.
            line = None;
        } else if self.current.len >= self.current.capacity() {
            // It is noted where the others move to.
            records.get_mut(slot).home = !self.home;
            self.start(records, records.len() * 17 / 10);
            line = None;
        }
        self.current.put(hash, slot, line);
    }

    /// Takes out the record in `slot`, which is still there.
    #[inline]
    pub(crate) fn remove<K>(&mut self, records: &mut Slab<Record<K>>, slot: u32) {
        let record = records.get_mut(slot);
        let (hash, home) = (record.hash, record.home);
        match &mut self.old {
            None => {
                self.current.change(hash, slot, None);
                if self.current.len * 8 < self.current.capacity() && self.current.lines > 8 {
                    // So that the move leaves it alone.
                    record.home = !self.home;
                    self.start(records, self.current.len * 2);
                }
            }
            Some(old) => {
                let table = if home == self.home { &mut self.current } else { old };
                table.change(hash, slot, None);
                record.home = self.home;
                self.step(records, STEP);
            }
        }
    }

    /// The record that was in `from` is in `to`.
    pub(crate) fn moved<K>(&mut self, records: &mut Slab<Record<K>>, from: u32, to: u32) {
        let home = self.home;
        let record = records.get_mut(to);
        let hash = record.hash;
        if record.home == home {
            self.current.change(hash, from, Some(to));
        } else {
            // The move may have passed `to` already.
            record.home = home;
            self.current.put(hash, to, None);
            if let Some(old) = &mut self.old {
                old.change(hash, from, None);
            }
        }
    }

    /// Begins to move to a table for `keys`.
    #[cold]
    fn start<K>(&mut self, records: &mut Slab<Record<K>>, keys: usize) {
        let new = Table::with_room_for(keys.max(8));
        let old = core::mem::replace(&mut self.current, new);
        self.home = !self.home;
        self.cursor = 0;
        let at_once = old.len <= FEW;
        self.old = Some(old);
        if at_once {
            self.step(records, usize::MAX);
        }
    }

    /// Moves the records in the next few slots.
    #[cold]
    fn step<K>(&mut self, records: &mut Slab<Record<K>>, slots: usize) {
        let Some(old) = &self.old else { return };
        let slots = if old.len <= FEW || self.current.len + FEW > self.current.capacity() {
            usize::MAX
        } else {
            slots
        };
        let (home, current) = (self.home, &mut self.current);
        let mut moved = 0;
        let next = records.scan(self.cursor, slots, |slot, record| {
            if record.home != home {
                record.home = home;
                current.put(record.hash, slot, None);
                moved += 1;
            }
        });
        if let Some(old) = &mut self.old {
            old.len -= moved;
        }
        match next {
            Some(next) if self.old.as_ref().is_some_and(|old| old.len > 0) => self.cursor = next,
            _ => self.old = None,
        }
    }

    /// Calls `visit` with the slots of all records whose hash is at least `from`, in about the
    /// order of their hashes, and perhaps with others, until it has seen `limit` of them. Returns
    /// the hash up to which it has seen all; `None` if it has seen all there are.
    pub(crate) fn visit<K>(
        &self,
        records: &Slab<Record<K>>,
        from: u32,
        limit: usize,
        mut visit: impl FnMut(u32),
    ) -> Option<u32> {
        let count = core::cell::Cell::new(0);
        let seen = |slot| {
            count.set(count.get() + 1);
            visit(slot);
        };
        let bound = self.current.visit(from, seen, |_| count.get() >= limit);
        if let Some(old) = &self.old {
            let stop = |at| bound.is_some_and(|bound| at >= bound);
            let in_old = |slot: u32| {
                if records.find(slot).is_some_and(|record| record.home != self.home) {
                    visit(slot);
                }
            };
            old.visit(from, in_old, stop);
        }
        bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    struct Case {
        index: Index,
        records: Slab<Record<u32>>,
        /// By slot.
        model: BTreeMap<u32, u32>,
        hash_of: fn(u32) -> u32,
    }

    impl Case {
        fn new(hash_of: fn(u32) -> u32) -> Self {
            Self { index: Index::new(), records: Slab::new(), model: BTreeMap::new(), hash_of }
        }

        fn add(&mut self, key: u32) {
            let hash = (self.hash_of)(key);
            let found = self.index.probe(&self.records, hash, |record| record.key == key);
            match found {
                Ok(slot) => assert_eq!(self.model.get(&slot), Some(&key)),
                Err(room) => {
                    let mut record = Record::new(key, hash);
                    record.home = self.index.home();
                    let slot = self.records.insert(record);
                    self.index.insert(&mut self.records, hash, slot, &room);
                    self.model.insert(slot, key);
                }
            }
        }

        fn remove(&mut self, slot: u32) {
            let key = self.model.remove(&slot).unwrap();
            self.index.remove(&mut self.records, slot);
            assert_eq!(self.records.remove(slot).key, key);
            let (index, model) = (&mut self.index, &mut self.model);
            if self.records.is_sparse() {
                self.records.compact(|records, from, to| {
                    index.moved(records, from, to);
                    let key = model.remove(&from).unwrap();
                    model.insert(to, key);
                });
            }
        }

        fn check(&self) {
            for (&slot, &key) in &self.model {
                let found = self.index.probe(&self.records, (self.hash_of)(key), |r| r.key == key);
                assert_eq!(found.ok(), Some(slot), "{key}");
            }
            let noted = self.index.current.len + self.index.old.as_ref().map_or(0, |old| old.len);
            assert_eq!(noted, self.model.len());
            let keys: alloc::collections::BTreeSet<_> = self.model.values().collect();
            assert_eq!(keys.len(), self.model.len(), "a key twice");
        }

        /// A walk by pages of about `limit` finds each once.
        fn walk(&self, limit: usize) {
            let mut seen = BTreeMap::new();
            let mut from = Some(0);
            while let Some(at) = from {
                let mut page = Vec::new();
                from = self.index.visit(&self.records, at, limit, |slot| page.push(slot));
                for slot in page {
                    let hash = self.records.get(slot).hash;
                    if hash >= at && from.is_none_or(|bound| hash < bound) {
                        assert!(seen.insert(slot, ()).is_none(), "{slot} twice");
                    }
                }
            }
            assert!(seen.keys().eq(self.model.keys()));
        }
    }

    const HASHES: [fn(u32) -> u32; 4] = [
        |key| key.wrapping_mul(0x9E37_79B1),
        // Alike, in the last line, in the first one and the last.
        |_| 7,
        |key| u32::MAX - key % 3,
        |key| if key % 2 == 0 { key } else { u32::MAX - key },
    ];

    proptest! {
        #[test]
        fn finds_what_a_map_finds(
            which in 0usize..4,
            ops in proptest::collection::vec((0u8..5, any::<u32>()), 1..40),
        ) {
            let mut case = Case::new(HASHES[which]);
            let most = if which == 0 { 800 } else { 60 };
            for (op, pick) in ops {
                match op {
                    0..3 => (pick % 5000..pick % 5000 + pick % most).for_each(|key| case.add(key)),
                    3 => {
                        let keep = pick as usize % 5 + 1;
                        let gone = case.model.values().copied().enumerate();
                        let gone: Vec<_> = gone.filter(|(n, _)| n % keep != 0).collect();
                        for (_, key) in gone {
                            // Its slot may have changed by now.
                            let hash = HASHES[which](key);
                            let found = case.index.probe(&case.records, hash, |r| r.key == key);
                            case.remove(found.ok().unwrap());
                        }
                    }
                    _ => case.walk(pick as usize % 200 + 1),
                }
                case.check();
            }
        }
    }

    #[test]
    fn grows_and_shrinks_with_what_it_holds() {
        let mut case = Case::new(HASHES[0]);
        for key in 0..3000 {
            case.add(key);
        }
        case.check();
        assert!(case.index.current.capacity() >= 3000);
        while let Some(&slot) = case.model.keys().next_back() {
            case.remove(slot);
        }
        case.check();
        assert!(case.index.old.is_none() && case.index.current.lines <= 8);
    }

    #[test]
    fn a_byte_matches_when_it_is_the_tag() {
        assert_eq!(matching(0x8100_8180, 0x81), 0x8000_8000);
        assert_eq!(matching(0, 0x80), 0);
        assert_eq!(matching(0xFF << 88, 0xFF), 0x80 << 88);
    }
}
