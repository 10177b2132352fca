//! A limiter that combines several limiters: client-go's `TypedMaxOfRateLimiter`. Also client-go's
//! default limiter.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::hash::Hash;
use core::time::Duration;

use super::{Bucket, ExponentialFailure, RateLimiter};
use crate::types::Time;

/// A limiter that asks several limiters, its members, and returns their longest delay.
///
/// Every member counts each failure, and every member forgets a key. This is client-go's
/// `NewTypedMaxOfRateLimiter`. If a [`Bucket`] is a member, each failure takes a token from it,
/// even if another member returns a longer delay.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::{ExponentialFailure, FastSlow, MaxOf};
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let (milli, second) = (Duration::from_millis(1), Duration::from_secs(1));
/// let mut limiter = MaxOf::new(vec![
///     Box::new(FastSlow::new(3 * milli, second, 3)),
///     Box::new(ExponentialFailure::new(milli, second)),
/// ]);
/// let delays = [(); 4].map(|()| limiter.delay(&"default/web", Time::ZERO));
/// assert_eq!(delays, [3 * milli, 3 * milli, 4 * milli, second]);
/// ```
pub struct MaxOf<K> {
    limiters: Vec<Box<dyn RateLimiter<K>>>,
}

impl<K> MaxOf<K> {
    /// Creates a limiter with the members `limiters`. If `limiters` is empty, every delay is zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use requeue::limiter::MaxOf;
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// assert!(MaxOf::new(vec![]).delay(&"a", Time::ZERO).is_zero());
    /// ```
    #[must_use]
    pub const fn new(limiters: Vec<Box<dyn RateLimiter<K>>>) -> Self {
        Self { limiters }
    }
}

impl<K> RateLimiter<K> for MaxOf<K> {
    fn delay(&mut self, key: &K, now: Time) -> Duration {
        // Every member must count the failure, so the iterator must visit every member.
        self.limiters.iter_mut().map(|l| l.delay(key, now)).max().unwrap_or_default()
    }

    fn forget(&mut self, key: &K) {
        for limiter in &mut self.limiters {
            limiter.forget(key);
        }
    }

    /// Returns the highest number of failures that a member has counted for `key`.
    fn num_requeues(&self, key: &K) -> u32 {
        self.limiters.iter().map(|l| l.num_requeues(key)).max().unwrap_or_default()
    }

    fn is_idle(&self) -> bool {
        self.limiters.iter().all(|limiter| limiter.is_idle())
    }

    fn longest_delay(&self) -> Duration {
        self.limiters.iter().map(|l| l.longest_delay()).max().unwrap_or_default()
    }
}

impl<K> fmt::Debug for MaxOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaxOf").field("members", &self.limiters.len()).finish_non_exhaustive()
    }
}

/// Returns client-go's default limiter. The delay of each key starts at 5 ms and doubles up to 1000
/// s. All keys together get 100 retries without a wait, and then 10 retries per second.
///
/// This is client-go's `DefaultTypedControllerRateLimiter`, for programs that move from client-go.
/// The limiter stores each failed key until the caller calls `forget` for it. The number of keys
/// that wait for tokens is unlimited: if 10,000 keys fail at the same time, the last key waits 16
/// minutes. The default limiter of this crate is [`BackoffLimiter`](super::BackoffLimiter).
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::RateLimiter;
/// use requeue::{Time, limiter};
///
/// let mut limiter = limiter::default_controller();
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), Duration::from_millis(5));
/// assert_eq!(limiter.longest_delay(), Duration::from_secs(1_000));
/// ```
#[must_use]
pub fn default_controller<K: Hash + Eq + Clone + Send + 'static>() -> MaxOf<K> {
    let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
    MaxOf::new(vec![Box::new(ExponentialFailure::new(base, max)), Box::new(Bucket::new(10.0, 100))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::FastSlow;

    const MILLI: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn both(fast_slow_first: bool) -> MaxOf<&'static str> {
        let mut members: Vec<Box<dyn RateLimiter<_>>> = vec![
            Box::new(FastSlow::new(5 * MILLI, 3 * SECOND, 3)),
            Box::new(ExponentialFailure::new(MILLI, SECOND)),
        ];
        if !fast_slow_first {
            members.reverse();
        }
        MaxOf::new(members)
    }

    fn delay<K>(limiter: &mut MaxOf<K>, key: K) -> Duration {
        limiter.delay(&key, Time::ZERO)
    }

    /// client-go's `TestMaxOfRateLimiter`.
    #[test]
    fn test_max_of_rate_limiter() {
        for order in [true, false] {
            let mut limiter = both(order);
            for expected in [5 * MILLI, 5 * MILLI, 5 * MILLI, 3 * SECOND, 3 * SECOND] {
                assert_eq!(delay(&mut limiter, "one"), expected);
            }
            assert_eq!(limiter.num_requeues(&"one"), 5);

            assert_eq!(delay(&mut limiter, "two"), 5 * MILLI);
            assert_eq!(delay(&mut limiter, "two"), 5 * MILLI);
            assert_eq!(limiter.num_requeues(&"two"), 2);

            limiter.forget(&"one");
            assert_eq!(limiter.num_requeues(&"one"), 0);
            assert_eq!(delay(&mut limiter, "one"), 5 * MILLI);
        }
    }

    #[test]
    fn every_member_is_asked_and_not_only_the_first_or_the_longest() {
        let mut limiter = MaxOf::new(vec![
            Box::new(FastSlow::new(SECOND, Duration::ZERO, 2)),
            Box::new(ExponentialFailure::new(MILLI, SECOND)),
            Box::new(Bucket::new(1_000.0, 1)),
        ]);
        // For the first two failures, the first member has the longest delay. The other members
        // count these failures too.
        let delays = [(); 4].map(|()| delay(&mut limiter, 1));
        assert_eq!(delays, [SECOND, SECOND, 4 * MILLI, 8 * MILLI]);
        limiter.forget(&1);
        assert_eq!(delay(&mut limiter, 1), SECOND, "the first member has forgotten");
        delay(&mut limiter, 1);
        assert_eq!(delay(&mut limiter, 1), 6 * MILLI, "so has the second; the bucket never");
    }

    #[test]
    fn forget_forgets_one_key_and_not_everything() {
        let mut limiter = both(true);
        delay(&mut limiter, "one");
        delay(&mut limiter, "two");
        limiter.forget(&"one");
        assert_eq!(["one", "two"].map(|key| limiter.num_requeues(&key)), [0, 1]);
    }

    #[test]
    fn the_default_of_controllers_is_both_limits() {
        let mut limiter = default_controller();
        let per_key = [(); 5].map(|()| delay(&mut limiter, 0).as_millis());
        assert_eq!(per_key, [5, 10, 20, 40, 80]);
        for key in 1..=95 {
            assert_eq!(delay(&mut limiter, key), 5 * MILLI);
        }
        assert_eq!(delay(&mut limiter, 96), 100 * MILLI);
        assert_eq!(delay(&mut limiter, 97), 200 * MILLI);
        assert_eq!(limiter.longest_delay(), 1_000 * SECOND);
        limiter.forget(&0);
        assert_eq!(limiter.num_requeues(&0), 0);
    }

    #[test]
    fn of_no_limiters_everything_is_zero() {
        let mut limiter = MaxOf::new(vec![]);
        assert_eq!(delay(&mut limiter, 1), Duration::ZERO);
        limiter.forget(&1);
        assert_eq!((limiter.num_requeues(&1), limiter.longest_delay()), (0, Duration::ZERO));
    }
}
