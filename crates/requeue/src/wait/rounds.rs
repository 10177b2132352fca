//! The parts that all loops share: a timer, a stop, and runs that may panic.
//!
//! If both the stop and the timer are ready, the stop takes precedence.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::{Error, handle_crash};
use crate::Time;
use crate::clock::{Clock, Sleep, sleep_until};

/// The waits between the runs of a loop. Each wait is for a timer or the stop.
pub(super) struct Rounds<'a, C: Clock + ?Sized, S> {
    sleep: Sleep<'a, C>,
    /// The stop. It must not be polled after it was ready, so the loop must end when a method
    /// reports the stop.
    stop: Pin<&'a mut S>,
}

impl<'a, C: Clock + ?Sized, S: Future> Rounds<'a, C, S> {
    pub(super) fn new(clock: &'a C, stop: Pin<&'a mut S>) -> Self {
        Self { sleep: sleep_until(clock, Time::NEVER), stop }
    }

    /// Returns true if the stop is ready.
    pub(super) async fn has_stopped(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.stop.as_mut().poll(cx).is_ready())).await
    }

    /// Waits until `at`, or until the stop is ready. Returns true if the stop is ready, even if
    /// `at` has also come.
    pub(super) async fn stopped_by(&mut self, at: Time) -> bool {
        self.sleep.reset(at);
        let mut others_ran = false;
        poll_fn(|cx| {
            if self.stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            if Pin::new(&mut self.sleep).poll(cx).is_ready() {
                if others_ran {
                    return Poll::Ready(false);
                }
                // Without this yield, a loop without delays would use its thread alone.
                cx.waker().wake_by_ref();
            }
            others_ran = true;
            Poll::Pending
        })
        .await
    }
}

/// Runs `future` to completion. If it panics, calls [`handle_crash`], and returns `None` if that
/// function returns.
pub(super) async fn run_guarded<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.map_or_else(
            |payload| {
                handle_crash(payload);
                Poll::Ready(None)
            },
            |poll| poll.map(Some),
        )
    })
    .await
}

/// Tries `condition` once. If it holds or returns an error, breaks with the result of the wait. If
/// it panics and [`handle_crash`] returns, continues, as if the condition did not hold yet.
pub(super) async fn try_condition<R: Future<Output = Result<bool, E>>, E>(
    condition: &mut impl FnMut() -> R,
) -> ControlFlow<Result<(), Error<E>>> {
    match run_guarded(async { condition().await }).await {
        Some(Ok(true)) => ControlFlow::Break(Ok(())),
        Some(Err(error)) => ControlFlow::Break(Err(Error::Condition(error))),
        Some(Ok(false)) | None => ControlFlow::Continue(()),
    }
}
