//! Loops that wait: apimachinery's `wait` on any [`Clock`](crate::clock::Clock).
//!
//! | to have | take | apimachinery's |
//! |---|---|---|
//! | something done every so often | [`until`], [`non_sliding_until`], [`jitter_until`], [`forever`] | `Until`, `NonSlidingUntil`, `JitterUntil`, `Forever` |
//! | the same at changing intervals | [`backoff_until`] | `BackoffUntil` |
//! | a condition tried until it holds | [`poll_until`] with a [`Polling`] | `PollUntilContextCancel`, `PollUntilContextTimeout`, `DelayFunc.Until`, `Poll…` |
//! | the same, a number of times, ever less often | [`exponential_backoff`], [`exponential_backoff_until`] | `ExponentialBackoff`, `ExponentialBackoffWithContext` |
//! | many pieces of work done by some threads | [`parallelize_until`] | client-go's `ParallelizeUntil` |
//! | only the delays | [`Backoff`], [`jitter`], the [`BackoffManager`]s | `Backoff`, `Jitter`, `BackoffManager` |
//!
//! What they have in common:
//!
//! - They take their time from the clock they are given, so that hours of waiting are tested in
//!   no time; see [`FakeClock::run`](crate::clock::FakeClock::run). No runtime is needed.
//! - A *stop* is any future; its output does not matter. A token's `cancelled()`, a receiver, a
//!   task's handle will do, and [`pending`](std::future::pending) never stops. It is looked at
//!   before every run, so that a stop that races the timer wins. It does not interrupt a run that
//!   has begun: a function that takes long looks at the stop itself.
//! - The function is a closure that returns a future, so that the loop can be spawned wherever
//!   both may: `|| async { … }`, `async || …` where that only reads what it captures, or a change
//!   to what it captures and then the future, as below.
//! - A panic of the function goes to [`handle_crash`], and by default the loop goes on.
//! - Dropping the future of a loop stops it where it waits: between two runs, or where the
//!   function itself waits. Nothing is left behind.
//! - A loop without delays lets others run after each round.
//!
//! ```
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
//! ```

mod crash;
mod error;
mod exponential;
mod parallelize;
mod poll;
mod rounds;
mod until;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

pub use requeue_core::wait::{
    Backoff, BackoffManager, DelayFunc, DelayWithReset, Delays, ExponentialBackoffManager,
    JitterSource, JitteredBackoffManager, jitter,
};

pub use self::crash::{
    Crash, CrashHandler, handle_crash, on_crash, really_crash, set_really_crash,
};
pub use self::error::Error;
pub use self::exponential::{exponential_backoff, exponential_backoff_until};
pub use self::parallelize::parallelize_until;
pub use self::poll::{Polling, poll_until};
pub use self::until::{backoff_until, forever, jitter_until, non_sliding_until, until};

/// A source of jitter that is seeded anew by each call, differently in each process.
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
    // The keys of a hash map are the only randomness that std has to offer.
    JitterSource::new(RandomState::new().hash_one(0_u8))
}
