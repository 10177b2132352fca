//! Workers: they run a handler for each key, on tasks of a runtime or on threads.
//!
//! The handler returns an [`Action`] or an [`Error`]. One place maps both to a
//! [`Completion`](crate::Completion), for workers of both kinds.

#[cfg(feature = "tokio")]
mod attempt;
mod net;
mod options;
mod outcome;
mod source;
#[cfg(feature = "tokio")]
mod tasks;
mod threads;
mod token;

#[cfg(feature = "tokio")]
use std::sync::Arc;

pub use self::outcome::{Action, Error};
pub use self::source::{WorkItem, WorkQueue};
#[cfg(feature = "tokio")]
pub use self::tasks::Workers;
pub use self::threads::ThreadWorkers;
use self::token::Token;

#[cfg(feature = "tokio")]
type SpanOf<K> = Arc<dyn Fn(&K, &Context) -> tracing::Span + Send + Sync>;

/// What a handler is told of its attempt.
#[derive(Clone, Debug)]
pub struct Context {
    attempt: u32,
    is_last: bool,
    adds: u32,
    reasons: u32,
    priority: i32,
    epoch: u64,
    token: Token,
}

impl Context {
    /// Which attempt this is: 1, and one more for each failure in a row before.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the key is given up if this attempt fails, by
    /// `max_retries`: the time to clean up, or to tell somebody.
    ///
    /// ```
    /// use requeue::workers::{Action, Context, Error, Workers};
    /// use requeue::Queue;
    ///
    /// async fn reconcile(_key: u32, context: Context) -> Result<Action, Error> {
    ///     assert_eq!(context.is_last_attempt(), context.attempt() == 3);
    ///     Err("never works".into())
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add(7);
    /// queue.close();
    /// Workers::new(queue.clone(), reconcile).max_retries(2).run().await;
    /// assert_eq!((queue.given_up(), queue.panics()), (1, 0));
    /// # });
    /// ```
    #[must_use]
    pub const fn is_last_attempt(&self) -> bool {
        self.is_last
    }

    /// How many adds this run stands for; at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.adds
    }

    /// The reasons of those adds, or-ed.
    #[must_use]
    pub const fn reasons(&self) -> u32 {
        self.reasons
    }

    /// The highest priority of those adds.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.priority
    }

    /// The fencing token: a number that is greater for each later delivery of the key.
    ///
    /// In memory it starts at 1 in each process. Only a queue in a store has numbers that outlive the
    /// process, so that other systems can refuse late writes by them.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the attempt shall stop: it has timed out, its key was lost, or the workers are shut down and
    /// their drain timeout has passed.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until the attempt shall stop, as [`is_cancelled`](Self::is_cancelled) says. The future of an
    /// attempt that does not stop within the grace period is dropped.
    #[cfg(feature = "tokio")]
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// The token that cancels the attempt, to pass on.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub const fn token(&self) -> &tokio_util::sync::CancellationToken {
        &self.token
    }
}
