//! Trying a condition until it holds.

use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use super::rounds::{Rounds, attempt};
use super::{BackoffManager, Error, JitteredBackoffManager, jitter_source};
use crate::Time;
use crate::clock::Clock;

/// How [`poll_until`] tries its condition: how often, how long, and whether at once.
///
/// ```
/// use std::time::Duration;
/// use requeue::wait::Polling;
///
/// let polling = Polling::every(Duration::from_secs(2)).immediate().timeout(Duration::from_secs(60));
/// # let _ = polling;
/// ```
#[derive(Clone, Debug)]
#[must_use = "this only says how to poll; `poll_until` does it"]
pub struct Polling<M = JitteredBackoffManager> {
    manager: M,
    immediate: bool,
    sliding: bool,
    timeout: Option<Duration>,
    last_try: bool,
}

impl Polling {
    /// Tries every `interval`, the first time after one interval, without a timeout.
    pub fn every(interval: Duration) -> Self {
        Self::with(JitteredBackoffManager::new(interval, 0.0, jitter_source()))
    }
}

impl<M: BackoffManager> Polling<M> {
    /// Tries after each delay that `manager` gives, without a timeout.
    ///
    /// This is what apimachinery has `Backoff.Timer` and `DelayFunc.Until` for.
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

    /// Tries once before the first delay, whatever the stop and the timeout say.
    pub fn immediate(mut self) -> Self {
        self.immediate = true;
        self
    }

    /// Starts each delay at the *end* of a try. Otherwise it starts when the try does, and a try
    /// that takes longer is followed by the next at once.
    pub fn sliding(mut self) -> Self {
        self.sliding = true;
        self
    }

    /// Gives up `timeout` after the start. A try due just then is not made.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tries once more when the time is up, as apimachinery's older `Poll` does.
    pub fn last_try(mut self) -> Self {
        self.last_try = true;
        self
    }
}

/// Tries `condition` until it holds, as `polling` says. apimachinery's `PollUntilContextCancel`
/// and `PollUntilContextTimeout`; with [`Polling::last_try`] its `Poll` and `PollImmediate`.
///
/// `Ok(false)` means "not yet". So does a panic, unless
/// [`set_really_crash`](super::set_really_crash) has asked for more.
///
/// # Errors
///
/// - [`Error::Condition`]: the condition failed; it is not tried again.
/// - [`Error::Cancelled`]: the stop came first. When the time is up too, it still was the stop.
/// - [`Error::Timeout`]: the time was up first.
///
/// # Panics
///
/// When the manager does, or when `condition` does and
/// [`set_really_crash`](super::set_really_crash) has asked for it.
///
/// # Cancel safety
///
/// Dropping the future ends the wait: between two tries, or within `condition` where that waits.
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
pub async fn poll_until<C, M, S, F, R, E>(
    clock: &C,
    polling: Polling<M>,
    stop: S,
    mut condition: F,
) -> Result<(), Error<E>>
where
    C: Clock + ?Sized,
    M: BackoffManager,
    S: Future,
    F: FnMut() -> R,
    R: Future<Output = Result<bool, E>>,
{
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
        if try_now && let ControlFlow::Break(end) = attempt(&mut condition).await {
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
    if last_try && let ControlFlow::Break(end) = attempt(&mut condition).await {
        return end;
    }
    Err(Error::Timeout)
}
