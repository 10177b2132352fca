//! Rate limiters: the delay of a key after a failure.
//!
//! | limiter | delay of a key's n-th failure, n from 0 |
//! |---|---|
//! | [`BackoffLimiter`] | base · 2ⁿ up to a maximum, with jitter; a failure before the wait is over does not count |
//! | [`ExponentialFailure`] | base · 2ⁿ up to a maximum |
//! | [`FastSlow`] | a fast delay for some attempts, then a slow delay |
//! | [`Bucket`] | the time until a token arrives in the bucket that all keys share |
//! | [`MaxOf`] | the longest delay of its members |
//! | [`WithMaxWait`] | another limiter's delay, up to a maximum |
//!
//! All limiters except the first come from client-go. [`default_controller`] and [`default_item_based`] are the
//! defaults of client-go. The default of this crate is [`BackoffLimiter`].
//!
//! No parameters make a limiter panic or overflow, because sums and products saturate. If the clock
//! goes back, a limiter acts as if the clock stood still, unless the limiter's docs say otherwise.
//!
//! [`ExponentialFailure`] and [`FastSlow`] remember every failed key until the key is forgotten. [`BackoffLimiter`]
//! removes expired keys itself. The other limiters remember no keys. The memory of a limiter is proportional to the number
//! of keys that it remembers.

mod backoff;
mod bucket;
mod combined;
mod exponential;
mod fast_slow;
mod max_wait;
mod per_key;
pub(crate) mod rate_limiter;
mod table;

pub use self::backoff::BackoffLimiter;
#[doc(hidden)]
pub use self::backoff::DEFAULT_BACKOFF;
pub use self::bucket::Bucket;
pub use self::combined::{MaxOf, default_controller};
pub use self::exponential::{ExponentialFailure, default_item_based};
pub use self::fast_slow::FastSlow;
pub use self::max_wait::WithMaxWait;
pub use self::per_key::PerKey;
pub use self::rate_limiter::RateLimiter;
