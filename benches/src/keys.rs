//! Keys to measure with.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::FixedState;

/// A namespace and a name, as controllers have them.
pub type Name = (Arc<str>, Arc<str>);

/// Keys that come round and round.
#[derive(Clone, Debug)]
pub struct Ring<K> {
    keys: Arc<[K]>,
    at: usize,
}

impl<K: Clone> Ring<K> {
    /// These keys.
    pub fn new(keys: impl IntoIterator<Item = K>) -> Self {
        Self { keys: keys.into_iter().collect(), at: 0 }
    }

    /// The next key.
    #[inline]
    pub fn lend(&mut self) -> &K {
        let at = self.at;
        self.at = if at + 1 == self.keys.len() { 0 } else { at + 1 };
        &self.keys[at]
    }

    /// A copy of the next key.
    #[inline]
    pub fn copy(&mut self) -> K {
        self.lend().clone()
    }
}

/// The numbers below `count`.
#[must_use]
pub fn numbers(count: usize) -> Ring<u64> {
    Ring::new(0..count as u64)
}

/// Names in a few hundred namespaces, in an order in which neighbours are not neighbours in memory.
#[must_use]
pub fn names(count: usize) -> Ring<Name> {
    let namespaces: Vec<Arc<str>> = (0..300).map(|n| format!("namespace-{n}").into()).collect();
    let name = |n: usize| {
        (Arc::clone(&namespaces[n % namespaces.len()]), format!("some-deployment-{n:07}").into())
    };
    let mut names: Vec<Name> = (0..count).map(name).collect();
    names.sort_by_cached_key(hash);
    Ring::new(names)
}

/// A hash that is the same in every run.
#[inline]
pub fn hash<K: Hash>(key: &K) -> u64 {
    FixedState::with_seed(7).hash_one(key)
}
