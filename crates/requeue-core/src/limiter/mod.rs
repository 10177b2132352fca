//! Rate limiters: how long a key waits after a failure.

use alloc::boxed::Box;
use core::time::Duration;

use crate::Time;

/// Decides how long a key waits before it is tried again.
///
/// client-go's `TypedRateLimiter`. Object-safe, so that limiters nest:
/// `MaxOf` and `WithMaxWait` take boxes.
pub trait RateLimiter<K>: Send {
    /// Counts one failure of `key` and says how long it waits (client-go's `When`).
    fn delay(&mut self, key: &K, now: Time) -> Duration;

    /// Forgets the failures of `key`.
    fn forget(&mut self, key: &K);

    /// How many failures of `key` are counted.
    fn num_requeues(&self, key: &K) -> u32;

    /// The longest delay this limiter gives: what a caller uses in place of an answer when
    /// [`delay`](Self::delay) panics.
    fn longest(&self) -> Duration {
        Duration::from_secs(300)
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

    fn longest(&self) -> Duration {
        (**self).longest()
    }
}
