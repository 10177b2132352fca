//! The delays of backoff and jitter, as in apimachinery's package `wait`. This module computes
//! delays, but does not wait.
//!
//! No function in this module sleeps, reads a clock or draws a true random number. The caller
//! passes the time `now`, and a [`JitterSource`] with a seed. The loops that wait for the delays
//! are in the crate `requeue`.
//!
//! [`Backoff`] and [`jitter`] are always available, because other crates of the project use them. All other items need
//! the feature `wait`.
//!
//! | purpose | function or type |
//! |---|---|
//! | the next delay of a backoff that the caller stores | [`Backoff::step`] |
//! | the delays of a backoff, until its steps are used up | [`Backoff::delays`] |
//! | an unlimited number of delays | [`Backoff::delay_func`] |
//! | an unlimited number of delays, with a restart at intervals | [`Backoff::delay_with_reset`] |
//! | a backoff that restarts after a time without delays | [`ExponentialBackoffManager`] |
//! | a constant period with jitter | [`JitteredBackoffManager`] |

mod backoff;
#[cfg(feature = "wait")]
mod manager;
mod source;

pub use self::backoff::Backoff;
#[cfg(feature = "wait")]
pub use self::manager::{BackoffManager, ExponentialBackoffManager, JitteredBackoffManager};
pub(crate) use self::source::saturating_nanos;
pub use self::source::{JitterSource, jitter};
