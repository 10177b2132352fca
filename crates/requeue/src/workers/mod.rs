//! Workers, which run a handler for each key, on tasks of a runtime or on threads.
//!
//! The handler returns an [`Action`] or an [`Error`]. For both kinds of workers, the same function
//! converts the result to a [`Completion`](crate::Completion). If the handler panics, its run has
//! failed, and the worker continues.

#[cfg(feature = "tokio")]
mod attempt;
mod catch_panic;
mod options;
mod outcome;
mod source;
mod span;
#[cfg(feature = "tokio")]
mod tasks;
mod threads;
mod token;

#[cfg(feature = "tokio")]
use std::sync::Arc;
use std::time::Duration;

pub use self::outcome::{Action, Error};
pub use self::source::{Delivery, WorkItem, WorkQueue};
#[cfg(feature = "tokio")]
pub use self::tasks::Workers;
pub use self::threads::ThreadWorkers;
use self::token::RunToken;
use crate::{CancelReason, Reasons};

#[cfg(feature = "tokio")]
type SpanOf<K> = Arc<dyn Fn(&K, &Context) -> tracing::Span + Send + Sync>;

/// The delivery for which a handler is called.
#[derive(Clone, Debug)]
pub struct Context {
    delivery: Delivery,
    reasons: Reasons,
    is_last: bool,
    token: RunToken,
}

impl Context {
    /// Returns the number of this attempt: one more than the number of consecutive failures before
    /// this run.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// Returns true if the key is given up when this attempt fails, because of `max_retries`.
    ///
    /// The handler can then clean up, or report the failure.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue::workers::{Action, Context, Error, ThreadWorkers};
    /// use std::time::Duration;
    ///
    /// fn reconcile(_key: u32, context: Context) -> Result<Action, Error> {
    ///     assert_eq!(context.is_last_attempt(), context.attempt() == 3);
    ///     Err("never works".into())
    /// }
    ///
    /// let milli = Duration::from_millis(1);
    /// let queue = Queue::builder().backoff(milli, milli).build()?;
    /// queue.add(7);
    /// queue.close();
    /// ThreadWorkers::new(queue.clone(), reconcile).max_retries(2).run();
    /// let sample = queue.sample();
    /// assert_eq!((sample.given_up, sample.panics), (1, 0));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub const fn is_last_attempt(&self) -> bool {
        self.is_last
    }

    /// Returns the number of adds that this run serves. It is at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.delivery.adds
    }

    /// Returns the flags of all adds that this run serves, or-ed.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.delivery.flags
    }

    /// Returns the reasons of the adds that this run serves. A retry also has the reasons of the
    /// failed run.
    ///
    /// A queue in a store does not store reasons.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::workers::{Action, Context, Error, ThreadWorkers};
    /// use requeue::{Add, Queue, describe_reasons, intern_reason};
    ///
    /// fn reconcile(key: &str, context: Context) -> Result<Action, Error> {
    ///     let reasons = describe_reasons(context.reasons()).to_string();
    ///     assert_eq!((key, &*reasons), ("web", "resync"));
    ///     Ok(Action::succeed())
    /// }
    ///
    /// let queue = Queue::new();
    /// queue.add_with("web", Add::now().reason(intern_reason("resync")));
    /// queue.close();
    /// ThreadWorkers::new(queue, reconcile).run();
    /// ```
    #[must_use]
    pub const fn reasons(&self) -> &Reasons {
        &self.reasons
    }

    /// Returns the highest priority of the adds that this run serves.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.delivery.priority
    }

    /// Returns the time for which the key was ready before this delivery. Returns `None` unless the
    /// queue [tracks times](crate::Builder::track_times).
    #[must_use]
    pub const fn queued(&self) -> Option<Duration> {
        self.delivery.queued
    }

    /// Returns the fencing token: a number that grows with each delivery of the key.
    ///
    /// In memory, the tokens start at 1 in each process. In a store, they continue from process to
    /// process, so that other systems can compare them and reject late writes.
    #[must_use]
    pub const fn fencing_token(&self) -> u64 {
        self.delivery.fencing_token
    }

    /// Returns true if the attempt must stop.
    ///
    /// There are five reasons: a caller has [cancelled](crate::Queue::cancel_running) the run, an
    /// add restarts it, its time limit has passed, its lease has expired, or the workers are shut
    /// down and their drain timeout has passed.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns the reason why the attempt must stop. Returns `None` if it can continue.
    ///
    /// If there are several reasons, the first one is returned, with one exception. A cancellation
    /// by the queue replaces the reasons [`TimedOut`](CancelReason::TimedOut) and
    /// [`Stopping`](CancelReason::Stopping).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue::workers::{Action, Context, Error, ThreadWorkers};
    ///
    /// fn copy(_key: u32, context: Context) -> Result<Action, Error> {
    ///     for _part in 0..10 {
    ///         if context.cancel_reason().is_some() {
    ///             return Ok(Action::cancelled()); // neither a success nor a failure
    ///         }
    ///     }
    ///     Ok(Action::succeed())
    /// }
    ///
    /// let queue = Queue::new();
    /// queue.add(7);
    /// queue.close();
    /// ThreadWorkers::new(queue, copy).run();
    /// ```
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.token.cancel_reason()
    }

    /// Waits until the attempt must stop ([`is_cancelled`](Self::is_cancelled)), and returns the
    /// reason.
    ///
    /// If an attempt does not stop within the grace period, the worker drops its future.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    #[cfg(feature = "tokio")]
    pub async fn cancelled(&self) -> CancelReason {
        self.token.token.cancelled().await;
        self.token.cancel_reason().unwrap_or(CancelReason::Stopping)
    }

    /// Returns the token that is cancelled when the attempt must stop. A handler can pass it to
    /// other functions.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub const fn cancellation_token(&self) -> &tokio_util::sync::CancellationToken {
        &self.token.token
    }
}
