use super::*;
use crate::types::Id;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use proptest::prelude::*;

impl Index {
    pub(crate) fn capacity(&self) -> usize {
        self.segments.iter().map(Segment::capacity).sum()
    }
}

struct Record {
    key: u32,
    hash: u32,
    position: Position,
}

impl Record {
    const fn new(key: u32, hash: u32) -> Self {
        Self { key, hash, position: Position::OVERFLOWED }
    }
}

impl Indexed for Record {
    fn key_hash(&self) -> u32 {
        self.hash
    }

    fn index_position(&self) -> Position {
        self.position
    }

    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
}

struct Case {
    index: Index,
    records: Slab<Record>,
    /// The expected content: the key of each slot.
    model: BTreeMap<Slot, u32>,
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
            match self.index.find_in_first_bucket(&self.records, hash, |record| record.key == key) {
                Found::Free(_) => panic!("{key} is in the index, but was not found"),
                Found::Slot(at) => assert_eq!(at, slot),
                Found::Unclear => {}
            }
            assert_eq!(self.model.get(&slot), Some(&key));
            return;
        }
        let mut record = Record::new(key, hash);
        let found =
            self.index.find_in_first_bucket(&self.records, hash, |record| record.key == key);
        let slot = match found {
            Found::Slot(slot) => panic!("{key} is not in the index, but was found in {slot:?}"),
            Found::Free(free) => {
                record.position = free.position();
                let slot = self.records.insert(record);
                free.put_slot(hash, slot);
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

    fn remove(&mut self, slot: Slot) {
        let key = self.model.remove(&slot).unwrap();
        let record = self.records.remove(slot);
        self.index.remove(&mut self.records, slot, record.hash, record.position);
        assert_eq!(record.key, key);
        let (index, model) = (&mut self.index, &mut self.model);
        if self.records.is_sparse() {
            self.records.compact(|records, from, to| {
                index.move_slot(records, from, to);
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
        assert_eq!(keys.len(), self.model.len(), "a key occurs twice");
    }

    /// Asserts that a walk with pages of about `limit` records visits each record once.
    fn walk(&self, limit: usize) {
        let mut seen = BTreeMap::new();
        let mut from = Some(0);
        while let Some(at) = from {
            let mut page = Vec::new();
            from = self.index.visit_segments(at, limit, |slot| page.push(slot));
            for slot in page {
                let rank = self.records.get(slot).hash.reverse_bits();
                if rank >= at && from.is_none_or(|bound| rank < bound) {
                    assert!(seen.insert(slot, ()).is_none(), "{slot:?} was visited twice");
                }
            }
        }
        assert!(seen.keys().eq(self.model.keys()));
    }
}

const HASHES: [fn(u32) -> u32; 5] = [
    |key| key.wrapping_mul(0x9E37_79B1),
    // The four functions give equal hashes, hashes in the last bucket, hashes in one segment, and
    // hashes in the first or last bucket.
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
                        // The slot of the key may have changed since the key was inserted.
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
    assert!(case.index.segments.len() > 3000 / BUCKETS / 8);
    while let Some(&slot) = case.model.keys().next_back() {
        case.remove(slot);
    }
    case.check();
    assert_eq!(case.index.segments.len(), 1);
}

/// A record that counts how often the index reads or writes it.
struct Counted {
    hash: u32,
    position: Cell<Position>,
    asked: Rc<Cell<usize>>,
}

impl Counted {
    fn count(&self) {
        self.asked.set(self.asked.get() + 1);
    }
}

impl Indexed for Counted {
    fn key_hash(&self) -> u32 {
        self.count();
        self.hash
    }

    fn index_position(&self) -> Position {
        self.count();
        self.position.get()
    }

    fn set_position(&mut self, position: Position) {
        self.count();
        self.position.set(position);
    }
}

#[test]
fn no_step_of_growing_or_shrinking_touches_more_than_a_few_hundred() {
    let asked = Rc::new(Cell::new(0));
    let (mut index, mut slab, mut worst) = (Index::new(), Slab::new(false), 0);
    let hash_of = HASHES[0];
    // A segment has 64 buckets of about seven keys. A split reads and writes each key at most once.
    let most = 2 * BUCKETS * 8;
    for key in 0..300_000 {
        let hash = hash_of(key);
        let slot = slab.insert(Counted {
            hash,
            position: Cell::new(Position::OVERFLOWED),
            asked: asked.clone(),
        });
        index.insert(&mut slab, hash, slot);
        worst = worst.max(asked.take());
    }
    assert!((BUCKETS..=most).contains(&worst), "{worst} to grow");
    worst = 0;
    for slot in (0..300_000).map(Id::new) {
        let counted = slab.remove(slot);
        index.remove(&mut slab, slot, counted.hash, counted.position.get());
        worst = worst.max(asked.take());
    }
    assert!((BUCKETS..=most).contains(&worst), "{worst} to shrink");
}

/// The upper bits of a hash choose the bucket, the lower bits choose the segment, and seven bits
/// between them are the tag.
#[test]
fn hashes_that_differ_in_few_bits_differ_in_all_parts() {
    for shift in 0..=52 {
        for part in [0, 10, 19, 20] {
            let parts = (0..4096).map(|n: u64| fold(n << shift) >> part & 0xFFF);
            let distinct = parts.collect::<alloc::collections::BTreeSet<_>>().len();
            // Random hashes would have 2589 distinct values.
            assert!(distinct > 1500, "{distinct} of 4096, shifted {shift}, from bit {part}");
        }
    }
}
