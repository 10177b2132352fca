//! A limiter that shortens the delays of another limiter to a maximum: client-go's
//! `TypedWithMaxWaitRateLimiter`.

use core::time::Duration;

use super::RateLimiter;
use crate::types::Time;

/// A limiter that returns the delay of another limiter, but at most a given maximum.
///
/// This is client-go's `NewTypedWithMaxWaitRateLimiter`. The other limiter counts and forgets
/// failures as it does alone.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::{Bucket, WithMaxWait};
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// let max = Duration::from_millis(150);
/// let mut limiter = WithMaxWait::new(Bucket::new(10.0, 1), max);
/// let millis = [(); 4].map(|()| limiter.delay(&"default/web", Time::ZERO).as_millis());
/// assert_eq!(millis, [0, 100, 150, 150]);
/// ```
#[derive(Clone, Debug)]
pub struct WithMaxWait<L> {
    limiter: L,
    max: Duration,
}

impl<L> WithMaxWait<L> {
    /// Creates a limiter that returns the delays of `limiter`, but at most `max`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::limiter::{WithMaxWait, default_controller};
    /// use requeue::{Time, limiter::RateLimiter};
    ///
    /// let mut limiter = WithMaxWait::new(default_controller(), Duration::ZERO);
    /// assert!(limiter.delay(&"a", Time::ZERO).is_zero());
    /// ```
    #[must_use]
    pub const fn new(limiter: L, max: Duration) -> Self {
        Self { limiter, max }
    }
}

impl<K, L: RateLimiter<K>> RateLimiter<K> for WithMaxWait<L> {
    fn delay(&mut self, key: &K, now: Time) -> Duration {
        self.limiter.delay(key, now).min(self.max)
    }

    fn forget(&mut self, key: &K) {
        self.limiter.forget(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        self.limiter.num_requeues(key)
    }

    fn is_idle(&self) -> bool {
        self.limiter.is_idle()
    }

    fn longest_delay(&self) -> Duration {
        self.limiter.longest_delay().min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::limiter::ExponentialFailure;

    /// client-go's `StepRateLimiter`: the delay `base` for the first `threshold` failures of all
    /// keys, and then `max`.
    struct Step {
        count: u32,
        threshold: u32,
        base: Duration,
        max: Duration,
    }

    impl<K> RateLimiter<K> for Step {
        fn delay(&mut self, _: &K, _: Time) -> Duration {
            self.count += 1;
            if self.count <= self.threshold { self.base } else { self.max }
        }

        fn forget(&mut self, _: &K) {}

        fn num_requeues(&self, _: &K) -> u32 {
            0
        }
    }

    /// client-go's `TestWithMaxWaitRateLimiter`.
    #[test]
    fn test_with_max_wait_rate_limiter() {
        let (base, max) = (Duration::from_millis(5), Duration::from_secs(1_000));
        let step = Step { count: 0, threshold: 100, base, max };
        let mut limiter = WithMaxWait::new(step, Duration::from_secs(500));
        for key in 0..100 {
            assert_eq!(limiter.delay(&key, Time::ZERO), base);
        }
        for key in 100..200 {
            assert_eq!(limiter.delay(&key, Time::ZERO), Duration::from_secs(500));
        }
    }

    #[test]
    fn counting_and_forgetting_go_through() {
        let inner = ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(60));
        let inner: Box<dyn RateLimiter<u8>> = Box::new(inner);
        let mut limiter = WithMaxWait::new(inner, Duration::from_secs(3));
        let delays = [(); 4].map(|()| limiter.delay(&1, Time::ZERO).as_secs());
        assert_eq!(delays, [1, 2, 3, 3]);
        limiter.delay(&2, Time::ZERO);
        limiter.forget(&1);
        assert_eq!([1, 2].map(|key| limiter.num_requeues(&key)), [0, 1]);
        assert_eq!(limiter.longest_delay(), Duration::from_secs(3));
    }

    #[test]
    fn a_maximum_longer_than_any_delay_changes_nothing() {
        let inner = ExponentialFailure::new(Duration::from_secs(1), Duration::from_secs(60));
        let limiter = WithMaxWait::new(inner, Duration::MAX);
        assert_eq!(RateLimiter::<u8>::longest_delay(&limiter), Duration::from_secs(60));
    }
}
