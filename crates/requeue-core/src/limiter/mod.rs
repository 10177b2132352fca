//! Limiters, which compute the delay of a key after a failure.
//!
//! | limiter | delay after a key's failure number n, from 0 |
//! |---|---|
//! | [`BackoffLimiter`] | base · 2ⁿ up to a maximum, with jitter; counts no failure before the end of the key's wait |
//! | [`ExponentialFailure`] | base · 2ⁿ up to a maximum |
//! | [`FastSlow`] | a fast delay for the first failures, then a slow delay |
//! | [`Bucket`] | the time until the bucket, which all keys share, has gained a token |
//! | [`MaxOf`] | the longest delay of its members |
//! | [`WithMaxWait`] | the delay of another limiter, up to a maximum |
//!
//! All limiters except the first come from client-go. [`default_controller`] and
//! [`default_item_based`] are the defaults of client-go. The default of this crate is
//! [`BackoffLimiter`].
//!
//! A limiter does not panic or overflow with any parameters, because sums and products saturate. If
//! the clock goes back, a limiter acts as if the clock stood still, unless its docs say otherwise.
//!
//! [`ExponentialFailure`] and [`FastSlow`] store each failed key until the caller calls `forget`
//! for it. [`BackoffLimiter`] also removes expired keys itself. The other limiters store no keys.
//! The memory of a limiter is proportional to the number of keys that it stores.

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
