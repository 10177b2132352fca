//! The results of a handler. Each of them leads to one completion.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::Completion;

/// The result of a run that did not fail: a success, a [release](Self::release) or a
/// [cancellation](Self::cancelled).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an action does nothing unless a handler returns it"]
pub struct Action {
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Action {
    /// Returns the result of a run that succeeded. The key runs again when it is added:
    /// [`Completion::Succeed`].
    pub const fn succeed() -> Self {
        Self::new(Completion::Succeed)
    }

    /// Returns the result of a run that succeeded. The key is added again after `delay`:
    /// [`Completion::RequeueAfter`].
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::new(Completion::RequeueAfter(delay))
    }

    /// Returns the result of a run that must be undone: [`Completion::Release`].
    ///
    /// A handler returns it if it must not continue, because it is being paused or is no longer the
    /// leader. The next free worker then gets the key again. Before that, stop the deliveries:
    /// [`pause`](crate::Queue::pause) the queue, or stop the workers. After a shutdown, the key is
    /// dropped and reported.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue::workers::{Action, Context, Error, ThreadWorkers};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// // In the first run, this process is not the leader yet.
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

    /// Returns the result of a run that must be undone. The key then waits until `delay` is over,
    /// or until it is added again: [`Completion::ReleaseAfter`].
    ///
    /// A handler returns it if it finds that the run cannot start yet.
    pub const fn release_after(delay: Duration) -> Self {
        Self::new(Completion::ReleaseAfter(delay))
    }

    /// Returns the result of a run that has stopped because it was cancelled:
    /// [`Completion::Cancelled`].
    ///
    /// The run counts neither as a success nor as a failure. A handler returns it if its
    /// [context](super::Context::cancel_reason) is cancelled, and the rest of its work is no longer
    /// needed. The key runs again only if it was added again.
    pub const fn cancelled() -> Self {
        Self::new(Completion::Cancelled)
    }

    /// Sets the priority of the next run of the key. By default, it is the priority of this run.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    const fn new(completion: Completion) -> Self {
        Self { completion, priority: None }
    }
}

/// The result of a run that failed. By default, its completion is [`Completion::Retry`].
///
/// Any error, and also a string, is converted with `?` or `into`. Because of this conversion, this
/// type cannot implement [`std::error::Error`]. [`source`](Self::source) returns the original
/// error.
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
    /// Creates the result of a run that failed, and is retried after `delay`:
    /// [`Completion::RetryAfter`].
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::RetryAfter(delay), ..Self::from(error) }
    }

    /// Creates the result of a run that failed, and is not retried: [`Completion::GiveUp`].
    pub fn terminal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::GiveUp, ..Self::from(error) }
    }

    /// Returns the error of an attempt that exceeded its time limit and was dropped.
    #[cfg(feature = "tokio")]
    pub(super) fn timed_out(after: Duration) -> Self {
        TimedOut { after, error: None }.into()
    }

    /// Returns the error of an attempt that returned an error after its time limit.
    #[cfg(feature = "tokio")]
    pub(super) fn after_timeout(self, after: Duration) -> Self {
        let error = TimedOut { after, error: Some(self.source) };
        Self { source: Box::new(error), ..self }
    }

    /// Sets the priority of the next run of the key. By default, it is the priority of this run.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Returns the original error.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Converts this value into the original error.
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
    /// The error that the handler has returned, if it has returned.
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
