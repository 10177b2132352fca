//! A loop that tries a condition a limited number of times, with growing delays.

use std::future;
use std::ops::ControlFlow;
use std::pin::pin;

use super::rounds::{Rounds, try_condition};
use super::{Backoff, Error, jitter_source};
use crate::Time;
use crate::clock::Clock;

/// Tries `condition` now, and again after each delay of `backoff`, until it holds or no try is
/// left.
///
/// This is apimachinery's `ExponentialBackoff`. There are at most [`Backoff::steps`] tries, and
/// none if `steps` is zero or negative. There is no delay after the last try. If the next delay
/// would reach the cap, the remaining tries are used up. The wait then ends after the present
/// delay, without another try.
///
/// If the condition returns `Ok(false)`, it does not hold yet. A panic has the same meaning, unless
/// [`set_really_crash`](super::set_really_crash) was called with `true`.
///
/// # Errors
///
/// - [`Error::Condition`]: the condition returned an error, which ended the wait.
/// - [`Error::Timeout`]: no try is left.
///
/// # Panics
///
/// Panics if `condition` panics and [`set_really_crash`](super::set_really_crash) was called with
/// `true`.
///
/// # Cancel safety
///
/// Dropping the future ends the wait, between two tries or while `condition` waits.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::future::ready;
/// use std::time::Duration;
/// use requeue::clock::FakeClock;
/// use requeue::wait::{Backoff, Error, exponential_backoff};
///
/// let (clock, second) = (FakeClock::new(), Duration::from_secs(1));
/// let backoff = Backoff { duration: second, factor: 2.0, steps: 4, ..Backoff::default() };
/// let (start, mut tries) = (clock.now(), Vec::new());
/// let tried = clock.run(exponential_backoff(&clock, backoff, || {
///     tries.push(clock.now().since(start).as_secs());
///     ready(Ok::<_, Infallible>(false))
/// }));
/// assert_eq!(tried, Err(Error::Timeout));
/// assert_eq!(tries, [0, 1, 3, 7]);
/// ```
pub async fn exponential_backoff<R: Future<Output = Result<bool, E>>, E>(
    clock: &(impl Clock + ?Sized),
    backoff: Backoff,
    condition: impl FnMut() -> R,
) -> Result<(), Error<E>> {
    let stop = future::pending::<()>();
    exponential_backoff_until(clock, backoff, Time::NEVER, stop, condition).await
}

/// Tries `condition` as [`exponential_backoff`] does, but ends the wait when `stop` is ready or
/// `deadline` has come.
///
/// This is apimachinery's `ExponentialBackoffWithContext`. The function checks the stop and the
/// deadline before every try. For no deadline, pass [`Time::NEVER`]. For no stop, pass
/// [`pending`](std::future::pending).
///
/// # Errors
///
/// - [`Error::Condition`]: the condition returned an error, which ended the wait.
/// - [`Error::Cancelled`]: the stop came first, or both the stop and the deadline have come.
/// - [`Error::Timeout`]: the deadline came first, or no try is left.
///
/// # Panics
///
/// Panics if `condition` panics and [`set_really_crash`](super::set_really_crash) was called with
/// `true`.
///
/// # Cancel safety
///
/// Dropping the future ends the wait, between two tries or while `condition` waits.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use requeue::Time;
/// use requeue::clock::{FakeClock, sleep_until};
/// use requeue::wait::{Backoff, Error, exponential_backoff_until};
///
/// let (clock, second) = (FakeClock::new(), Duration::from_secs(1));
/// let backoff = Backoff { duration: second, factor: 2.0, steps: 100, ..Backoff::default() };
/// let stop = sleep_until(&clock, clock.now() + 10 * second);
/// let tried = exponential_backoff_until(&clock, backoff, Time::NEVER, stop, async || {
///     Ok::<_, Infallible>(false)
/// });
/// assert_eq!(clock.run(tried), Err(Error::Cancelled));
/// ```
pub async fn exponential_backoff_until<R: Future<Output = Result<bool, E>>, E>(
    clock: &(impl Clock + ?Sized),
    mut backoff: Backoff,
    deadline: Time,
    stop: impl Future,
    mut condition: impl FnMut() -> R,
) -> Result<(), Error<E>> {
    let stop = pin!(stop);
    let mut rounds = Rounds::new(clock, stop);
    let mut source = jitter_source();
    if backoff.steps > 0 && rounds.has_stopped().await {
        return Err(Error::Cancelled);
    }
    while backoff.steps > 0 && clock.now() < deadline {
        if let ControlFlow::Break(end) = try_condition(&mut condition).await {
            return end;
        }
        if backoff.steps == 1 {
            break;
        }
        let next = clock.now() + backoff.step(&mut source);
        if rounds.stopped_by(next.min(deadline)).await {
            return Err(Error::Cancelled);
        }
    }
    Err(Error::Timeout)
}
