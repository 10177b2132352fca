//! What a limiter remembers of each key.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

/// A map from keys to values whose entries lie in a row, so that walking it, in steps or at once,
/// shows nothing of the order of hashes.
///
/// A key is hashed once per call and never while the table changes, so one whose `Hash`, `Eq` or
/// `Clone` panics leaves the table as it was.
#[derive(Clone, Debug)]
pub(super) struct KeyTable<K, V, S> {
    entries: Vec<Entry<K, V>>,
    /// Each position in `entries`, once, under its entry's hash.
    index: HashTable<usize>,
    hasher: S,
}

#[derive(Clone, Debug)]
struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

/// The fewest entries for which giving memory back is worth the while.
const SMALL: usize = 64;

impl<K, V, S> KeyTable<K, V, S> {
    pub(super) const fn with_hasher(hasher: S) -> Self {
        Self { entries: Vec::new(), index: HashTable::new(), hasher }
    }

    pub(super) const fn len(&self) -> usize {
        self.entries.len()
    }

    /// The value at position `at`, if there are that many. Removing a key moves the last entry
    /// into its place; nothing else moves one.
    pub(super) fn value_at(&self, at: usize) -> Option<&V> {
        self.entries.get(at).map(|entry| &entry.value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// Removes the entry at `at`, which must be one, and gives memory back when far too much is
    /// held. That moves fewer entries than were removed since it last did: amortised O(1).
    pub(super) fn remove_at(&mut self, at: usize) -> (K, V) {
        let removed = self.entries.swap_remove(at);
        if let Ok(found) = self.index.find_entry(removed.hash, |&i| i == at) {
            found.remove();
        }
        if let Some(moved) = self.entries.get(at) {
            let from = self.entries.len();
            if let Some(i) = self.index.find_mut(moved.hash, |&i| i == from) {
                *i = at;
            }
        }
        self.shrink();
        (removed.key, removed.value)
    }

    /// Keeps the entries for which `keep` is true; says how many went.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) -> usize {
        let before = self.len();
        let mut at = 0;
        while let Some(entry) = self.entries.get(at) {
            if keep(&entry.key, &entry.value) {
                at += 1;
            } else {
                self.remove_at(at);
            }
        }
        before - self.len()
    }

    /// Between a quarter and a half full, so that the next change of size is far again.
    fn shrink(&mut self) {
        let (need, held) = (self.entries.len(), self.entries.capacity());
        if held > SMALL && need < held / 4 {
            self.entries.shrink_to(need * 2);
            let entries = &self.entries;
            self.index.shrink_to(need * 2, |&i| entries[i].hash);
        }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> KeyTable<K, V, S> {
    fn position(&self, hash: u64, key: &K) -> Option<usize> {
        self.index.find(hash, |&i| self.entries[i].key == *key).copied()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let at = self.position(self.hasher.hash_one(key), key)?;
        self.value_at(at)
    }

    /// The value of `key`, which is its default where there was none.
    pub(super) fn get_or_default(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        let hash = self.hasher.hash_one(key);
        let at = self.position(hash, key).unwrap_or_else(|| {
            let at = self.entries.len();
            self.entries.push(Entry { hash, key: key.clone(), value: V::default() });
            let entries = &self.entries;
            self.index.insert_unique(hash, at, |&i| entries[i].hash);
            at
        });
        &mut self.entries[at].value
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<(K, V)> {
        let at = self.position(self.hasher.hash_one(key), key)?;
        Some(self.remove_at(at))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use foldhash::fast::RandomState;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Table = KeyTable<u16, u32, RandomState>;

    impl<K, V, S> KeyTable<K, V, S> {
        /// Room in entries: of the row, and of the index.
        pub(in crate::limiter) fn room(&self) -> (usize, usize) {
            (self.entries.capacity(), self.index.capacity())
        }
    }

    fn table() -> Table {
        Table::with_hasher(RandomState::default())
    }

    #[derive(Clone, Debug)]
    enum Op {
        Add(u16),
        Remove(u16),
        RemoveAt(usize),
        Keep(u16),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            8 => (0..300_u16).prop_map(Op::Add),
            4 => (0..300_u16).prop_map(Op::Remove),
            2 => any::<usize>().prop_map(Op::RemoveAt),
            1 => (1..5_u16).prop_map(Op::Keep),
        ]
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(ops in prop::collection::vec(op(), 0..400)) {
            let mut table = table();
            let mut model = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Add(key) => {
                        *table.get_or_default(&key) += 1;
                        *model.entry(key).or_insert(0) += 1;
                    }
                    Op::Remove(key) => {
                        prop_assert_eq!(table.remove(&key).map(|e| e.1), model.remove(&key));
                    }
                    Op::RemoveAt(at) => {
                        if table.len() > 0 {
                            let (key, value) = table.remove_at(at % table.len());
                            prop_assert_eq!(model.remove(&key), Some(value));
                        }
                    }
                    Op::Keep(divisor) => {
                        let before = model.len();
                        model.retain(|key, _| key % divisor == 0);
                        let gone = table.retain(|key, _| key % divisor == 0);
                        prop_assert_eq!(gone, before - model.len());
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                let (row, index) = table.room();
                prop_assert!(row <= SMALL.max(4 * table.len() + 3), "{row} for {}", table.len());
                prop_assert!(index <= 4 * row.max(SMALL), "{index} beside {row}");
            }
            for key in 0..300 {
                prop_assert_eq!(table.get(&key), model.get(&key));
            }
            prop_assert_eq!(table.values().count(), model.len());
        }
    }

    #[test]
    fn memory_comes_back() {
        let mut table = table();
        for key in 0..50_000 {
            table.get_or_default(&key);
        }
        for key in 0..50_000 {
            table.remove(&key);
        }
        let (row, index) = table.room();
        assert!(row <= SMALL && index <= 2 * SMALL, "{row} {index}");
    }

    #[test]
    fn memory_is_given_back_below_a_quarter_and_half_of_that_is_kept() {
        let mut table = table();
        (0..1024).for_each(|key| *table.get_or_default(&key) = 1);
        let (row, _) = table.room();
        (row / 4..1024).for_each(|key| _ = table.remove(&(key as u16)));
        assert_eq!((table.len(), table.room().0), (row / 4, row));
        table.remove(&0);
        let (left, (row, index)) = (table.len(), table.room());
        assert!((2 * left..3 * left).contains(&row), "{row}");
        assert!((2 * left..4 * left).contains(&index), "{index}");
    }

    #[test]
    fn a_small_table_stays_as_it_is() {
        let mut table = table();
        (0..SMALL as u16).for_each(|key| *table.get_or_default(&key) = 1);
        assert_eq!(table.room().0, SMALL);
        (0..SMALL as u16).for_each(|key| _ = table.remove(&key));
        assert_eq!(table.room().0, SMALL);
    }

    #[test]
    fn order_is_not_that_of_hashes() {
        let walk = || {
            let mut table = table();
            for key in 0..500 {
                *table.get_or_default(&key) = u32::from(key);
            }
            table.retain(|key, _| key % 3 == 0);
            table.values().copied().collect::<Vec<_>>()
        };
        assert_eq!(walk(), walk(), "each with a hasher of its own");
    }

    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Touchy(u8);

    impl Hash for Touchy {
        fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
            assert!(self.0 != 13, "touched");
            self.0.hash(state);
        }
    }

    #[test]
    fn a_key_that_panics_leaves_the_table_whole() {
        let mut table = KeyTable::<Touchy, u32, RandomState>::with_hasher(RandomState::default());
        for key in 0..10 {
            *table.get_or_default(&Touchy(key)) = 1;
        }
        let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            table.get_or_default(&Touchy(13));
        }));
        assert!(caught.is_err());
        assert_eq!(table.values().sum::<u32>(), 10);
        for key in 0..10 {
            assert!(table.remove(&Touchy(key)).is_some());
        }
        assert_eq!(table.len(), 0);
    }
}
