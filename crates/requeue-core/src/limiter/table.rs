//! The table in which a limiter stores its data per key.

use alloc::boxed::Box;
use core::fmt;
use core::hash::{BuildHasher, Hash};

use crate::memory::{KeyMap, fold, key_map};

/// A [`KeyMap`] that hashes its keys itself.
///
/// Each call hashes the key one time, before it changes the table. If the `Hash`, `Eq` or `Clone`
/// of a key panics, the table is therefore unchanged.
pub(super) struct KeyTable<K, V, S> {
    /// The table is allocated when the first key fails, because in most queues no key ever fails.
    noted: Option<Box<KeyMap<K, V>>>,
    hasher: S,
}

impl<K, V, S> KeyTable<K, V, S> {
    pub(super) const fn with_hasher(hasher: S) -> Self {
        Self { noted: None, hasher }
    }

    pub(super) fn len(&self) -> usize {
        self.noted.as_ref().map_or(0, |noted| noted.len())
    }

    fn entries(&self) -> impl Iterator<Item = &key_map::Entry<K, V>> {
        self.noted.iter().flat_map(|noted| noted.entries())
    }

    /// Checks the next `looks` entries from slot `hand` on, and removes the entries for which
    /// `keep` returns false. After the last slot, the sweep continues at slot 0. Returns the slot
    /// at which the next sweep starts. If `looks` is at least the number of entries, the sweep
    /// checks each entry once.
    pub(super) fn sweep(
        &mut self,
        hand: usize,
        looks: usize,
        keep: impl FnMut(&K, &V) -> bool,
    ) -> usize {
        self.noted.as_mut().map_or(hand, |noted| noted.sweep(hand, looks, keep, |_, key| drop(key)))
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> KeyTable<K, V, S> {
    #[inline]
    fn hash_key(&self, key: &K) -> u32 {
        fold(self.hasher.hash_one(key))
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let noted = self.noted.as_ref()?;
        let slot = noted.find_slot(key, self.hash_key(key))?;
        Some(noted.value(slot))
    }

    /// Returns the value of `key`. If the key has no value, inserts the default value first.
    pub(super) fn get_or_default(&mut self, key: &K) -> &mut V
    where
        K: Clone,
        V: Default,
    {
        // The `Hash` of a key is user code. It runs before the table is allocated, so that a panic
        // changes nothing.
        let hash = self.hash_key(key);
        let noted = self.noted.get_or_insert_with(|| Box::new(KeyMap::new()));
        let slot = noted.find_or_insert(key, hash);
        noted.value_mut(slot)
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<(K, V)> {
        let hash = self.hash_key(key);
        self.noted.as_mut()?.remove(key, hash)
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for KeyTable<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries().map(|entry| (&entry.key, &entry.value))).finish()
    }
}

#[cfg(test)]
mod tests;
