use super::*;
use crate::record::Record;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;
use proptest::prelude::*;

impl Index {
    /// How many places there are.
    pub(crate) fn room(&self) -> usize {
        self.segments.iter().map(Segment::room).sum()
    }
}

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

/// Counts how often it is asked for, and told, something.
struct Counted {
    hash: u32,
    place: Cell<Place>,
    asked: Rc<Cell<usize>>,
}

impl Counted {
    fn count(&self) {
        self.asked.set(self.asked.get() + 1);
    }
}

impl Indexed for Counted {
    fn hash(&self) -> u32 {
        self.count();
        self.hash
    }

    fn place(&self) -> Place {
        self.count();
        self.place.get()
    }

    fn set_place(&mut self, place: Place) {
        self.count();
        self.place.set(place);
    }
}

#[test]
fn no_step_of_growing_or_shrinking_touches_more_than_a_few_hundred() {
    let asked = Rc::new(Cell::new(0));
    let (mut index, mut slab, mut worst) = (Index::new(), Slab::new(false), 0);
    let hash_of = HASHES[0];
    // A segment has 64 lines of about seven keys, and each is asked once, told once at most.
    let most = 2 * LINES * 8;
    for key in 0..300_000 {
        let hash = hash_of(key);
        let slot = slab.insert(Counted { hash, place: Cell::new(AWAY), asked: asked.clone() });
        index.insert(&mut slab, hash, slot);
        worst = worst.max(asked.take());
    }
    assert!((LINES..=most).contains(&worst), "{worst} to grow");
    worst = 0;
    for slot in 0..300_000 {
        let counted = slab.remove(slot);
        index.remove(&mut slab, slot, counted.hash, counted.place.get());
        worst = worst.max(asked.take());
    }
    assert!((LINES..=most).contains(&worst), "{worst} to shrink");
}
