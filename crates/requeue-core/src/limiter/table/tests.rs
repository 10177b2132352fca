extern crate std;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::cell::Cell;
use core::panic::AssertUnwindSafe;

use foldhash::fast::RandomState;
use proptest::prelude::*;

use super::*;
use crate::memory::chunked::CHUNK;

type Table = KeyTable<u16, u32, RandomState>;

impl<K, V, S> KeyTable<K, V, S> {
    /// Returns the number of slots with memory, and the number of places in the buckets of the
    /// index.
    pub(in crate::limiter) fn capacity(&self) -> (usize, usize) {
        self.noted.as_ref().map_or((0, 0), |noted| noted.capacity())
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.entries().map(|entry| &entry.value)
    }

    /// Keeps the entries for which `keep` returns true, and returns the number of removed entries.
    fn retain(&mut self, keep: impl FnMut(&K, &V) -> bool) -> usize {
        let before = self.len();
        self.sweep(0, before, keep);
        before - self.len()
    }

    /// Asserts that the memory is proportional to the number of entries. There may be more slots
    /// than entries: those of sparse chunks, and of a few spare chunks.
    fn assert_small(&self) {
        let (slots, places) = self.capacity();
        assert!(slots <= 4 * self.len() + 2 * CHUNK, "{slots} slots for {}", self.len());
        assert!(places <= 8 * self.len() + 2 * 64 * 12, "{places} places for {}", self.len());
    }
}

fn table() -> Table {
    Table::with_hasher(RandomState::default())
}

fn with_keys(keys: impl IntoIterator<Item = u16>) -> Table {
    let mut table = table();
    keys.into_iter().for_each(|key| *table.get_or_default(&key) = key.into());
    table
}

#[derive(Clone, Debug)]
enum Op {
    Add(u16),
    Remove(u16),
    AddAll(u16, u16),
    RemoveAll(u16, u16),
    Sweep(u16, usize),
    Keep(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..6000_u16;
    prop_oneof![
        4 => key().prop_map(Op::Add),
        4 => key().prop_map(Op::Remove),
        4 => (key(), 1..3000_u16).prop_map(|(from, count)| Op::AddAll(from, count)),
        4 => (key(), 1..3000_u16).prop_map(|(from, count)| Op::RemoveAll(from, count)),
        4 => (2..9_u16, 0..2000_usize).prop_map(|(divisor, looks)| Op::Sweep(divisor, looks)),
        1 => (1..9_u16).prop_map(Op::Keep),
    ]
}

proptest! {
    #[test]
    fn a_table_is_a_map(ops in prop::collection::vec(op(), 0..40)) {
        let mut table = table();
        let mut model = BTreeMap::new();
        let mut hand = 0;
        for op in ops {
            match op {
                Op::Add(key) => {
                    *table.get_or_default(&key) += 1;
                    *model.entry(key).or_insert(0) += 1;
                }
                Op::Remove(key) => {
                    prop_assert_eq!(table.remove(&key), model.remove_entry(&key));
                }
                Op::AddAll(from, count) => {
                    for key in from..from + count {
                        *table.get_or_default(&key) += 1;
                        *model.entry(key).or_insert(0) += 1;
                    }
                }
                Op::RemoveAll(from, count) => {
                    for key in from..from + count {
                        prop_assert_eq!(table.remove(&key), model.remove_entry(&key));
                        table.assert_small();
                    }
                }
                Op::Sweep(divisor, looks) => {
                    let mut seen = BTreeSet::new();
                    hand = table.sweep(hand, looks, |&key, &value| {
                        assert!(seen.insert(key) && model.get(&key) == Some(&value));
                        key % divisor == 0
                    });
                    prop_assert!(seen.len() <= looks);
                    prop_assert!(looks < model.len() || seen.len() == model.len());
                    model.retain(|key, _| key % divisor == 0 || !seen.contains(key));
                }
                Op::Keep(divisor) => {
                    let before = model.len();
                    model.retain(|key, _| key % divisor == 0);
                    let gone = table.retain(|key, _| key % divisor == 0);
                    prop_assert_eq!(gone, before - model.len());
                }
            }
            prop_assert_eq!(table.len(), model.len());
            table.assert_small();
        }
        for key in 0..9000 {
            prop_assert_eq!(table.get(&key), model.get(&key));
        }
        prop_assert_eq!(table.values().count(), model.len());
    }
}

#[test]
fn an_entry_has_room_to_say_that_a_slot_is_vacant() {
    assert_eq!(size_of::<Option<key_map::Entry<u64, u64>>>(), 24);
}

#[test]
fn memory_comes_back() {
    let mut table = with_keys(0..50_000);
    for key in 0..50_000 {
        table.remove(&key);
    }
    let (slots, places) = table.capacity();
    assert!(slots <= CHUNK && places <= 64 * 12, "{slots} {places}");
}

#[test]
fn memory_comes_back_while_a_few_keys_stay_everywhere() {
    let few = |key: &u16| key.is_multiple_of(200);
    let mut removed = with_keys(0..50_000);
    (0..50_000).filter(|key| !few(key)).for_each(|key| _ = removed.remove(&key));
    let mut retained = with_keys(0..50_000);
    retained.retain(|key, _| few(key));
    let mut swept = with_keys(0..50_000);
    swept.sweep(0, 50_000, |key, _| few(key));
    for table in [removed, retained, swept] {
        assert_eq!(table.len(), 250);
        table.assert_small();
    }
}

#[test]
fn a_small_table_is_small() {
    let (slots, places) = with_keys(0..20).capacity();
    assert!(slots <= 32 && places <= 64, "{slots} {places}");
}

/// The sweep visits all entries, even if a few entries are spread over many vacant slots.
#[test]
fn so_many_looks_as_there_are_entries_see_all_of_them() {
    for left in [1, 2, 600, 16_000] {
        let mut table = with_keys(0..20_000);
        (0..20_000 - left).for_each(|key| _ = table.remove(&key));
        for hand in [0, 1, 511, 512, 10_000, 19_999, 30_000] {
            let mut seen = BTreeSet::new();
            table.sweep(hand, table.len(), |&key, _| seen.insert(key));
            assert!(seen.into_iter().eq(20_000 - left..20_000), "{left} from {hand}");
        }
    }
}

#[test]
fn a_sweep_in_steps_comes_to_all() {
    let mut table = with_keys((0..20_000).map(|key| key * 3));
    // Some ranges of slots are full, and others contain few entries.
    table.retain(|key, _| key % 16 == 0 || (10_000..20_000).contains(key));
    let (mut seen, mut hand) = (BTreeSet::new(), 0);
    let steps = table.len() / 2 + table.capacity().0 / CHUNK + 1;
    for _ in 0..steps {
        let mut looks = 0;
        hand = table.sweep(hand, 2, |&key, _| {
            looks += 1;
            seen.insert(key);
            true
        });
        assert!(looks <= 2);
    }
    assert_eq!(seen.len(), table.len());
}

#[test]
fn a_step_of_a_sweep_passes_a_few_chunks_at_most() {
    let mut table = with_keys(0..20_000);
    // Whole chunks are empty, but the table has too many entries to be compacted.
    table.retain(|&key, _| usize::from(key) < CHUNK || usize::from(key) >= 37 * CHUNK);
    let (mut hand, mut steps) = (CHUNK, 0);
    while hand < 37 * CHUNK {
        let before = hand;
        hand = table.sweep(hand, 2, |_, _| true);
        assert!(hand - before <= 3 * CHUNK, "from {before} to {hand}");
        steps += 1;
    }
    assert_eq!(steps, 12);
}

#[test]
fn order_is_not_that_of_hashes() {
    let walk = || {
        let mut table = with_keys(0..5000);
        (0..5000).filter(|key| key % 32 > 2).for_each(|key| _ = table.remove(&key));
        (5000..5200).for_each(|key| *table.get_or_default(&key) = key.into());
        let mut seen = Vec::new();
        table.sweep(300, 500, |&key, _| {
            seen.push(u32::from(key));
            key % 3 == 0
        });
        table.retain(|key, _| key % 5 > 0);
        seen.extend(table.values());
        (seen, format!("{table:?}"))
    };
    assert_eq!(walk(), walk(), "each walk with its own hasher");
}

#[test]
fn a_table_shows_its_entries() {
    assert_eq!(format!("{:?}", with_keys([7])), "{7: 7}");
}

std::thread_local! {
    /// The name of the operation that panics for every key.
    static SORE: Cell<&'static str> = const { Cell::new("") };
}

struct Touchy(u16);

impl Touchy {
    fn touch(what: &str) {
        assert!(SORE.get() != what, "touched");
    }
}

impl Hash for Touchy {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        Self::touch("hash");
        self.0.hash(state);
    }
}

impl PartialEq for Touchy {
    fn eq(&self, other: &Self) -> bool {
        Self::touch("eq");
        self.0 == other.0
    }
}

impl Eq for Touchy {}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        Self::touch("clone");
        Self(self.0)
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            Self::touch("drop");
        }
    }
}

type TouchyTable = KeyTable<Touchy, u32, RandomState>;

/// Runs `op` while the operation `what` of each key panics. Returns the number of entries after
/// that.
fn len_after(
    table: &mut TouchyTable,
    what: &'static str,
    op: impl FnOnce(&mut TouchyTable),
) -> usize {
    SORE.set(what);
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| op(table)));
    SORE.set("");
    assert!(caught.is_err(), "{what}");
    table.len()
}

#[test]
fn a_key_that_panics_leaves_the_table_whole() {
    // With these numbers of keys, the bucket has a free place, the index must grow, and the index
    // has just grown.
    for count in [10_u16, 64 * 7, 2000] {
        let mut table = TouchyTable::with_hasher(RandomState::default());
        (0..count).for_each(|number| *table.get_or_default(&Touchy(number)) = 1);
        let (table, all) = (&mut table, usize::from(count));
        let (old, new) = (Touchy(0), Touchy(count));
        assert_eq!(len_after(table, "hash", |table| _ = table.get_or_default(&new)), all);
        assert_eq!(len_after(table, "hash", |table| _ = table.remove(&old)), all);
        assert_eq!(len_after(table, "clone", |table| _ = table.get_or_default(&new)), all);
        assert_eq!(len_after(table, "eq", |table| _ = table.get_or_default(&old)), all);
        assert_eq!(len_after(table, "eq", |table| _ = table.remove(&old)), all);
        // The table removes the key first, and then the `drop` of the key panics.
        assert_eq!(len_after(table, "drop", |table| _ = table.remove(&old)), all - 1);
        assert_eq!(len_after(table, "drop", |table| _ = table.retain(|key, _| key.0 > 1)), all - 2);
        let sweep = |table: &mut TouchyTable| _ = table.sweep(0, all, |key, _| key.0 > 2);
        assert_eq!(len_after(table, "drop", sweep), all - 3);
        assert_eq!(table.values().sum::<u32>(), u32::from(count) - 3);
        assert!((0..3).all(|number| table.get(&Touchy(number)).is_none()));
        assert!((3..count).all(|number| table.remove(&Touchy(number)).is_some()));
        assert_eq!(table.len(), 0);
    }
}
