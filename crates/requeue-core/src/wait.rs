//! Backoff and jitter, as in apimachinery's `wait`: how long to wait, not the waiting.
//!
//! Nothing here sleeps, reads a clock or draws a random number of its own. What changes from call
//! to call is given: `now`, and a [`JitterSource`] made from a seed. The loops that wait for the
//! delays live in the crate `requeue`.
//!
//! | to have | take |
//! |---|---|
//! | the next delay of a backoff that you keep | [`Backoff::step`] |
//! | the delays of a backoff, until its steps are used up | [`Backoff::delays`] |
//! | the delays of a backoff, without end | [`Backoff::delay_func`] |
//! | the same, starting over at intervals | [`Backoff::delay_with_reset`] |
//! | a backoff that starts over after a quiet time | [`ExponentialBackoffManager`] |
//! | a period with some jitter | [`JitteredBackoffManager`] |

mod backoff;
mod manager;
mod source;

pub use self::backoff::{Backoff, Delays};
pub use self::manager::{
    BackoffManager, DelayFunc, DelayWithReset, ExponentialBackoffManager, JitteredBackoffManager,
};
pub(crate) use self::source::saturating_nanos;
pub use self::source::{JitterSource, jitter};
