//! A map from keys to values in which no single operation takes long. The caller computes the
//! hashes of the keys.
//!
//! The map consists of a slab and an index, like the records of the queue. No operation moves more
//! than a few hundred entries, however large the map is. The map frees memory as entries are
//! removed.
//!
//! Iterations visit the entries in the order of their slots. This order reveals nothing about the
//! hashes, because slots depend only on the order of the calls.

use super::index::{Found, Index, Indexed, Position};
use super::slab::Slab;
use crate::types::{Id, Slot};

pub(crate) struct KeyMap<K, V> {
    entries: Slab<Entry<K, V>>,
    index: Index,
}

pub(crate) struct Entry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    hash: u32,
    position: Position,
}

impl<K, V> Entry<K, V> {
    #[inline]
    fn new(key: K, value: V, hash: u32, position: Position) -> Self {
        Self { key, value, hash, position }
    }
}

impl<K: Eq, V> Entry<K, V> {
    #[inline]
    fn is_key(&self, key: &K, hash: u32) -> bool {
        self.hash == hash && self.key == *key
    }
}

impl<K, V> Indexed for Entry<K, V> {
    #[inline]
    fn key_hash(&self) -> u32 {
        self.hash
    }

    #[inline]
    fn index_position(&self) -> Position {
        self.position
    }

    #[inline]
    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
}

impl<K, V> KeyMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self { entries: Slab::new(false), index: Index::new() }
    }

    pub(crate) const fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry<K, V>> {
        self.entries.values()
    }

    pub(crate) fn value(&self, slot: Slot) -> &V {
        &self.entries.get(slot).value
    }

    pub(crate) fn value_mut(&mut self, slot: Slot) -> &mut V {
        &mut self.entries.get_mut(slot).value
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = K> {
        self.entries.into_values().map(|entry| entry.key)
    }

    /// Checks the next `looks` entries from slot `hand` on, and removes the entries for which
    /// `keep` returns false. After the last slot, the sweep continues at slot 0. `removed` is
    /// called with the hash and key of each removed entry. Returns the slot at which the next sweep
    /// starts. If `looks` is at least the number of entries, the sweep checks each entry once.
    pub(crate) fn sweep(
        &mut self,
        mut hand: usize,
        looks: usize,
        mut keep: impl FnMut(&K, &V) -> bool,
        mut removed: impl FnMut(u32, K),
    ) -> usize {
        let before = self.entries.len();
        let mut looks = looks.min(before);
        // A few entries can be spread over many slots. The number of visited chunks is limited too,
        // so that a sweep over empty chunks does not take long.
        let mut chunks = looks + 1;
        while looks > 0 && chunks > 0 {
            match self.entries.next_in_chunk(hand) {
                Ok(slot) => {
                    let entry = self.entries.get(slot);
                    if !keep(&entry.key, &entry.value) {
                        let entry = self.entries.remove(slot);
                        self.index.remove(&mut self.entries, slot, entry.hash, entry.position);
                        removed(entry.hash, entry.key);
                    }
                    hand = slot.index() + 1;
                    looks -= 1;
                }
                Err(next) => {
                    hand = next;
                    chunks -= 1;
                }
            }
        }
        // Compaction runs after the sweep. It moves entries to lower slots, so a sweep that
        // continued would miss them.
        for _ in self.entries.len()..before {
            self.compact_if_sparse();
        }
        hand
    }

    #[inline]
    fn compact_if_sparse(&mut self) {
        if self.entries.is_sparse() {
            self.compact();
        }
    }

    /// Moves a few entries to lower slots, and frees chunks that become empty.
    #[cold]
    fn compact(&mut self) {
        let index = &mut self.index;
        self.entries.compact(|entries, from, to| index.move_slot(entries, from, to));
    }

    /// Inserts `key`, which must not be in the map.
    #[cold]
    pub(crate) fn insert(&mut self, key: K, value: V, hash: u32) -> Slot {
        let slot = self.entries.insert(Entry::new(key, value, hash, Position::OVERFLOWED));
        self.index.insert(&mut self.entries, hash, slot);
        slot
    }
}

impl<K: Eq, V> KeyMap<K, V> {
    /// Returns the slot of `key`. `hash` is the hash of the key.
    #[inline]
    pub(crate) fn find_slot(&self, key: &K, hash: u32) -> Option<Slot> {
        self.index.probe(&self.entries, hash, |entry| entry.is_key(key, hash))
    }

    /// Returns the slot of `key`. If the map does not contain the key, first inserts a copy of it
    /// with the default value.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, key: &K, hash: u32) -> Slot
    where
        K: Clone,
        V: Default,
    {
        let is = |entry: &Entry<K, V>| entry.is_key(key, hash);
        match self.index.find_in_first_bucket(&self.entries, hash, is) {
            Found::Slot(slot) => slot,
            Found::Free(free) => {
                // The `clone` of a key is user code and may panic, so it runs before the map
                // changes.
                let key = key.clone();
                let entry = || Entry::new(key, V::default(), hash, free.position());
                let slot = self.entries.insert_with(entry);
                free.put_slot(hash, slot);
                slot
            }
            Found::Unclear => match self.find_slot(key, hash) {
                Some(slot) => slot,
                None => self.insert(key.clone(), V::default(), hash),
            },
        }
    }

    pub(crate) fn remove(&mut self, key: &K, hash: u32) -> Option<(K, V)> {
        let Self { entries, index } = self;
        let slot = index.take_slot(entries, hash, |entry| entry.is_key(key, hash))?;
        let Entry { key, value, .. } = entries.remove(slot);
        // `shrink_if_sparse` reads the number of entries, so the entry must be removed first.
        index.shrink_if_sparse(entries);
        self.compact_if_sparse();
        Some((key, value))
    }
}

#[cfg(test)]
impl<K, V> KeyMap<K, V> {
    /// Returns the number of entries and of index slots for which memory is allocated.
    pub(crate) fn capacity(&self) -> (usize, usize) {
        (self.entries.capacity(), self.index.capacity())
    }
}
