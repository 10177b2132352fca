//! The results of a handler.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::Completion;

/// The result of a run that did not fail: success, or a [release](Self::release).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an action does nothing unless a handler returns it"]
pub struct Action {
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Action {
    /// The key waits for its next add: [`Completion::Succeed`].
    pub const fn succeed() -> Self {
        Self::new(Completion::Succeed)
    }

    /// The key is added again after `delay`: [`Completion::RequeueAfter`].
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::new(Completion::RequeueAfter(delay))
    }

    /// The key is added again at once, behind the keys that are ready.
    pub const fn requeue() -> Self {
        Self::requeue_after(Duration::ZERO)
    }

    /// The delivery is undone: [`Completion::Release`]. This is for a handler that may not go on: it is
    /// paused, or has lost its leadership.
    ///
    /// The next free worker gets the key again, so stop them first: [`pause`](crate::Queue::pause)
    /// the queue, or end the workers. After a shutdown the key is dropped, and reported.
    ///
    /// ```
    /// use requeue::workers::{Action, Context, Error, Workers};
    /// use requeue::Queue;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add("a");
    /// let handler = {
    ///     let queue = queue.clone();
    ///     move |_key, _context: Context| {
    ///         // Not the leader any more.
    ///         queue.pause();
    ///         async { Ok::<_, Error>(Action::release()) }
    ///     }
    /// };
    /// tokio::select! {
    ///     _ = Workers::new(queue.clone(), handler).run() => unreachable!("the queue is open"),
    ///     () = async {
    ///         while !queue.is_paused() || queue.processing() > 0 {
    ///             tokio::task::yield_now().await;
    ///         }
    ///     } => {}
    /// }
    /// queue.resume();
    /// assert_eq!(queue.try_get().unwrap().attempt(), 1);
    /// # });
    /// ```
    pub const fn release() -> Self {
        Self::new(Completion::Release)
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
/// It is made from any error with `?` or `into`, also from a string. For this conversion it does not
/// implement [`std::error::Error`]; [`source`](Self::source) returns the error it was made from.
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
/// assert!(parse("0").unwrap_err().is_terminal());
/// ```
pub struct Error {
    source: Box<dyn StdError + Send + Sync>,
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Error {
    /// The run is retried after `delay`: [`Completion::RetryAfter`].
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::RetryAfter(delay), ..Self::from(error) }
    }

    /// The run is not retried: [`Completion::GiveUp`].
    pub fn terminal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { completion: Completion::GiveUp, ..Self::from(error) }
    }

    /// The attempt has taken too long, and has been dropped.
    #[cfg(feature = "tokio")]
    pub(super) fn timed_out(after: Duration) -> Self {
        TimedOut { after, error: None }.into()
    }

    /// The attempt has failed by itself after it had taken too long.
    #[cfg(feature = "tokio")]
    pub(super) fn late(self, after: Duration) -> Self {
        let error = TimedOut { after, error: Some(self.source) };
        Self { source: Box::new(error), ..self }
    }

    /// Sets the priority of the key's next run. The default is the priority of this run.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Whether the run is not retried.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self.completion, Completion::GiveUp)
    }

    /// The error that it was made from.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// Returns the error that it was made from.
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
    /// What the handler said of it.
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
