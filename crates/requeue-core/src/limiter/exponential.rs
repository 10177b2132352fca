//! A limiter whose delays double: client-go's `TypedItemExponentialFailureRateLimiter`.

use core::time::Duration;

use foldhash::fast::RandomState;

use super::per_key::{Delays, PerKey};
use super::table::KeyTable;
use crate::rule::backoff::longest_delay;

/// A limiter that delays a key by base · 2ⁿ after its n-th failure (n from 0), up to a maximum.
///
/// This is client-go's `NewTypedItemExponentialFailureRateLimiter`. It counts every failure, even
/// one before the key's wait has ended. If events can run a key before its wait has ended, use
/// [`BackoffLimiter`](super::BackoffLimiter).
///
/// **Unbounded**: the limiter stores each failed key until the caller calls `forget` for it.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::ExponentialFailure;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let (base, max) = (Duration::from_millis(1), Duration::from_millis(5));
/// let mut limiter = ExponentialFailure::new(base, max);
/// let mut millis = || limiter.delay(&"default/web", Time::ZERO).as_millis();
/// assert_eq!([millis(), millis(), millis(), millis(), millis()], [1, 2, 4, 5, 5]);
/// limiter.forget(&"default/web");
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), base);
/// ```
pub type ExponentialFailure<K, S = RandomState> = PerKey<K, Doubling, S>;

/// Computes the delays of [`ExponentialFailure`].
#[derive(Debug)]
pub struct Doubling {
    base: Duration,
    max: Duration,
}

impl<K> PerKey<K, Doubling> {
    /// Creates a limiter whose delays start at `base` and double up to `max`.
    ///
    /// If `base` is zero, every delay is zero. If `base` is above `max`, every delay is `max`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::ExponentialFailure;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let mut limiter = ExponentialFailure::new(Duration::MAX, Duration::from_secs(1));
    /// assert_eq!(limiter.delay(&"a", Time::ZERO), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn new(base: Duration, max: Duration) -> Self {
        Self::with_hasher(base, max, RandomState::default())
    }
}

impl<K, S> PerKey<K, Doubling, S> {
    /// Creates a limiter that hashes keys with `hasher`. The other parameters are those of
    /// `new`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use std::hash::RandomState;
    /// use requeue::limiter::RateLimiter;
    /// use requeue::limiter::ExponentialFailure;
    ///
    /// let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
    /// let limiter = ExponentialFailure::<String, _>::with_hasher(base, max, RandomState::new());
    /// assert_eq!(limiter.num_requeues(&"a".to_owned()), 0);
    /// ```
    #[must_use]
    pub const fn with_hasher(base: Duration, max: Duration, hasher: S) -> Self {
        Self { failures: KeyTable::with_hasher(hasher), delays: Doubling { base, max } }
    }
}

impl Delays for Doubling {
    fn delay_after(&self, before: u32) -> Duration {
        longest_delay(self.base, before, self.max)
    }

    fn longest_delay(&self) -> Duration {
        self.delay_after(u32::MAX)
    }
}

/// Returns client-go's default limiter without a bucket: the delay of each key starts at 1 ms and
/// doubles up to 1000 s.
///
/// This is client-go's `DefaultTypedItemBasedRateLimiter`.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::RateLimiter;
/// use requeue::{Time, limiter};
///
/// let mut limiter = limiter::default_item_based();
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), Duration::from_millis(1));
/// assert_eq!(limiter.longest_delay(), Duration::from_secs(1_000));
/// ```
#[must_use]
pub fn default_item_based<K>() -> ExponentialFailure<K> {
    ExponentialFailure::new(Duration::from_millis(1), Duration::from_secs(1_000))
}

#[cfg(test)]
mod tests {
    use core::hash::Hash;

    use super::*;
    use crate::limiter::RateLimiter;
    use crate::types::Time;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn delay<K: Hash + Eq + Clone + Send>(l: &mut ExponentialFailure<K>, key: K) -> Duration {
        l.delay(&key, Time::ZERO)
    }

    /// client-go's `TestItemExponentialFailureRateLimiter`.
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

    /// client-go's `TestItemExponentialFailureRateLimiterOverFlow`.
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
    fn absurd_parameters_are_defined() {
        let mut zero = ExponentialFailure::new(Duration::ZERO, SECOND);
        zero.set(&1, 5_000);
        assert_eq!((delay(&mut zero, 1), zero.longest_delay()), (Duration::ZERO, Duration::ZERO));

        let mut never = ExponentialFailure::new(SECOND, Duration::ZERO);
        assert_eq!((delay(&mut never, 1), never.longest_delay()), (Duration::ZERO, Duration::ZERO));

        let mut above = ExponentialFailure::new(Duration::MAX, SECOND);
        assert_eq!((delay(&mut above, 1), delay(&mut above, 1)), (SECOND, SECOND));

        let mut endless = ExponentialFailure::new(SECOND, Duration::MAX);
        endless.set(&1, u32::MAX);
        assert_eq!(
            (delay(&mut endless, 1), endless.longest_delay()),
            (Duration::MAX, Duration::MAX)
        );
        assert_eq!(endless.num_requeues(&1), u32::MAX);
    }
}
