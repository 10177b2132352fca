//! A limiter with two delays: client-go's `TypedItemFastSlowRateLimiter`.

use core::time::Duration;

use foldhash::fast::RandomState;

use super::per_key::{Delays, PerKey};
use super::table::KeyTable;

/// A limiter with a fast delay for the first failures of each key, and a slow delay for the later
/// ones.
///
/// This is client-go's `NewTypedItemFastSlowRateLimiter`.
///
/// **Unbounded**: the limiter stores each failed key until the caller calls `forget` for it.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::FastSlow;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(10));
/// let mut limiter = FastSlow::new(fast, slow, 2);
/// let delays = [(); 4].map(|()| limiter.delay(&"default/web", Time::ZERO));
/// assert_eq!(delays, [fast, fast, slow, slow]);
/// ```
pub type FastSlow<K, S = RandomState> = PerKey<K, FastThenSlow, S>;

/// Computes the delays of [`FastSlow`].
#[derive(Debug)]
pub struct FastThenSlow {
    fast: Duration,
    slow: Duration,
    attempts: u32,
}

impl<K> PerKey<K, FastThenSlow> {
    /// Creates a limiter whose delay is `fast` for the first `attempts` failures of a key, and
    /// `slow` for all later failures.
    ///
    /// `slow` may be shorter than `fast`. If `attempts` is [`u32::MAX`], every delay is `fast`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::FastSlow;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let mut limiter = FastSlow::new(Duration::ZERO, Duration::from_secs(1), 0);
    /// assert_eq!(limiter.delay(&"a", Time::ZERO), Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn new(fast: Duration, slow: Duration, attempts: u32) -> Self {
        Self::with_hasher(fast, slow, attempts, RandomState::default())
    }
}

impl<K, S> PerKey<K, FastThenSlow, S> {
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
    /// use requeue::limiter::FastSlow;
    ///
    /// let (fast, slow) = (Duration::from_millis(5), Duration::from_secs(10));
    /// let limiter = FastSlow::<String, _>::with_hasher(fast, slow, 3, RandomState::new());
    /// assert_eq!(limiter.num_requeues(&"a".to_owned()), 0);
    /// ```
    #[must_use]
    pub const fn with_hasher(fast: Duration, slow: Duration, attempts: u32, hasher: S) -> Self {
        let delays = FastThenSlow { fast, slow, attempts };
        Self { failures: KeyTable::with_hasher(hasher), delays }
    }
}

impl Delays for FastThenSlow {
    fn delay_after(&self, before: u32) -> Duration {
        // The number of failures saturates at `u32::MAX`. Without the second condition, a limiter
        // with `u32::MAX` attempts would return the slow delay from that number on.
        if before < self.attempts || self.attempts == u32::MAX { self.fast } else { self.slow }
    }

    fn longest_delay(&self) -> Duration {
        match self.attempts {
            0 => self.slow,
            u32::MAX => self.fast,
            _ => self.fast.max(self.slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limiter::RateLimiter;
    use crate::types::Time;

    const FAST: Duration = Duration::from_millis(5);
    const SLOW: Duration = Duration::from_secs(10);

    /// client-go's `TestItemFastSlowRateLimiter`.
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
    fn absurd_parameters_are_defined() {
        let mut slow = FastSlow::new(Duration::MAX, Duration::ZERO, 0);
        assert_eq!(slow.delay(&1, Time::ZERO), Duration::ZERO);
        assert_eq!(RateLimiter::<i32>::longest_delay(&slow), Duration::ZERO);

        let mut fast = FastSlow::new(FAST, SLOW, u32::MAX);
        fast.set(&1, u32::MAX - 1);
        assert_eq!([(); 3].map(|()| fast.delay(&1, Time::NEVER)), [FAST; 3]);
        assert_eq!((fast.num_requeues(&1), fast.longest_delay()), (u32::MAX, FAST));
    }

    proptest! {
        #[test]
        fn the_nth_failure_is_fast_while_n_is_below_the_attempts(attempts in 0..20_u32, n in 0..30_u32) {
            let mut limiter = FastSlow::new(FAST, SLOW, attempts);
            limiter.set(&1, n);
            let expected = if n < attempts { FAST } else { SLOW };
            prop_assert_eq!(limiter.delay(&1, Time::ZERO), expected);
            prop_assert!(expected <= limiter.longest_delay());
        }
    }
}
