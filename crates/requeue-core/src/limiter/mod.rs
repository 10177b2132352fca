//! Rate limiters: how long a key waits after a failure.
//!
//! | limiter | the delay of a key's n-th failure, n from 0 |
//! |---|---|
//! | [`BackoffLimiter`] | base · 2ⁿ up to a cap, with jitter; failures of a key that should still be waiting don't count |
//! | [`ExponentialFailure`] | base · 2ⁿ up to a maximum |
//! | [`FastSlow`] | a fast one for some attempts, then a slow one |
//! | [`Bucket`] | what keeps all keys together to so many per second |
//! | [`MaxOf`] | the longest that its members give |
//! | [`WithMaxWait`] | another limiter's, up to a maximum |
//!
//! All but the first are client-go's. [`default_controller`] and [`default_item_based`] are its
//! defaults; ours is [`BackoffLimiter`].
//!
//! Nothing here panics or overflows, whatever the parameters: sums and products saturate, and a
//! clock that goes back counts as one that stood still, except where a limiter says what it does.
//! [`ExponentialFailure`] and [`FastSlow`] remember every key that failed until it is forgotten or
//! [trimmed](PerKey::trim); [`BackoffLimiter`] forgets by itself; the others remember
//! no key. None keeps memory for many more keys than it remembers.

mod backoff;
mod bucket;
mod combined;
mod exponential;
mod fast_slow;
mod max_wait;
mod per_key;
mod table;

use alloc::boxed::Box;
use core::time::Duration;

use crate::types::time::Time;

pub use self::backoff::BackoffLimiter;
pub use self::bucket::Bucket;
pub use self::combined::{MaxOf, default_controller};
pub use self::exponential::{ExponentialFailure, default_item_based};
pub use self::fast_slow::FastSlow;
pub use self::max_wait::WithMaxWait;
pub use self::per_key::PerKey;

/// Decides how long a key waits before it is tried again.
///
/// client-go's `TypedRateLimiter`. Object-safe, so that limiters nest: [`MaxOf`] takes boxes, and a
/// box of a limiter is a limiter.
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::{RateLimiter, Time};
///
/// /// A second, whatever happens.
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
///     fn longest(&self) -> Duration {
///         Duration::from_secs(1)
///     }
/// }
///
/// let mut limiter: Box<dyn RateLimiter<&str>> = Box::new(ASecond);
/// assert_eq!(limiter.delay(&"default/web", Time::ZERO), Duration::from_secs(1));
/// ```
pub trait RateLimiter<K>: Send {
    /// Counts one failure of `key` and says how long it waits (client-go's `When`).
    fn delay(&mut self, key: &K, now: Time) -> Duration;

    /// Forgets the failures of `key`.
    fn forget(&mut self, key: &K);

    /// How many failures of `key` are counted.
    fn num_requeues(&self, key: &K) -> u32;

    /// The longest delay this limiter gives, or a long one if there is no longest. A queue asks for
    /// it once, and uses it where [`delay`](Self::delay) panics or cannot be called.
    fn longest(&self) -> Duration {
        Duration::from_secs(300)
    }

    /// Whether no failure of any key is counted. A caller may then leave out
    /// [`forget`](Self::forget), which has nothing to do. `false` unless overridden.
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

    fn longest(&self) -> Duration {
        (**self).longest()
    }

    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }
}
