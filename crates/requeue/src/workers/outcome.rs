//! What a handler says of its attempt.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// A success, and what comes next; or, by [`put_back`](Self::put_back), no attempt at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an action does nothing unless a handler returns it"]
pub struct Action {
    pub(super) then: Then,
    pub(super) priority: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Done,
    After(Duration),
    PutBack,
}

impl Action {
    /// Nothing, until the key is added again.
    pub const fn done() -> Self {
        Self::new(Then::Done)
    }

    /// The key is added again after `delay`.
    pub const fn after(delay: Duration) -> Self {
        Self::new(Then::After(delay))
    }

    /// The key is added again at once, behind what is ready.
    pub const fn again() -> Self {
        Self::after(Duration::ZERO)
    }

    /// As if the key had not been handed out: it is ready at once, behind what is ready, with no
    /// failure counted and none forgotten. For a handler that may not go on: it is paused, or has
    /// lost its leadership. See [`Item::put_back`](crate::Item::put_back).
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
    ///         async { Ok::<_, Error>(Action::put_back()) }
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
    pub const fn put_back() -> Self {
        Self::new(Then::PutBack)
    }

    /// The priority with which the key comes back; the one it was handed out with unless said.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    const fn new(then: Then) -> Self {
        Self { then, priority: None }
    }
}

/// A failure, and what comes next: a retry with the queue's backoff, unless said otherwise.
///
/// Made from any error by `?` or `into`, from a string, too. It does not implement
/// [`std::error::Error`] itself, for that; [`source`](Self::source) is what was given.
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
///         _ => Ok(Action::done()),
///     }
/// }
/// assert!(parse("x").unwrap_err().to_string().contains("invalid digit"));
/// assert!(parse("0").unwrap_err().is_terminal());
/// ```
pub struct Error {
    source: Box<dyn StdError + Send + Sync>,
    pub(super) next: Next,
    pub(super) priority: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Backoff,
    After(Duration),
    GiveUp,
}

impl Error {
    /// Tried again after `delay`: counted as a failure, but the delays of the backoff grow no
    /// longer for it.
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { next: Next::After(delay), ..Self::from(error) }
    }

    /// Not tried again: the key is given up until it is added anew.
    pub fn terminal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { next: Next::GiveUp, ..Self::from(error) }
    }

    /// The attempt has taken too long, and has been dropped.
    pub(super) fn timed_out(after: Duration) -> Self {
        TimedOut { after, error: None }.into()
    }

    /// The attempt has failed by itself after it had taken too long.
    pub(super) fn late(self, after: Duration) -> Self {
        let error = TimedOut { after, error: Some(self.source) };
        Self { source: Box::new(error), ..self }
    }

    /// The priority with which the key comes back; the one it was handed out with unless said.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    /// Whether it is not tried again.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self.next, Next::GiveUp)
    }

    /// What was given.
    #[must_use]
    pub fn source(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.source
    }

    /// What was given, itself.
    #[must_use]
    pub fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.source
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        Self { source: error.into(), next: Next::Backoff, priority: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("source", &self.source).field("next", &self.next).finish()
    }
}

#[derive(Debug)]
struct TimedOut {
    after: Duration,
    /// What the handler said of it.
    error: Option<Box<dyn StdError + Send + Sync>>,
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed out after {:?}", self.after)
    }
}

impl StdError for TimedOut {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}
