//! The limiter with two speeds: client-go's `TypedItemFastSlowRateLimiter`.

use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::failures::Failures;
use crate::types::time::Time;

/// The first failures of a key wait a fast delay, all later ones a slow one.
///
/// client-go's `NewTypedItemFastSlowRateLimiter`.
///
/// **Unbounded**: it remembers each key that failed until it is forgotten, [trimmed](Self::trim) or
/// not [retained](Self::retain).
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::FastSlow;
/// use requeue::{RateLimiter, Time};
///
/// let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(10));
/// let mut limiter = FastSlow::new(fast, slow, 2);
/// let delays = [(); 4].map(|()| limiter.delay(&"default/web", Time::ZERO));
/// assert_eq!(delays, [fast, fast, slow, slow]);
/// ```
#[derive(Clone, Debug)]
pub struct FastSlow<K, S = RandomState> {
    failures: Failures<K, S>,
    fast: Duration,
    slow: Duration,
    attempts: u32,
}

impl<K> FastSlow<K> {
    /// `fast` for the first `attempts` failures of a key, then `slow`, which may be the shorter.
    /// With [`u32::MAX`] attempts it stays fast.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    /// use requeue::{RateLimiter, Time};
    ///
    /// let mut limiter = FastSlow::new(Duration::ZERO, Duration::from_secs(1), 0);
    /// assert_eq!(limiter.delay(&"a", Time::ZERO), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn new(fast: Duration, slow: Duration, attempts: u32) -> Self {
        Self::with_hasher(fast, slow, attempts, RandomState::default())
    }
}

impl<K, S> FastSlow<K, S> {
    /// The same with a hasher of your choice.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use std::hash::RandomState;
    /// use requeue::limiter::FastSlow;
    ///
    /// let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(10));
    /// let limiter = FastSlow::<String, _>::with_hasher(fast, slow, 3, RandomState::new());
    /// assert!(limiter.is_empty());
    /// ```
    #[must_use]
    pub const fn with_hasher(fast: Duration, slow: Duration, attempts: u32, hasher: S) -> Self {
        Self { failures: Failures::with_hasher(hasher), fast, slow, attempts }
    }

    /// How many keys it remembers.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    /// use requeue::{RateLimiter, Time};
    ///
    /// let mut limiter = FastSlow::new(Duration::ZERO, Duration::from_secs(1), 3);
    /// limiter.delay(&"a", Time::ZERO);
    /// assert_eq!(limiter.len(), 1);
    /// ```
    #[must_use]
    pub const fn len(&self) -> usize {
        self.failures.len()
    }

    /// Whether it remembers no key.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    ///
    /// assert!(FastSlow::<u64>::new(Duration::ZERO, Duration::from_secs(1), 3).is_empty());
    /// ```
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all but the `max` keys that failed last, in a time linear in the keys; says how
    /// many it forgot.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    /// use requeue::{RateLimiter, Time};
    ///
    /// let mut limiter = FastSlow::new(Duration::ZERO, Duration::from_secs(1), 3);
    /// for key in ["a", "b", "a"] {
    ///     limiter.delay(&key, Time::ZERO);
    /// }
    /// assert_eq!(limiter.trim(1), 1);
    /// assert_eq!((limiter.num_requeues(&"a"), limiter.num_requeues(&"b")), (2, 0));
    /// ```
    pub fn trim(&mut self, max: usize) -> usize {
        self.failures.trim(max)
    }

    /// Forgets the keys for which `keep`, given the key and its failures, is false; says how many.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    /// use requeue::{RateLimiter, Time};
    ///
    /// let mut limiter = FastSlow::new(Duration::ZERO, Duration::from_secs(1), 3);
    /// limiter.delay(&"deleted", Time::ZERO);
    /// assert_eq!(limiter.retain(|key, _| *key != "deleted"), 1);
    /// ```
    pub fn retain(&mut self, keep: impl Fn(&K, u32) -> bool) -> usize {
        self.failures.retain(keep)
    }
}

impl<K, S> RateLimiter<K> for FastSlow<K, S>
where
    K: Hash + Eq + Clone + Send,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, _now: Time) -> Duration {
        let before = self.failures.count(key);
        // The count stays at u32::MAX, where so many attempts are still fast ones.
        if before < self.attempts || self.attempts == u32::MAX { self.fast } else { self.slow }
    }

    fn forget(&mut self, key: &K) {
        self.failures.forget(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        self.failures.of(key)
    }

    fn is_idle(&self) -> bool {
        self.is_empty()
    }

    fn longest(&self) -> Duration {
        match self.attempts {
            0 => self.slow,
            u32::MAX => self.fast,
            _ => self.fast.max(self.slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: Duration = Duration::from_millis(5);
    const SLOW: Duration = Duration::from_secs(10);

    /// `TestItemFastSlowRateLimiter`.
    #[test]
    fn test_item_fast_slow_rate_limiter() {
        let mut limiter = FastSlow::new(FAST, SLOW, 3);
        for expected in [FAST, FAST, FAST, SLOW, SLOW] {
            assert_eq!(limiter.delay(&"one", Time::ZERO), expected);
        }
        assert_eq!(limiter.num_requeues(&"one"), 5);

        assert_eq!(limiter.delay(&"two", Time::ZERO), FAST);
        assert_eq!(limiter.delay(&"two", Time::ZERO), FAST);
        assert_eq!(limiter.num_requeues(&"two"), 2);

        limiter.forget(&"one");
        assert_eq!(limiter.num_requeues(&"one"), 0);
        assert_eq!(limiter.delay(&"one", Time::ZERO), FAST);
    }

    #[test]
    fn forget_forgets_one_key_and_not_everything() {
        let mut limiter = FastSlow::new(FAST, SLOW, 1);
        for key in [1, 2, 3] {
            limiter.delay(&key, Time::ZERO);
        }
        limiter.forget(&1);
        assert_eq!([1, 2, 3].map(|key| limiter.num_requeues(&key)), [0, 1, 1]);
        assert_eq!([1, 2].map(|key| limiter.delay(&key, Time::ZERO)), [FAST, SLOW]);
    }

    #[test]
    fn absurd_parameters_are_defined() {
        let mut slow = FastSlow::new(Duration::MAX, Duration::ZERO, 0);
        assert_eq!(slow.delay(&1, Time::ZERO), Duration::ZERO);
        assert_eq!(RateLimiter::<i32>::longest(&slow), Duration::ZERO);

        let mut fast = FastSlow::new(FAST, SLOW, u32::MAX);
        fast.failures.set(&1, u32::MAX - 1);
        assert_eq!([(); 3].map(|()| fast.delay(&1, Time::NEVER)), [FAST; 3]);
        assert_eq!((fast.num_requeues(&1), fast.longest()), (u32::MAX, FAST));
    }

    proptest! {
        #[test]
        fn the_nth_failure_is_fast_while_n_is_below_the_attempts(attempts in 0..20_u32, n in 0..30_u32) {
            let mut limiter = FastSlow::new(FAST, SLOW, attempts);
            limiter.failures.set(&1, n);
            let expected = if n < attempts { FAST } else { SLOW };
            prop_assert_eq!(limiter.delay(&1, Time::ZERO), expected);
            prop_assert!(expected <= limiter.longest());
        }
    }
}
