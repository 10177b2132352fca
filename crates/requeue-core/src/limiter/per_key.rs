//! A limiter that counts the failures of each key, and removes no key by itself.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::table::KeyTable;
use crate::types::time::Time;

/// A limiter whose delay depends only on the number of a key's failures.
/// [`ExponentialFailure`](super::ExponentialFailure) and [`FastSlow`](super::FastSlow) are based on
/// it.
///
/// **Unbounded**: it remembers each failed key until the key is forgotten, or removed by
/// [`trim`](Self::trim) or [`retain`](Self::retain).
#[derive(Clone, Debug)]
pub struct PerKey<K, D, S = RandomState> {
    counts: KeyTable<K, Count, S>,
    /// The number of failures of all keys.
    total: u64,
    delays: D,
}

/// The delays of a [`PerKey`].
pub trait Delays: Send {
    /// Returns the delay after a failure of a key that had failed `before` times.
    fn after(&self, before: u32) -> Duration;

    /// Returns the longest delay.
    fn longest(&self) -> Duration;
}

#[derive(Clone, Debug, Default)]
struct Count {
    failures: u32,
    /// The value of `total` at the key's last failure. No two keys have the same value.
    last: u64,
}

impl<K, D, S> PerKey<K, D, S> {
    pub(super) const fn with(hasher: S, delays: D) -> Self {
        Self { counts: KeyTable::with_hasher(hasher), total: 0, delays }
    }

    /// Returns the number of keys in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use requeue::{RateLimiter, Time, limiter};
    ///
    /// let mut limiter = limiter::default_item_based();
    /// limiter.delay(&"a", Time::ZERO);
    /// assert_eq!(limiter.len(), 1);
    /// ```
    #[must_use]
    pub const fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns true if no key is in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// assert!(requeue::limiter::default_item_based::<u64>().is_empty());
    /// ```
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all keys except the `max` that failed last, and returns the number of forgotten
    /// keys.
    ///
    /// This takes time linear in the number of keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use requeue::{RateLimiter, Time, limiter};
    ///
    /// let mut limiter = limiter::default_item_based();
    /// for key in ["a", "b", "a"] {
    ///     limiter.delay(&key, Time::ZERO);
    /// }
    /// assert_eq!(limiter.trim(1), 1);
    /// assert_eq!((limiter.num_requeues(&"a"), limiter.num_requeues(&"b")), (2, 0));
    /// ```
    pub fn trim(&mut self, max: usize) -> usize {
        let Some(oldest) = self.len().checked_sub(max).and_then(|excess| excess.checked_sub(1))
        else {
            return 0;
        };
        let mut lasts: Vec<u64> = self.counts.values().map(|count| count.last).collect();
        let (_, &mut newest_to_go, _) = lasts.select_nth_unstable(oldest);
        self.counts.retain(|_, count| count.last > newest_to_go)
    }

    /// Forgets the keys for which `keep` returns false, and returns the number of forgotten keys.
    ///
    /// `keep` gets a key and its number of failures.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use requeue::{RateLimiter, Time, limiter};
    ///
    /// let mut limiter = limiter::default_item_based();
    /// for key in ["a", "b", "a"] {
    ///     limiter.delay(&key, Time::ZERO);
    /// }
    /// assert_eq!(limiter.retain(|_, failures| failures > 1), 1);
    /// assert_eq!(limiter.num_requeues(&"a"), 2);
    /// ```
    pub fn retain(&mut self, keep: impl Fn(&K, u32) -> bool) -> usize {
        self.counts.retain(|key, count| keep(key, count.failures))
    }
}

impl<K: Hash + Eq, D, S: BuildHasher> PerKey<K, D, S> {
    /// Counts one failure, and returns the number of failures before it.
    fn count(&mut self, key: &K) -> u32
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

    fn failures(&self, key: &K) -> u32 {
        self.counts.get(key).map_or(0, |count| count.failures)
    }
}

impl<K, D, S> RateLimiter<K> for PerKey<K, D, S>
where
    K: Hash + Eq + Clone + Send,
    D: Delays,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, _now: Time) -> Duration {
        let before = self.count(key);
        self.delays.after(before)
    }

    fn forget(&mut self, key: &K) {
        self.counts.remove(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        self.failures(key)
    }

    fn is_idle(&self) -> bool {
        self.is_empty()
    }

    fn longest(&self) -> Duration {
        self.delays.longest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl<K: Hash + Eq + Clone, D, S: BuildHasher> PerKey<K, D, S> {
        /// Sets the number of failures of `key`.
        pub(in crate::limiter) fn set(&mut self, key: &K, failures: u32) {
            self.counts.get_or_default(key).failures = failures;
        }
    }

    /// The delay is one second for each earlier failure.
    struct Seconds;

    impl Delays for Seconds {
        fn after(&self, before: u32) -> Duration {
            Duration::from_secs(before.into())
        }

        fn longest(&self) -> Duration {
            Duration::MAX
        }
    }

    fn failures() -> PerKey<u8, Seconds> {
        PerKey::with(RandomState::default(), Seconds)
    }

    #[test]
    fn a_count_stays_at_the_most_there_can_be() {
        let mut failures = failures();
        failures.set(&1, u32::MAX - 1);
        assert_eq!([(); 3].map(|()| failures.count(&1)), [u32::MAX - 1, u32::MAX, u32::MAX]);
    }

    #[test]
    fn forget_forgets_one_key_and_not_everything() {
        let mut failures = failures();
        for key in [1, 2, 2, 3] {
            failures.delay(&key, Time::ZERO);
        }
        failures.forget(&1);
        failures.forget(&4);
        assert_eq!([1, 2, 3].map(|key| failures.num_requeues(&key)), [0, 2, 1]);
        assert_eq!(failures.delay(&2, Time::ZERO), Duration::from_secs(2));
        assert_eq!(failures.len(), 2);
    }

    #[test]
    fn the_clock_is_no_matter() {
        let delays = [Time::NEVER, Time::ZERO, Time::NEVER];
        let mut failures = failures();
        assert_eq!(delays.map(|now| failures.delay(&1, now).as_secs()), [0, 1, 2]);
    }

    proptest! {
        /// The oracle finds each key's last failure in the list of all failures.
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
                prop_assert_eq!(failures.failures(key) as usize, expected);
            }
        }
    }
}
