//! The limiter that counts the failures of each key, and on which client-go's limiters per key are
//! based.

use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::table::KeyTable;
use crate::types::Time;

/// A limiter whose delay depends only on the number of failures of the key.
/// [`ExponentialFailure`](super::ExponentialFailure) and [`FastSlow`](super::FastSlow) are this
/// type with different `D`.
///
/// **Unbounded**: the limiter stores each failed key until the caller calls `forget` for it.
#[derive(Debug)]
pub struct PerKey<K, D, S = RandomState> {
    pub(super) failures: KeyTable<K, u32, S>,
    pub(super) delays: D,
}

/// A function from the number of a key's failures to a delay, for a [`PerKey`].
pub trait Delays: Send {
    /// Returns the delay after a failure of a key that has already failed `before` times.
    fn delay_after(&self, before: u32) -> Duration;

    /// Returns the longest delay that [`delay_after`](Self::delay_after) can return.
    fn longest_delay(&self) -> Duration;
}

impl<K, D, S> RateLimiter<K> for PerKey<K, D, S>
where
    K: Hash + Eq + Clone + Send,
    D: Delays,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, _now: Time) -> Duration {
        let failures = self.failures.get_or_default(key);
        let before = *failures;
        // The number saturates. If it wrapped around, the delays of a key that always fails would
        // start again at the first delay.
        *failures = before.saturating_add(1);
        self.delays.delay_after(before)
    }

    fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    fn is_idle(&self) -> bool {
        self.failures.len() == 0
    }

    fn longest_delay(&self) -> Duration {
        self.delays.longest_delay()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<K: Hash + Eq + Clone, D, S: BuildHasher> PerKey<K, D, S> {
        /// Sets the number of failures of `key`.
        pub(in crate::limiter) fn set(&mut self, key: &K, failures: u32) {
            *self.failures.get_or_default(key) = failures;
        }
    }

    /// Returns a delay of one second per earlier failure.
    struct Seconds;

    impl Delays for Seconds {
        fn delay_after(&self, before: u32) -> Duration {
            Duration::from_secs(before.into())
        }

        fn longest_delay(&self) -> Duration {
            Duration::MAX
        }
    }

    fn failures() -> PerKey<u8, Seconds> {
        PerKey { failures: KeyTable::with_hasher(RandomState::default()), delays: Seconds }
    }

    #[test]
    fn a_count_stays_at_the_most_there_can_be() {
        let mut failures = failures();
        failures.set(&1, u32::MAX - 1);
        assert_eq!(
            [(); 3].map(|()| {
                failures.delay(&1, Time::ZERO);
                failures.num_requeues(&1)
            }),
            [u32::MAX; 3]
        );
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
        assert_eq!(failures.failures.len(), 2);
    }

    #[test]
    fn the_clock_is_no_matter() {
        let delays = [Time::NEVER, Time::ZERO, Time::NEVER];
        let mut failures = failures();
        assert_eq!(delays.map(|now| failures.delay(&1, now).as_secs()), [0, 1, 2]);
    }
}
