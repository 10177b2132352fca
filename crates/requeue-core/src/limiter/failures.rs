//! How often each key has failed: what the two limiters share that count and never forget.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use super::table::KeyTable;

/// A count of failures per key, without bound.
#[derive(Clone, Debug)]
pub(super) struct Failures<K, S> {
    counts: KeyTable<K, Count, S>,
    /// How many failures there were of all keys.
    total: u64,
}

#[derive(Clone, Debug, Default)]
struct Count {
    failures: u32,
    /// The total at the key's last failure: no two keys have the same.
    last: u64,
}

impl<K, S> Failures<K, S> {
    pub(super) const fn with_hasher(hasher: S) -> Self {
        Self { counts: KeyTable::with_hasher(hasher), total: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&K, u32) -> bool) -> usize {
        self.counts.retain(|key, count| keep(key, count.failures))
    }

    /// Forgets all but the `max` keys that failed last; says how many went.
    pub(super) fn trim(&mut self, max: usize) -> usize {
        let Some(oldest) = self.len().checked_sub(max).and_then(|excess| excess.checked_sub(1))
        else {
            return 0;
        };
        let mut lasts: Vec<u64> = self.counts.values().map(|count| count.last).collect();
        let (_, &mut newest_to_go, _) = lasts.select_nth_unstable(oldest);
        self.counts.retain(|_, count| count.last > newest_to_go)
    }
}

impl<K: Hash + Eq, S: BuildHasher> Failures<K, S> {
    /// Counts one failure; says how many there were before it.
    pub(super) fn count(&mut self, key: &K) -> u32
    where
        K: Clone,
    {
        let count = self.counts.get_or_default(key);
        self.total += 1;
        count.last = self.total;
        let before = count.failures;
        count.failures = before.saturating_add(1);
        before
    }

    pub(super) fn of(&self, key: &K) -> u32 {
        self.counts.get(key).map_or(0, |count| count.failures)
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldhash::fast::RandomState;
    use proptest::prelude::*;

    impl<K: Hash + Eq + Clone, S: BuildHasher> Failures<K, S> {
        /// As if `key` had failed so often.
        pub(in crate::limiter) fn set(&mut self, key: &K, failures: u32) {
            self.counts.get_or_default(key).failures = failures;
        }
    }

    fn failures() -> Failures<u8, RandomState> {
        Failures::with_hasher(RandomState::default())
    }

    #[test]
    fn a_count_stays_at_the_most_there_can_be() {
        let mut failures = failures();
        failures.set(&1, u32::MAX - 1);
        assert_eq!([(); 3].map(|()| failures.count(&1)), [u32::MAX - 1, u32::MAX, u32::MAX]);
    }

    proptest! {
        /// The oracle looks for each key's last failure in the list of all.
        #[test]
        fn trim_keeps_the_keys_that_failed_last(
            keys in prop::collection::vec(0..20_u8, 0..80),
            max in 0..25_usize,
        ) {
            let mut failures = failures();
            let mut by_last = Vec::new();
            for key in &keys {
                failures.count(key);
                by_last.retain(|k| k != key);
                by_last.push(*key);
            }
            let gone = by_last.len().saturating_sub(max);
            prop_assert_eq!(failures.trim(max), gone);
            for (i, key) in by_last.iter().enumerate() {
                let all = keys.iter().filter(|k| *k == key).count();
                let expected = if i < gone { 0 } else { all };
                prop_assert_eq!(failures.of(key) as usize, expected);
            }
        }
    }
}
