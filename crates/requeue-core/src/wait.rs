//! Backoff and jitter, as in apimachinery's `wait`. This module computes delays, and does not wait.
//!
//! No function here sleeps, reads a clock or draws a random number. The caller provides `now`, and
//! a [`JitterSource`] with a seed. The loops that wait for the delays are in the crate `requeue`.
//!
//! [`Backoff`] and [`jitter`] are always available, because other crates of the project use them. All other items need
//! the feature `wait`.
//!
//! | purpose | function or type |
//! |---|---|
//! | the next delay of a backoff that the caller keeps | [`Backoff::step`] |
//! | the delays of a backoff, until its steps are used up | [`Backoff::delays`] |
//! | the delays of a backoff, without end | [`Backoff::delay_func`] |
//! | the delays of a backoff, without end, with a restart at intervals |
//! [`Backoff::delay_with_reset`] |
//! | a backoff that restarts after a quiet time | [`ExponentialBackoffManager`] |
//! | a period with jitter | [`JitteredBackoffManager`] |

mod backoff;
#[cfg(feature = "wait")]
mod manager;
mod source;

pub use self::backoff::Backoff;
#[cfg(feature = "wait")]
pub use self::manager::{BackoffManager, ExponentialBackoffManager, JitteredBackoffManager};
pub(crate) use self::source::saturating_nanos;
pub use self::source::{JitterSource, jitter};
