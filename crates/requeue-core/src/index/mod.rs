//! From a key's hash to its slot.
//!
//! Segments of lines of 64 bytes, each with the tags and slots of up to twelve keys (`line`), so that
//! a probe mostly touches one cache line; a line that has overflowed counts the keys that went on
//! to the next, so that nothing is left behind where a key was. This is the layout of F14 (N.
//! Bronson and X. Shi, *Open-sourcing F14*, 2019).
//!
//! The segments are the buckets of linear hashing (W. Litwin, *Linear hashing: a new tool for file
//! and table addressing*, 1980): as keys come they are split in two one after the other, and merged
//! again as keys go. One large step would stop everybody for tens of milliseconds; a step here
//! touches a few hundred keys, of which half stay where they are and the others keep their line and
//! place in the new segment.

mod line;
mod segment;

use alloc::vec::Vec;

pub(crate) use self::segment::{AWAY, Found, Place};
use self::segment::{BITS, FULL, Segment};
use crate::chunked::give_back;
use crate::record::Record;
use crate::slab::Slab;

/// Lines of a segment.
const LINES: usize = 1 << BITS;
/// How many segments the caches next to a processor hold.
const CACHED: usize = 64;

pub(crate) struct Index {
    segments: Vec<Segment>,
    /// The number of segments, rounded down to a power of two: those beyond have come by splits of
    /// the first ones.
    half: u32,
    /// With more keys, the next segment is split; with fewer, the last one merged.
    most: usize,
    least: usize,
}

impl Index {
    pub(crate) const fn new() -> Self {
        Self { segments: Vec::new(), half: 1, most: 0, least: 0 }
    }

    /// Where the segment of keys with `hash` is.
    #[inline]
    const fn at(&self, hash: u32) -> usize {
        let at = hash & (self.half * 2 - 1);
        // Its segment may be one that has not been split yet.
        if at as usize >= self.segments.len() { (at ^ self.half) as usize } else { at as usize }
    }

    /// Whether there is more of it than the caches next to a processor hold.
    #[inline]
    pub(crate) const fn is_large(&self) -> bool {
        self.segments.len() > CACHED
    }

    /// Has the processor fetch the line of `hash`.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if let Some(segment) = self.segments.get(self.at(hash)) {
            segment.prefetch(hash);
        }
    }

    /// The slot of the record with `hash` for which `is` holds.
    #[inline]
    pub(crate) fn probe<K>(
        &self,
        records: &Slab<Record<K>>,
        hash: u32,
        mut is: impl FnMut(&Record<K>) -> bool,
    ) -> Option<u32> {
        self.segments.get(self.at(hash))?.probe(hash, |slot| is(records.get(slot)))
    }

    /// What the first line of the way of `hash` says: the slot of a record for which `is` holds, or
    /// where one can be noted at once, if there is none.
    #[inline(always)]
    pub(crate) fn glance<K>(
        &mut self,
        records: &Slab<Record<K>>,
        hash: u32,
        mut is: impl FnMut(&Record<K>) -> bool,
    ) -> Found<'_> {
        let at = self.at(hash);
        let full = records.len() >= self.most;
        match self.segments.get_mut(at) {
            Some(segment) => segment.glance(hash, full, |slot| is(records.get(slot))),
            None => Found::Unclear,
        }
    }

    /// Notes the record in `slot`, which has just been put there.
    pub(crate) fn insert<K>(&mut self, records: &mut Slab<Record<K>>, hash: u32, slot: u32) {
        if records.len() > self.most {
            self.grow(records);
        }
        let at = self.at(hash);
        self.segments[at].note(records, slot);
    }

    /// Takes out what is noted of a record that was in `slot`.
    #[inline]
    pub(crate) fn remove<K>(
        &mut self,
        records: &mut Slab<Record<K>>,
        slot: u32,
        hash: u32,
        place: Place,
    ) {
        let at = self.at(hash);
        self.segments[at].take_out(hash, slot, place);
        if records.len() < self.least {
            self.shrink(records);
        }
    }

    /// The record that was in `from` is in `to`.
    pub(crate) fn moved<K>(&mut self, records: &Slab<Record<K>>, from: u32, to: u32) {
        let record = records.get(to);
        let at = self.at(record.hash);
        self.segments[at].change(record.hash, from, record.place, to);
    }

    #[cold]
    fn grow<K>(&mut self, records: &mut Slab<Record<K>>) {
        if self.segments.is_empty() {
            self.segments.push(Segment::new(0));
        } else {
            let next = self.segments.len() - self.half as usize;
            let new = self.segments[next].split(self.half, records);
            self.segments.push(new);
        }
        self.measure();
    }

    #[cold]
    fn shrink<K>(&mut self, records: &mut Slab<Record<K>>) {
        let Some(last) = self.segments.pop() else { return };
        self.measure();
        let into = self.segments.len() - self.half as usize;
        for slot in last.slots() {
            self.segments[into].note(records, slot);
        }
        give_back(&mut self.segments);
    }

    /// How many keys are right for so many segments.
    ///
    /// All are split while those that have not been go from `FULL` keys a line to one more. They are
    /// merged when there are fewer than three for two lines.
    fn measure(&mut self) {
        let segments = self.segments.len();
        self.half = 1 << segments.ilog2();
        let split = segments - self.half as usize;
        self.most = LINES * (self.half as usize * FULL as usize + split);
        self.least = if segments > 1 { LINES * segments * 3 / 2 } else { 0 };
    }

    /// Calls `visit` with the slots of all records whose rank is at least `from`, in about the order
    /// of their ranks, and perhaps with others, until it has seen `limit` of them. Returns the rank
    /// up to which it has seen all; `None` if it has seen all there are.
    ///
    /// A hash's rank is its bits in reverse: of the keys of a segment, whatever splits have made it,
    /// no other segment has one in between.
    pub(crate) fn visit(&self, from: u32, limit: usize, mut visit: impl FnMut(u32)) -> Option<u32> {
        let mut from = from;
        let mut seen = 0;
        loop {
            let at = self.at(from.reverse_bits());
            for slot in self.segments.get(at)?.slots() {
                seen += 1;
                visit(slot);
            }
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
            Self { index: Index::new(), records: Slab::new(false), model: BTreeMap::new(), hash_of }
        }

        fn add(&mut self, key: u32) {
            let hash = (self.hash_of)(key);
            let found = self.index.probe(&self.records, hash, |record| record.key == key);
            if let Some(slot) = found {
                match self.index.glance(&self.records, hash, |record| record.key == key) {
                    Found::Room(_) => panic!("{key} is there"),
                    Found::Slot(at) => assert_eq!(at, slot),
                    Found::Unclear => {}
                }
                assert_eq!(self.model.get(&slot), Some(&key));
                return;
            }
            let mut record = Record::new(key, hash);
            let found = self.index.glance(&self.records, hash, |record| record.key == key);
            let slot = match found {
                Found::Slot(slot) => panic!("{key} is not there, and not in {slot}"),
                Found::Room(room) => {
                    record.place = room.place();
                    let slot = self.records.insert(record);
                    room.put(hash, slot);
                    slot
                }
                Found::Unclear => {
                    let slot = self.records.insert(record);
                    self.index.insert(&mut self.records, hash, slot);
                    slot
                }
            };
            self.model.insert(slot, key);
        }

        fn remove(&mut self, slot: u32) {
            let key = self.model.remove(&slot).unwrap();
            let record = self.records.remove(slot);
            self.index.remove(&mut self.records, slot, record.hash, record.place);
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
                assert_eq!(found, Some(slot), "{key}");
            }
            let noted: usize = self.index.segments.iter().map(|one| one.slots().count()).sum();
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
                from = self.index.visit(at, limit, |slot| page.push(slot));
                for slot in page {
                    let rank = self.records.get(slot).hash.reverse_bits();
                    if rank >= at && from.is_none_or(|bound| rank < bound) {
                        assert!(seen.insert(slot, ()).is_none(), "{slot} twice");
                    }
                }
            }
            assert!(seen.keys().eq(self.model.keys()));
        }
    }

    const HASHES: [fn(u32) -> u32; 5] = [
        |key| key.wrapping_mul(0x9E37_79B1),
        // Alike; in the last line; in one segment; in the first line and the last.
        |_| 7,
        |key| u32::MAX - key % 3,
        |key| key << 16,
        |key| if key % 2 == 0 { key } else { u32::MAX - key },
    ];

    proptest! {
        #[test]
        fn finds_what_a_map_finds(
            which in 0usize..5,
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
                            case.remove(found.unwrap());
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
        assert!(case.index.segments.len() > 3000 / LINES / 8);
        while let Some(&slot) = case.model.keys().next_back() {
            case.remove(slot);
        }
        case.check();
        assert_eq!(case.index.segments.len(), 1);
    }
}
