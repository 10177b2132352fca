//! Loops that run a function periodically until a stop. The runs of one loop never overlap.

use std::convert::Infallible;
use std::future;
use std::pin::pin;
use std::time::Duration;

use super::rounds::{Rounds, run_guarded};
use super::{BackoffManager, JitteredBackoffManager, jitter_source};
use crate::clock::Clock;

/// The moment at which the delay before the next run starts: apimachinery's `sliding`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Period {
    /// The delay starts at the end of a run.
    Sliding,
    /// The delay starts at the start of a run. If the run takes longer than the delay, the next run
    /// follows immediately.
    NonSliding,
}

/// Runs `f` now, and again `period` after the end of each run, until `stop` is ready.
///
/// This is apimachinery's `Until`. If the stop is ready at the start, `f` does not run at all. If
/// `period` is zero, `f` runs again immediately, but other tasks can run between two runs.
///
/// # Panics
///
/// Panics if `f` panics and [`set_really_crash`](super::set_really_crash) was called with `true`.
/// Otherwise, the loop continues after a panic of `f`.
///
/// # Cancel safety
///
/// Dropping the future ends the loop, between two runs or while `f` waits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
/// use requeue::wait;
///
/// let clock = FakeClock::new();
/// let stop = sleep_until(&clock, clock.now() + Duration::from_secs(59));
/// let mut runs = 0;
/// clock.run(wait::until(&clock, Duration::from_secs(20), stop, || {
///     runs += 1;
///     async {}
/// }));
/// assert_eq!(runs, 3);
/// ```
pub async fn until<R: Future<Output = ()>>(
    clock: &(impl Clock + ?Sized),
    period: Duration,
    stop: impl Future,
    f: impl FnMut() -> R,
) {
    jitter_until(clock, period, 0.0, Period::Sliding, stop, f).await;
}

/// Runs `f` now, and again `period` after the *start* of each run, until `stop` is ready.
///
/// This is apimachinery's `NonSlidingUntil`. If a run takes longer than the period, the next run
/// follows immediately. Runs that were missed are not made up for.
///
/// # Panics
///
/// Panics if `f` panics and [`set_really_crash`](super::set_really_crash) was called with `true`.
/// Otherwise, the loop continues after a panic of `f`.
///
/// # Cancel safety
///
/// Dropping the future ends the loop, between two runs or while `f` waits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
/// use requeue::wait;
///
/// let clock = FakeClock::new();
/// let (start, second) = (clock.now(), Duration::from_secs(1));
/// let stop = sleep_until(&clock, start + 9 * second);
/// let mut starts = Vec::new();
/// clock.run(wait::non_sliding_until(&clock, 5 * second, stop, || {
///     starts.push(clock.now().since(start).as_secs());
///     sleep_until(&clock, clock.now() + 2 * second)
/// }));
/// assert_eq!(starts, [0, 5]);
/// ```
pub async fn non_sliding_until<R: Future<Output = ()>>(
    clock: &(impl Clock + ?Sized),
    period: Duration,
    stop: impl Future,
    f: impl FnMut() -> R,
) {
    jitter_until(clock, period, 0.0, Period::NonSliding, stop, f).await;
}

/// Runs `f` now, and again after each period, until `stop` is ready. A period is `period` plus a
/// random part of up to `jitter_factor` times `period`.
///
/// This is apimachinery's `JitterUntil`. Each period gets a new random part. If `jitter_factor` is
/// zero or negative, there is no jitter. `counted` decides if a period starts at the end or at the
/// start of a run.
///
/// # Panics
///
/// Panics if `f` panics and [`set_really_crash`](super::set_really_crash) was called with `true`.
/// Otherwise, the loop continues after a panic of `f`.
///
/// # Cancel safety
///
/// Dropping the future ends the loop, between two runs or while `f` waits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
/// use requeue::wait::{self, Period};
///
/// let clock = FakeClock::new();
/// let stop = sleep_until(&clock, clock.now() + Duration::from_secs(60));
/// let mut runs = 0;
/// let period = Duration::from_secs(10);
/// clock.run(wait::jitter_until(&clock, period, 0.5, Period::Sliding, stop, || {
///     runs += 1;
///     async {}
/// }));
/// assert!((4..=6).contains(&runs));
/// ```
pub async fn jitter_until<R: Future<Output = ()>>(
    clock: &(impl Clock + ?Sized),
    period: Duration,
    jitter_factor: f64,
    counted: Period,
    stop: impl Future,
    f: impl FnMut() -> R,
) {
    let manager = JitteredBackoffManager::new(period, jitter_factor, jitter_source());
    backoff_until(clock, manager, counted, stop, f).await;
}

/// Runs `f` now, and again after each delay that `manager` returns, until `stop` is ready.
///
/// This is apimachinery's `BackoffUntil`. With [`Period::Sliding`], the manager is called at the
/// end of each run, and the delay starts there. With [`Period::NonSliding`], both happen just
/// before each run. The loop checks the stop before each run, so no run starts if the stop is ready
/// at the end of a delay.
///
/// # Panics
///
/// Panics if `manager` panics, or if `f` panics and [`set_really_crash`](super::set_really_crash)
/// was called with `true`. Otherwise, the loop continues after a panic of `f`.
///
/// # Cancel safety
///
/// Dropping the future ends the loop, between two runs or while `f` waits.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
/// use requeue::wait::{self, ExponentialBackoffManager, Period, jitter_source};
///
/// let clock = FakeClock::new();
/// let (start, second) = (clock.now(), Duration::from_secs(1));
/// let (max, reset) = (8 * second, 60 * second);
/// let delays = ExponentialBackoffManager::new(second, max, reset, 2.0, 0.0, jitter_source());
/// let stop = sleep_until(&clock, start + 30 * second);
/// let mut starts = Vec::new();
/// clock.run(wait::backoff_until(&clock, delays, Period::Sliding, stop, || {
///     starts.push(clock.now().since(start).as_secs());
///     async {}
/// }));
/// assert_eq!(starts, [0, 1, 3, 7, 15, 23]);
/// ```
pub async fn backoff_until<R: Future<Output = ()>>(
    clock: &(impl Clock + ?Sized),
    mut manager: impl BackoffManager,
    counted: Period,
    stop: impl Future,
    mut f: impl FnMut() -> R,
) {
    let stop = pin!(stop);
    let mut rounds = Rounds::new(clock, stop);
    let mut next_from_now = || {
        let now = clock.now();
        now + manager.backoff(now)
    };
    if rounds.has_stopped().await {
        return;
    }
    loop {
        let from_start = (counted == Period::NonSliding).then(&mut next_from_now);
        run_guarded(async { f().await }).await;
        let next = from_start.unwrap_or_else(&mut next_from_now);
        if rounds.stopped_by(next).await {
            return;
        }
    }
}

/// Runs `f` now, and again `period` after the end of each run, forever.
///
/// This is apimachinery's `Forever`.
///
/// # Panics
///
/// Panics if `f` panics and [`set_really_crash`](super::set_really_crash) was called with `true`.
/// Otherwise, the loop continues after a panic of `f`.
///
/// # Cancel safety
///
/// Dropping the future ends the loop, between two runs or while `f` waits.
///
/// # Examples
///
/// ```
/// use std::pin::pin;
/// use std::task::{Context, Waker};
/// use std::time::Duration;
/// use requeue::clock::FakeClock;
/// use requeue::wait;
///
/// let clock = FakeClock::new();
/// let mut runs = 0;
/// {
///     let mut beat = pin!(wait::forever(&clock, Duration::from_secs(10), || {
///         runs += 1;
///         async {}
///     }));
///     for _ in 0..3 {
///         assert!(beat.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
///         clock.advance(Duration::from_secs(10));
///     }
/// }
/// assert_eq!(runs, 3);
/// ```
pub async fn forever<R: Future<Output = ()>>(
    clock: &(impl Clock + ?Sized),
    period: Duration,
    f: impl FnMut() -> R,
) -> Infallible {
    until(clock, period, future::pending::<()>(), f).await;
    unreachable!("a loop without a stop does not end")
}
