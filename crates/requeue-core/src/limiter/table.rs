//! The table in which a limiter stores its data of each key.

use alloc::boxed::Box;
use core::fmt;
use core::hash::{BuildHasher, Hash};

use crate::memory::index::{Found, Index, Indexed, Position, fold};
use crate::memory::slab::Slab;
use crate::types::slot::{Id, Slot};

/// A map from keys to values, built from the same containers as the queue's records and index. No
/// call moves more than a few hundred entries, for a table of any size, and memory is freed as
/// entries are removed.
///
/// Entries are visited in the order of their slots. This order reveals nothing about the hashes:
/// slots are assigned and moved according to the calls of the table alone.
///
/// Each call hashes its key once, and never while the table changes. If the `Hash`, `Eq` or `Clone`
/// of a key panics, the table is therefore unchanged.
pub(super) struct KeyTable<K, V, S> {
    /// Allocated with the first key. Most queues are idle, and in most of them no key ever fails.
    noted: Option<Box<Noted<K, V>>>,
    hasher: S,
}

struct Noted<K, V> {
    entries: Slab<Entry<K, V>>,
    index: Index,
}

struct Entry<K, V> {
    key: K,
    value: V,
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
    fn is(&self, key: &K, hash: u32) -> bool {
        self.hash == hash && self.key == *key
    }
}

impl<K, V> Indexed for Entry<K, V> {
    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }

    #[inline]
    fn position(&self) -> Position {
        self.position
    }

    #[inline]
    fn set_position(&mut self, position: Position) {
        self.position = position;
    }
}

impl<K, V, S> KeyTable<K, V, S> {
    pub(super) const fn with_hasher(hasher: S) -> Self {
        Self { noted: None, hasher }
    }

    pub(super) const fn len(&self) -> usize {
        match &self.noted {
            Some(noted) => noted.entries.len(),
            None => 0,
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry<K, V>> {
        self.noted.iter().flat_map(|noted| noted.entries.values())
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries().map(|entry| &entry.value)
    }

    /// Keeps the entries for which `keep` returns true, and returns the number of removed entries.
    pub(super) fn retain(&mut self, keep: impl FnMut(&K, &V) -> bool) -> usize {
        self.noted.as_mut().map_or(0, |noted| noted.retain(keep))
    }

    /// Visits the next `looks` entries from slot `hand` on, cyclically, and removes those for which
    /// `keep` returns false. Returns the slot at which to continue. If `looks` is at least the
    /// number of entries, each entry is visited once.
    pub(super) fn sweep(
        &mut self,
        hand: usize,
        looks: usize,
        keep: impl FnMut(&K, &V) -> bool,
    ) -> usize {
        self.noted.as_mut().map_or(hand, |noted| noted.sweep(hand, looks, keep))
    }
}

impl<K, V> Noted<K, V> {
    const fn new() -> Self {
        Self { entries: Slab::new(false), index: Index::new() }
    }

    fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) -> usize {
        let before = self.entries.len();
        for slot in 0..self.entries.end() {
            self.remove_unless(Slot::new(slot), &mut keep);
        }
        while self.entries.is_sparse() {
            self.compact();
        }
        before - self.entries.len()
    }

    fn sweep(
        &mut self,
        mut hand: usize,
        looks: usize,
        mut keep: impl FnMut(&K, &V) -> bool,
    ) -> usize {
        let before = self.entries.len();
        let mut looks = looks.min(before);
        // Few entries may be spread over many slots, but there are no more chunks than entries.
        let mut chunks = looks + 1;
        while looks > 0 && chunks > 0 {
            match self.entries.next_in_chunk(hand) {
                Ok(slot) => {
                    self.remove_unless(slot, &mut keep);
                    hand = slot.index() + 1;
                    looks -= 1;
                }
                Err(next) => {
                    hand = next;
                    chunks -= 1;
                }
            }
        }
        // Compaction comes last, because it moves entries to slots that the sweep has passed.
        for _ in self.entries.len()..before {
            self.compact_if_sparse();
        }
        hand
    }

    fn remove_unless(&mut self, slot: Slot, keep: &mut impl FnMut(&K, &V) -> bool) {
        if self.entries.find(slot).is_some_and(|entry| !keep(&entry.key, &entry.value)) {
            self.take_out(slot);
        }
    }

    #[inline]
    fn take_out(&mut self, slot: Slot) -> Entry<K, V> {
        let entry = self.entries.remove(slot);
        self.index.remove(&mut self.entries, slot, entry.hash, entry.position);
        entry
    }

    #[inline]
    fn compact_if_sparse(&mut self) {
        if self.entries.is_sparse() {
            self.compact();
        }
    }

    /// Moves a few entries to lower slots, and frees the memory above them.
    #[cold]
    fn compact(&mut self) {
        let index = &mut self.index;
        self.entries.compact(|entries, from, to| index.moved(entries, from, to));
    }

    /// Inserts a key that is not in the table.
    #[cold]
    fn insert(&mut self, key: K, value: V, hash: u32) -> Slot {
        let slot = self.entries.insert(Entry::new(key, value, hash, Position::OVERFLOWED));
        self.index.insert(&mut self.entries, hash, slot);
        slot
    }
}

impl<K: Eq, V> Noted<K, V> {
    #[inline]
    fn find(&self, key: &K, hash: u32) -> Option<Slot> {
        self.index.probe(&self.entries, hash, |entry| entry.is(key, hash))
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> KeyTable<K, V, S> {
    #[inline]
    fn hash(&self, key: &K) -> u32 {
        fold(self.hasher.hash_one(key))
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let noted = self.noted.as_ref()?;
        let slot = noted.find(key, self.hash(key))?;
        Some(&noted.entries.get(slot).value)
    }

    /// Returns the value of `key`. If there is none, inserts the default value.
    pub(super) fn get_or_default(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        let hash = self.hash(key);
        let noted = self.noted.get_or_insert_with(|| Box::new(Noted::new()));
        let slot = match noted.index.glance(&noted.entries, hash, |entry| entry.is(key, hash)) {
            Found::Slot(slot) => slot,
            Found::Free(room) => {
                let key = key.clone();
                let entry = || Entry::new(key, V::default(), hash, room.position());
                let slot = noted.entries.insert_with(entry);
                room.put(hash, slot);
                slot
            }
            Found::Unclear => match noted.find(key, hash) {
                Some(slot) => slot,
                None => noted.insert(key.clone(), V::default(), hash),
            },
        };
        &mut noted.entries.get_mut(slot).value
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<(K, V)> {
        let hash = self.hash(key);
        let noted = self.noted.as_mut()?;
        let Noted { entries, index } = &mut **noted;
        let slot = index.take(entries, hash, |entry| entry.is(key, hash))?;
        let Entry { key, value, .. } = entries.remove(slot);
        index.fit(entries);
        noted.compact_if_sparse();
        Some((key, value))
    }
}

impl<K: Clone, V: Clone, S: Clone> Clone for KeyTable<K, V, S> {
    fn clone(&self) -> Self {
        let noted = self.noted.as_ref().map(|noted| {
            let mut clone = Box::new(Noted::new());
            for entry in noted.entries.values() {
                clone.insert(entry.key.clone(), entry.value.clone(), entry.hash);
            }
            clone
        });
        Self { noted, hasher: self.hasher.clone() }
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for KeyTable<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries().map(|entry| (&entry.key, &entry.value))).finish()
    }
}

#[cfg(test)]
mod tests;
