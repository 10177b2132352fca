//! The limiter that doubles: client-go's `TypedItemExponentialFailureRateLimiter`.

use core::hash::{BuildHasher, Hash};
use core::time::Duration;

use foldhash::fast::RandomState;

use super::RateLimiter;
use super::failures::Failures;
use crate::types::time::Time;
use crate::wait::saturating_nanos;

/// The n-th failure of a key (n from 0) waits base · 2ⁿ, but no longer than a maximum.
///
/// client-go's `NewTypedItemExponentialFailureRateLimiter`. Every failure counts, also one that
/// comes while the key should still be waiting: where triggers can run a key early, take
/// [`BackoffLimiter`](super::BackoffLimiter).
///
/// **Unbounded**: it remembers each key that failed until it is forgotten, [trimmed](Self::trim) or
/// not [retained](Self::retain).
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::ExponentialFailure;
/// use requeue::{RateLimiter, Time};
///
/// let (base, max) = (Duration::from_millis(1), Duration::from_millis(5));
/// let mut limiter = ExponentialFailure::new(base, max);
/// let mut millis = || limiter.delay(&"default/web", Time::ZERO).as_millis();
/// assert_eq!([millis(), millis(), millis(), millis(), millis()], [1, 2, 4, 5, 5]);
/// limiter.forget(&"default/web");
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), base);
/// ```
#[derive(Clone, Debug)]
pub struct ExponentialFailure<K, S = RandomState> {
    failures: Failures<K, S>,
    base: Duration,
    max: Duration,
}

impl<K> ExponentialFailure<K> {
    /// Starts at `base` and doubles up to `max`. A `base` of zero never waits; one above `max`
    /// always waits `max`.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::ExponentialFailure;
    /// use requeue::{RateLimiter, Time};
    ///
    /// let mut limiter = ExponentialFailure::new(Duration::MAX, Duration::from_secs(1));
    /// assert_eq!(limiter.delay(&"a", Time::ZERO), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        Self::with_hasher(base, max, RandomState::default())
    }
}

impl<K, S> ExponentialFailure<K, S> {
    /// The same with a hasher of your choice.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use std::hash::RandomState;
    /// use requeue::limiter::ExponentialFailure;
    ///
    /// let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
    /// let limiter = ExponentialFailure::<String, _>::with_hasher(base, max, RandomState::new());
    /// assert!(limiter.is_empty());
    /// ```
    #[must_use]
    pub const fn with_hasher(base: Duration, max: Duration, hasher: S) -> Self {
        Self { failures: Failures::with_hasher(hasher), base, max }
    }

    /// How many keys it remembers.
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::{RateLimiter, Time, limiter};
    ///
    /// let mut limiter = limiter::default_item_based();
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
    /// assert!(requeue::limiter::default_item_based::<u64>().is_empty());
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
        self.failures.trim(max)
    }

    /// Forgets the keys for which `keep`, given the key and its failures, is false; says how many.
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
        self.failures.retain(keep)
    }
}

impl<K, S> RateLimiter<K> for ExponentialFailure<K, S>
where
    K: Hash + Eq + Clone + Send,
    S: BuildHasher + Send,
{
    fn delay(&mut self, key: &K, _now: Time) -> Duration {
        doubled(self.base, self.failures.count(key), self.max)
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
        doubled(self.base, u32::MAX, self.max)
    }
}

/// client-go's default per-key limiter: 1 ms, doubling, up to 1000 s.
///
/// Its `DefaultTypedItemBasedRateLimiter`.
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::{RateLimiter, Time, limiter};
///
/// let mut limiter = limiter::default_item_based();
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), Duration::from_millis(1));
/// assert_eq!(limiter.longest(), Duration::from_secs(1_000));
/// ```
#[must_use]
pub fn default_item_based<K>() -> ExponentialFailure<K> {
    ExponentialFailure::new(Duration::from_millis(1), Duration::from_secs(1_000))
}

/// min(base · 2ⁿ, max), for every n.
pub(super) fn doubled(base: Duration, n: u32, max: Duration) -> Duration {
    let nanos = base.as_nanos();
    if nanos == 0 {
        Duration::ZERO
    } else if n <= nanos.leading_zeros() {
        saturating_nanos(nanos << n).min(max)
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn delay<K: Hash + Eq + Clone + Send>(l: &mut ExponentialFailure<K>, key: K) -> Duration {
        l.delay(&key, Time::ZERO)
    }

    /// `TestItemExponentialFailureRateLimiter`.
    #[test]
    fn test_item_exponential_failure_rate_limiter() {
        let mut limiter = ExponentialFailure::new(MILLI, SECOND);
        for millis in [1, 2, 4, 8, 16] {
            assert_eq!(delay(&mut limiter, "one"), millis * MILLI);
        }
        assert_eq!(limiter.num_requeues(&"one"), 5);

        assert_eq!(delay(&mut limiter, "two"), MILLI);
        assert_eq!(delay(&mut limiter, "two"), 2 * MILLI);
        assert_eq!(limiter.num_requeues(&"two"), 2);

        limiter.forget(&"one");
        assert_eq!(limiter.num_requeues(&"one"), 0);
        assert_eq!(delay(&mut limiter, "one"), MILLI);
    }

    /// `TestItemExponentialFailureRateLimiterOverFlow`.
    #[test]
    fn test_item_exponential_failure_rate_limiter_over_flow() {
        let mut limiter = ExponentialFailure::new(MILLI, 1_000 * SECOND);
        for _ in 0..5 {
            delay(&mut limiter, "one");
        }
        assert_eq!(delay(&mut limiter, "one"), 32 * MILLI);
        for _ in 0..1_000 {
            delay(&mut limiter, "overflow1");
        }
        assert_eq!(delay(&mut limiter, "overflow1"), 1_000 * SECOND);

        let mut limiter = ExponentialFailure::new(60 * SECOND, 3_600_000 * SECOND);
        for _ in 0..2 {
            delay(&mut limiter, "two");
        }
        assert_eq!(delay(&mut limiter, "two"), 240 * SECOND);
        for _ in 0..1_000 {
            delay(&mut limiter, "overflow2");
        }
        assert_eq!(delay(&mut limiter, "overflow2"), 3_600_000 * SECOND);
    }

    #[test]
    fn forget_forgets_one_key_and_not_everything() {
        let mut limiter = ExponentialFailure::new(MILLI, SECOND);
        for key in [1, 2, 2, 3] {
            delay(&mut limiter, key);
        }
        limiter.forget(&1);
        limiter.forget(&4);
        assert_eq!([1, 2, 3].map(|key| limiter.num_requeues(&key)), [0, 2, 1]);
        assert_eq!(delay(&mut limiter, 2), 4 * MILLI);
        assert_eq!(limiter.len(), 2);
    }

    #[test]
    fn absurd_parameters_are_defined() {
        let mut zero = ExponentialFailure::new(Duration::ZERO, SECOND);
        zero.failures.set(&1, 5_000);
        assert_eq!((delay(&mut zero, 1), zero.longest()), (Duration::ZERO, Duration::ZERO));

        let mut never = ExponentialFailure::new(SECOND, Duration::ZERO);
        assert_eq!((delay(&mut never, 1), never.longest()), (Duration::ZERO, Duration::ZERO));

        let mut above = ExponentialFailure::new(Duration::MAX, SECOND);
        assert_eq!((delay(&mut above, 1), delay(&mut above, 1)), (SECOND, SECOND));

        let mut endless = ExponentialFailure::new(SECOND, Duration::MAX);
        endless.failures.set(&1, u32::MAX);
        assert_eq!((delay(&mut endless, 1), endless.longest()), (Duration::MAX, Duration::MAX));
        assert_eq!(endless.num_requeues(&1), u32::MAX);
    }

    #[test]
    fn the_clock_is_no_matter() {
        let mut limiter = ExponentialFailure::new(MILLI, SECOND);
        let delays = [Time::NEVER, Time::ZERO, Time::NEVER].map(|now| limiter.delay(&1, now));
        assert_eq!(delays, [MILLI, 2 * MILLI, 4 * MILLI]);
    }

    #[test]
    fn no_bit_is_lost_where_doubling_ends() {
        let nano = Duration::from_nanos(1);
        for n in [93, 94, 126, 127, 128, 129, u32::MAX] {
            let most = if n < 94 { Duration::from_nanos_u128(1 << n) } else { Duration::MAX };
            assert_eq!(doubled(nano, n, Duration::MAX), most, "{n}");
        }
    }

    proptest! {
        /// The oracle doubles, n times, and stops at the maximum.
        #[test]
        fn doubled_is_doubling(secs: u32, nanos in 0..1_000_000_000_u32, max: u64, n in 0..200_u32) {
            let (base, max) = (Duration::new(secs.into(), nanos), Duration::from_nanos(max));
            let most = max.as_nanos();
            let expected = (0..n).fold(base.as_nanos().min(most), |d, _| (d * 2).min(most));
            prop_assert_eq!(doubled(base, n, max).as_nanos(), expected);
            let unlimited = (0..n).fold(base, |d, _| d.saturating_mul(2));
            prop_assert_eq!(doubled(base, n, Duration::MAX), unlimited);
        }
    }
}
