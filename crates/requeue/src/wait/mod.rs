//! Loops that wait: apimachinery's `wait` on any [`Clock`](crate::clock::Clock).
//!
//! The loops and the managers need the feature `wait`. [`Backoff`], [`jitter`] and
//! [`jitter_source`] are always available.
//!
//! | task | function or type | apimachinery |
//! |---|---|---|
//! | run a function periodically | [`until`], [`non_sliding_until`], [`jitter_until`], [`forever`] | `Until`, `NonSlidingUntil`, `JitterUntil`, `Forever` |
//! | run a function at changing intervals | [`backoff_until`] | `BackoffUntil` |
//! | try a condition until it holds | [`poll_until`] with a [`Polling`] | `PollUntilContextCancel`, `PollUntilContextTimeout`, `DelayFunc.Until`, `Poll…` |
//! | try a condition a limited number of times, with growing delays | [`exponential_backoff`], [`exponential_backoff_until`] | `ExponentialBackoff`, `ExponentialBackoffWithContext` |
//! | process pieces of work on several threads | [`parallelize_until`] | client-go's `ParallelizeUntil` |
//! | compute delays only | [`Backoff`], [`jitter`], the [`BackoffManager`]s | `Backoff`, `Jitter`, `BackoffManager` |
//!
//! All loops have these properties:
//!
//! - A loop gets its time from the clock that the caller passes. With a
//!   [`FakeClock`](crate::clock::FakeClock::run), a test of hours of waiting takes microseconds. No
//!   loop needs a runtime.
//! - A *stop* is any future. Its output is ignored. Examples are the `cancelled()` of a token, a
//!   receiver, and the handle of a task. A loop with [`pending`](std::future::pending) never stops.
//!   The loop checks the stop before every run, so the stop takes precedence over the timer. The
//!   stop does not interrupt a run. A function that takes long must check the stop itself.
//! - The function is a closure that returns a future. If the closure and the future can be sent to
//!   other threads, the loop can be spawned. Use `|| async { … }`, or `async || …` if the closure
//!   only reads its captures. If a closure changes its captures, it must do so before it returns
//!   the future, as in the example below.
//! - If the function panics, the loop passes the panic to [`handle_crash`]. By default, the loop
//!   then continues.
//! - Dropping the future of a loop ends the loop, between two runs or while the function waits. It
//!   leaves no resources behind.
//! - If the delays are zero, the loop yields to other tasks after each run.
//!
//! ```
//! # #[cfg(feature = "wait")] {
//! use std::time::Duration;
//! use requeue::clock::{Clock, FakeClock, sleep_until};
//! use requeue::wait;
//!
//! let clock = FakeClock::new();
//! let start = clock.now();
//! let stop = sleep_until(&clock, start + Duration::from_secs(25));
//! let mut runs = Vec::new();
//! clock.run(wait::until(&clock, Duration::from_secs(10), stop, || {
//!     runs.push(clock.now().since(start).as_secs());
//!     async {}
//! }));
//! assert_eq!(runs, [0, 10, 20]);
//! # }
//! ```

#[cfg(feature = "wait")]
mod crash;
#[cfg(feature = "wait")]
mod error;
#[cfg(feature = "wait")]
mod exponential;
#[cfg(feature = "wait")]
mod parallelize;
#[cfg(feature = "wait")]
mod poll;
#[cfg(feature = "wait")]
mod rounds;
#[cfg(feature = "wait")]
mod until;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

pub use requeue_core::wait::{Backoff, JitterSource, jitter};
#[cfg(feature = "wait")]
pub use requeue_core::wait::{BackoffManager, ExponentialBackoffManager, JitteredBackoffManager};

#[cfg(feature = "wait")]
pub use self::{
    crash::{Crash, CrashHandler, handle_crash, on_crash, set_really_crash},
    error::Error,
    exponential::{exponential_backoff, exponential_backoff_until},
    parallelize::parallelize_until,
    poll::{Polling, poll_until},
    until::{Period, backoff_until, forever, jitter_until, non_sliding_until, until},
};

/// Returns a source of jitter with a random seed. The seed differs between calls and between
/// processes.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::wait::{jitter, jitter_source};
///
/// let second = Duration::from_secs(1);
/// assert!((second..=second * 2).contains(&jitter(second, 1.0, &mut jitter_source())));
/// ```
#[must_use]
pub fn jitter_source() -> JitterSource {
    // The keys of a hash map are the only random numbers of the standard library.
    JitterSource::new(RandomState::new().hash_one(0_u8))
}
