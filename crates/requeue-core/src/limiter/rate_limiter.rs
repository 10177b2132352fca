//! The trait of all limiters: client-go's `TypedRateLimiter`.

use alloc::boxed::Box;
use core::time::Duration;

use crate::types::Time;

/// Computes the time that a key waits before its next attempt.
///
/// This is client-go's `TypedRateLimiter`. The trait is object-safe, so that limiters nest:
/// [`MaxOf`](super::MaxOf) takes boxed limiters, and a boxed limiter is a limiter.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// /// Every failure waits one second.
/// struct ASecond;
///
/// impl<K> RateLimiter<K> for ASecond {
///     fn delay(&mut self, _: &K, _: Time) -> Duration {
///         Duration::from_secs(1)
///     }
///     fn forget(&mut self, _: &K) {}
///     fn num_requeues(&self, _: &K) -> u32 {
///         0
///     }
///     fn longest_delay(&self) -> Duration {
///         Duration::from_secs(1)
///     }
/// }
///
/// let mut limiter: Box<dyn RateLimiter<&str>> = Box::new(ASecond);
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), Duration::from_secs(1));
/// ```
pub trait RateLimiter<K>: Send {
    /// Counts one failure of `key`, and returns the time that the key waits (client-go's `When`).
    fn delay(&mut self, key: &K, now: Time) -> Duration;

    /// Forgets the failures of `key`.
    fn forget(&mut self, key: &K);

    /// Returns the number of failures of `key` that are counted.
    fn num_requeues(&self, key: &K) -> u32;

    /// Returns the longest delay of this limiter, or a long delay if there is no maximum.
    ///
    /// A queue calls this method one time, and uses the result when [`delay`](Self::delay) panics or cannot be called.
    /// The default is 300 s.
    fn longest_delay(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// Returns true if no failure of any key is counted.
    ///
    /// The caller may then skip [`forget`](Self::forget), which would have no effect. The default
    /// is `false`.
    fn is_idle(&self) -> bool {
        false
    }
}

impl<K, L: RateLimiter<K> + ?Sized> RateLimiter<K> for Box<L> {
    fn delay(&mut self, key: &K, now: Time) -> Duration {
        (**self).delay(key, now)
    }

    fn forget(&mut self, key: &K) {
        (**self).forget(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        (**self).num_requeues(key)
    }

    fn longest_delay(&self) -> Duration {
        (**self).longest_delay()
    }

    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }
}
