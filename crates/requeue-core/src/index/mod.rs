//! From a key's hash to its slot.
//!
//! An open table of lines of 64 bytes, each with the tags and slots of up to twelve keys (`line`), so that
//! a probe mostly touches one cache line; a line that has overflowed counts the keys that went on
//! to the next, so that nothing is left behind where a key was. This is the layout of F14 (N.
//! Bronson and X. Shi, *Open-sourcing F14*, 2019). Lines are in the order of hashes.
//!
//! The table grows and shrinks by moving into another one, a few keys with each operation: one
//! large step would stop everybody for tens of milliseconds. The move goes by slots, in the order
//! of memory; each record notes in which of the two tables it is.

mod line;
mod table;

use alloc::boxed::Box;

pub(crate) use self::table::Room;
use self::table::Table;
use crate::record::Record;
use crate::slab::Slab;

/// Slots looked at in one step of a move.
const STEP: usize = 8;
/// Lines that a table keeps when it runs empty, so that it does not allocate each time: 4 KiB.
const KEPT: usize = 64;
/// A table with fewer keys than this moves at once.
const FEW: usize = 64;

pub(crate) struct Index {
    current: Table,
    /// The table that is being moved from.
    old: Option<Box<Table>>,
    /// Slots below this have been looked at by the move.
    cursor: usize,
    /// What `Record::home` says of records in `current`.
    home: bool,
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
        Err(room)
    }

    /// Notes the record in `slot`, which has just been put there, with its `home` as it is to be.
    #[inline]
    pub(crate) fn insert<K>(
        &mut self,
        records: &mut Slab<Record<K>>,
        hash: u32,
        slot: u32,
        room: Room,
    ) {
        let mut line = room.line;
        if self.old.is_some() {
            self.step(records, STEP);
            // The move may have taken the room.
            line = None;
        } else if room.direct && self.current.len < self.current.capacity() {
            self.current.put_at(line.unwrap_or_default(), hash, slot);
            return;
        } else if self.current.len >= self.current.capacity() {
            // It is noted where the others move to.
            records.get_mut(slot).home = !self.home;
            self.start(records, records.len() * 17 / 10);
            line = None;
        }
        self.current.put(hash, slot, line);
    }

    /// Takes out what is noted of a record that was in `slot`.
    #[inline]
    pub(crate) fn remove<K>(
        &mut self,
        records: &mut Slab<Record<K>>,
        slot: u32,
        hash: u32,
        home: bool,
    ) {
        match &mut self.old {
            None => {
                self.current.change(hash, slot, None);
                // By the time that the slab begins to give back, most of this has been.
                if self.current.len * 4 < self.current.capacity() && self.current.lines > KEPT {
                    self.start(records, self.current.len * 2);
                }
            }
            Some(old) => {
                let table = if home == self.home { &mut self.current } else { &mut **old };
                table.change(hash, slot, None);
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
        self.old = Some(Box::new(old));
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
    use alloc::vec::Vec;
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
                    self.index.insert(&mut self.records, hash, slot, room);
                    self.model.insert(slot, key);
                }
            }
        }

        fn remove(&mut self, slot: u32) {
            let key = self.model.remove(&slot).unwrap();
            let record = self.records.remove(slot);
            self.index.remove(&mut self.records, slot, record.hash, record.home);
            assert_eq!(record.key, key);
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
        assert!(case.index.old.is_none() && case.index.current.lines <= KEPT);
    }
}
