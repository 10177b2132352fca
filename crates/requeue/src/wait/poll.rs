//! A loop that tries a condition until it holds, the stop is ready, or the timeout has passed.

use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use super::rounds::{Rounds, try_condition};
use super::{BackoffManager, Error, JitteredBackoffManager, jitter_source};
use crate::Time;
use crate::clock::Clock;

/// The parameters of [`poll_until`]: the interval, the timeout, and the time of the first and of
/// the last try.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::wait::Polling;
///
/// let polling = Polling::every(Duration::from_secs(2)).immediate().timeout(Duration::from_secs(60));
/// # let _ = polling;
/// ```
#[derive(Clone, Debug)]
#[must_use = "a `Polling` does nothing until it is passed to `poll_until`"]
pub struct Polling<M = JitteredBackoffManager> {
    manager: M,
    immediate: bool,
    sliding: bool,
    timeout: Option<Duration>,
    last_try: bool,
}

impl Polling {
    /// Creates parameters with a try after each `interval`, and without a timeout. The first try is
    /// after one interval.
    pub fn every(interval: Duration) -> Self {
        Self::with(JitteredBackoffManager::new(interval, 0.0, jitter_source()))
    }
}

impl<M: BackoffManager> Polling<M> {
    /// Creates parameters with a try after each delay of `manager`, and without a timeout.
    ///
    /// This replaces apimachinery's `Backoff.Timer` and `DelayFunc.Until`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use std::future::{pending, ready};
    /// use std::time::Duration;
    /// use requeue::clock::FakeClock;
    /// use requeue::wait::{Backoff, Polling, jitter_source, poll_until};
    ///
    /// let backoff =
    ///     Backoff { duration: Duration::from_secs(1), factor: 2.0, steps: 9, ..Backoff::default() };
    /// let polling = Polling::with(backoff.delay_func(jitter_source()));
    /// let clock = FakeClock::new();
    /// let (start, mut tries) = (clock.now(), 0);
    /// let polled = clock.run(poll_until(&clock, polling, pending::<()>(), || {
    ///     tries += 1;
    ///     ready(Ok::<_, Infallible>(tries == 4))
    /// }));
    /// assert_eq!(polled, Ok(()));
    /// assert_eq!(clock.now().since(start).as_secs(), 1 + 2 + 4 + 8);
    /// ```
    pub fn with(manager: M) -> Self {
        Self { manager, immediate: false, sliding: false, timeout: None, last_try: false }
    }

    /// Makes the first try before the first delay, even if the stop or the timeout has already
    /// come.
    pub fn immediate(mut self) -> Self {
        self.immediate = true;
        self
    }

    /// Starts each delay at the *end* of a try.
    ///
    /// By default, a delay starts at the start of the try. If the try then takes longer than the
    /// delay, the next try follows immediately.
    pub fn sliding(mut self) -> Self {
        self.sliding = true;
        self
    }

    /// Ends the wait when `timeout` has passed since its start. A try that is due exactly at that
    /// time is not made.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes one more try when the timeout has passed, as the older function `Poll` of apimachinery
    /// does.
    pub fn last_try(mut self) -> Self {
        self.last_try = true;
        self
    }
}

/// Tries `condition` until it holds. `polling` contains the interval, the timeout and other
/// parameters.
///
/// This is apimachinery's `PollUntilContextCancel` and `PollUntilContextTimeout`. With
/// [`Polling::last_try`], it is also `Poll` and `PollImmediate`.
///
/// If the condition returns `Ok(false)`, it does not hold yet. A panic has the same meaning, unless
/// [`set_really_crash`](super::set_really_crash) was called with `true`.
///
/// # Errors
///
/// - [`Error::Condition`]: the condition returned an error, which ended the wait.
/// - [`Error::Cancelled`]: the stop came first, or both the stop and the timeout have come.
/// - [`Error::Timeout`]: the timeout passed first.
///
/// # Panics
///
/// Panics if the manager panics, or if `condition` panics and
/// [`set_really_crash`](super::set_really_crash) was called with `true`.
///
/// # Cancel safety
///
/// Dropping the future ends the wait, between two tries or while `condition` waits.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::future::pending;
/// use std::time::Duration;
/// use requeue::clock::FakeClock;
/// use requeue::wait::{Error, Polling, poll_until};
///
/// let clock = FakeClock::new();
/// let start = clock.now();
/// let polling = Polling::every(Duration::from_secs(2)).immediate();
/// let ready = async || Ok::<_, Infallible>(clock.now().since(start) > Duration::from_secs(9));
/// assert_eq!(clock.run(poll_until(&clock, polling.clone(), pending::<()>(), ready)), Ok(()));
/// assert_eq!(clock.now().since(start).as_secs(), 10);
///
/// let polling = polling.timeout(Duration::from_secs(60));
/// let never = async || Ok::<_, Infallible>(false);
/// let polled = clock.run(poll_until(&clock, polling, pending::<()>(), never));
/// assert_eq!(polled, Err(Error::Timeout));
/// ```
pub async fn poll_until<R: Future<Output = Result<bool, E>>, E>(
    clock: &(impl Clock + ?Sized),
    polling: Polling<impl BackoffManager>,
    stop: impl Future,
    mut condition: impl FnMut() -> R,
) -> Result<(), Error<E>> {
    let Polling { mut manager, immediate, sliding, timeout, last_try } = polling;
    let stop = pin!(stop);
    let mut rounds = Rounds::new(clock, stop);
    let mut next_from_now = || {
        let now = clock.now();
        now + manager.backoff(now)
    };
    let deadline = timeout.map_or(Time::NEVER, |timeout| clock.now() + timeout);

    let mut try_now = immediate;
    loop {
        let from_start = (!sliding).then(&mut next_from_now);
        if try_now && let ControlFlow::Break(end) = try_condition(&mut condition).await {
            return end;
        }
        let next = from_start.unwrap_or_else(&mut next_from_now);
        if rounds.stopped_by(next.min(deadline)).await {
            return Err(Error::Cancelled);
        }
        if deadline <= clock.now() {
            break;
        }
        try_now = true;
    }
    if last_try && let ControlFlow::Break(end) = try_condition(&mut condition).await {
        return end;
    }
    Err(Error::Timeout)
}
