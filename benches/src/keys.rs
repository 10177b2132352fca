//! The keys of the benchmarks.

use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;

/// A type of keys that contestants queue.
pub trait Key: Hash + Eq + Clone + Debug + Send + Sync + 'static {
    /// True if a user would add a key that may already be queued by reference, because a copy is
    /// expensive.
    const BY_REF: bool;

    /// Returns `count` distinct keys. Each call returns the same keys in the same order.
    fn some(count: usize) -> Arc<[Self]>;

    /// Returns a key that differs from all keys of `some`.
    fn other() -> Self;

    /// Returns one of a few priorities.
    fn rank(&self) -> i32;
}

impl Key for u64 {
    const BY_REF: bool = false;

    fn some(count: usize) -> Arc<[Self]> {
        (0..count as Self).collect()
    }

    fn other() -> Self {
        Self::MAX
    }

    fn rank(&self) -> i32 {
        (self % 4) as i32
    }
}

/// A namespace and a name as in `requeue-kube`: `namespace/name`, whose copies share the text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name(Arc<str>);

impl Key for Name {
    const BY_REF: bool = true;

    fn some(count: usize) -> Arc<[Self]> {
        static MADE: Mutex<Vec<Arc<[Name]>>> = Mutex::new(Vec::new());
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = made.iter().find(|names| names.len() == count) {
            return Arc::clone(names);
        }
        let names = make(count);
        // Only two sets of keys are kept, because rounds of a scenario follow each other, and
        // alternate with few other rounds.
        made.truncate(1);
        made.insert(0, Arc::clone(&names));
        names
    }

    fn other() -> Self {
        Self("another/one".into())
    }

    fn rank(&self) -> i32 {
        i32::from(self.0.as_bytes().last().copied().unwrap_or(0) % 4)
    }
}

/// Makes keys in an order in which neighbours are not neighbours in memory.
fn make(count: usize) -> Arc<[Name]> {
    let name = |n: usize| Name(format!("namespace-{:02}/object-{n:07}", n % 100).into());
    let mut names: Vec<Name> = (0..count).map(name).collect();
    names.sort_by_cached_key(hash);
    names.into()
}

/// A ring of keys, which yields the keys in an endless cycle.
#[derive(Clone, Debug)]
pub struct Ring<K> {
    keys: Arc<[K]>,
    at: usize,
}

impl<K: Key> Ring<K> {
    /// Makes a ring of `count` keys.
    ///
    /// # Panics
    ///
    /// Panics if `count` is 0.
    #[must_use]
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "a ring has keys");
        Self { keys: K::some(count), at: 0 }
    }

    /// Returns the next key.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator would have to end, or copy")]
    pub fn next(&mut self) -> &K {
        &self.next_many(1)[0]
    }

    /// Returns the next `count` keys, or fewer keys at the end of the cycle.
    #[inline]
    pub fn next_many(&mut self, count: usize) -> &[K] {
        let from = self.at;
        let to = (from + count).min(self.keys.len());
        self.at = if to == self.keys.len() { 0 } else { to };
        &self.keys[from..to]
    }
}

/// Returns a hash that is the same in every run.
#[inline]
pub fn hash<K: Hash>(key: &K) -> u64 {
    FixedState::with_seed(7).hash_one(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_has_each_key_once_a_round() {
        let mut ring = Ring::<Name>::new(500);
        let mut round: Vec<Name> = (0..500).map(|_| ring.next().clone()).collect();
        assert_eq!(ring.next(), &round[0]);
        round.sort_by(|a, b| a.0.cmp(&b.0));
        round.dedup();
        assert_eq!(round.len(), 500);
    }

    #[test]
    fn many_keys_end_where_the_ring_comes_round() {
        let mut ring = Ring::<u64>::new(5);
        assert_eq!(ring.next_many(3), [0, 1, 2]);
        assert_eq!(ring.next_many(3), [3, 4]);
        assert_eq!(ring.next_many(3), [0, 1, 2]);
    }
}
