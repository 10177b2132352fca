//! The results of a handler. Each result stands for one completion.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::Completion;

/// The result of a run that did not fail: success, a [release](Self::release) or a
/// [cancellation](Self::cancelled).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an action does nothing unless a handler returns it"]
pub struct Action {
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Action {
    /// The run succeeded, and the key runs again when it is added: [`Completion::Succeed`].
    pub const fn succeed() -> Self {
        Self::new(Completion::Succeed)
    }

    /// The run succeeded, and the key is added again after `delay`: [`Completion::RequeueAfter`].
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::new(Completion::RequeueAfter(delay))
    }

    /// The delivery is undone: [`Completion::Release`].
    ///
    /// This result is for a handler that must not continue, because it is paused or has lost its
    /// leadership. The next free worker receives the key again. Stop deliveries first:
    /// [`pause`](crate::Queue::pause) the queue, or stop the workers. After a shutdown the key is
    /// dropped and reported.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue::workers::{Action, Context, Error, ThreadWorkers};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// // The first run finds that this process does not lead yet.
    /// let leads = AtomicBool::new(false);
    /// let handler = move |_key, context: Context| {
    ///     assert_eq!(context.attempt(), 1); // a release is not a failure
    ///     let leads = leads.swap(true, Ordering::Relaxed);
    ///     Ok::<_, Error>(if leads { Action::succeed() } else { Action::release() })
    /// };
    /// let queue = Queue::new();
    /// queue.add("a");
    /// queue.close();
    /// ThreadWorkers::new(queue.clone(), handler).run();
    /// assert_eq!(queue.totals().deliveries, 2);
    /// ```
    pub const fn release() -> Self {
        Self::new(Completion::Release)
    }

    /// The delivery is undone, and the key waits for `delay` or until it is added again:
    /// [`Completion::ReleaseAfter`].
    ///
    /// This result is for a handler that finds that the run cannot begin yet.
    pub const fn release_after(delay: Duration) -> Self {
        Self::new(Completion::ReleaseAfter(delay))
    }

    /// The run has stopped because it was cancelled: [`Completion::Cancelled`].
    ///
    /// Such a run counts neither as a success nor as a failure. A handler returns this result when its
    /// [context](super::Context::cancel_reason) is cancelled and its remaining work is no longer needed. The key runs
    /// again only if it was added again.
    pub const fn cancelled() -> Self {
        Self::new(Completion::Cancelled)
    }

    /// Sets the priority of the key's next run. The default is the priority of this run.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    const fn new(completion: Completion) -> Self {
        Self { completion, priority: None }
    }
}

/// The result of a run that failed. The default completion is [`Completion::Retry`].
///
/// An error is created from any error with `?` or `into`, and also from a string. Because of this conversion, the type
/// does not implement [`std::error::Error`]. [`source`](Self::source) returns the original error.
///
/// # Examples
///
/// ```
/// use requeue::workers::{Action, Error};
/// use std::time::Duration;
///
/// fn parse(input: &str) -> Result<Action, Error> {
///     let n: u64 = input.parse()?;
///     match n {
///         0 => Err(Error::terminal("zero will be no better next time")),
///         1 => Err(Error::retry_after(Duration::from_secs(5), "busy")),
///         _ => Ok(Action::succeed()),
///     }
/// }
/// assert!(parse("x").unwrap_err().to_string().contains("invalid digit"));
/// assert_eq!(parse("0").unwrap_err().to_string(), "zero will be no better next time");
/// ```
pub struct Error {
    source: Box<dyn StdError + Send + Sync>,
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Error {
    /// The run failed, and is retried after `delay`: [`Completion::RetryAfter`].
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::RetryAfter(delay), ..Self::from(error) }
    }

    /// The run failed, and is not retried: [`Completion::GiveUp`].
    pub fn terminal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::GiveUp, ..Self::from(error) }
    }

    /// The error of an attempt that took too long and was dropped.
    #[cfg(feature = "tokio")]
    pub(super) fn timed_out(after: Duration) -> Self {
        TimedOut { after, error: None }.into()
    }

    /// The error of an attempt that returned an error after its timeout.
    #[cfg(feature = "tokio")]
    pub(super) fn after_timeout(self, after: Duration) -> Self {
        let error = TimedOut { after, error: Some(self.source) };
        Self { source: Box::new(error), ..self }
    }

    /// Sets the priority of the key's next run. The default is the priority of this run.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Returns the original error.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Returns the original error, by value.
    #[must_use]
    pub fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.source
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        Self { source: error.into(), completion: Completion::Retry, priority: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("source", &self.source)
            .field("completion", &self.completion)
            .finish()
    }
}

#[cfg(feature = "tokio")]
#[derive(Debug)]
struct TimedOut {
    after: Duration,
    /// The handler's own error.
    error: Option<Box<dyn StdError + Send + Sync>>,
}

#[cfg(feature = "tokio")]
impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed out after {:?}", self.after)
    }
}

#[cfg(feature = "tokio")]
impl StdError for TimedOut {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}
