//! The trait of all limiters: client-go's `TypedRateLimiter`.

use alloc::boxed::Box;
use core::time::Duration;

use crate::types::Time;

/// Computes the time that a key waits after a failure.
///
/// This is client-go's `TypedRateLimiter`. The trait is dyn-compatible, so that a limiter can
/// contain other limiters. [`MaxOf`](super::MaxOf) contains boxed limiters, and a boxed limiter is
/// a limiter itself.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::limiter::RateLimiter;
/// use requeue::Time;
///
/// /// A limiter whose delay is always one second.
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
    /// Counts a failure of `key` at the time `now`, and returns the delay before its next run
    /// (client-go's `When`).
    fn delay(&mut self, key: &K, now: Time) -> Duration;

    /// Forgets the failures of `key`, so that its next delay is the first delay again.
    fn forget(&mut self, key: &K);

    /// Returns the number of failures of `key` that the limiter has counted since the key was last
    /// forgotten.
    fn num_requeues(&self, key: &K) -> u32;

    /// Returns the longest delay of this limiter. If its delays have no maximum, returns a long
    /// delay that the implementation chooses.
    ///
    /// A queue calls this method one time. The queue uses the result as the delay of a key if
    /// [`delay`](Self::delay) panics or cannot be called. The default is 300 s.
    fn longest_delay(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// Returns true if the limiter has counted no failure of any key.
    ///
    /// The queue may then skip calls of [`forget`](Self::forget), which would have no effect. The
    /// default is `false`.
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
