//! The common parts of the loops: a timer, a stop, and runs that may panic.
//!
//! If both the stop and the timer are ready, the stop has precedence.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::pin::{Pin, pin};
use std::task::Poll;

use super::{Error, handle_crash};
use crate::Time;
use crate::clock::{Clock, Sleep, sleep_until};

/// The waits between the runs of a loop: a timer that is reused, and a stop that may come first.
pub(super) struct Rounds<'a, C: Clock + ?Sized, S> {
    sleep: Sleep<'a, C>,
    /// The stop must not be polled again after it was ready. The loop must therefore end when a method reports the
    /// stop.
    stop: Pin<&'a mut S>,
}

impl<'a, C: Clock + ?Sized, S: Future> Rounds<'a, C, S> {
    pub(super) fn new(clock: &'a C, stop: Pin<&'a mut S>) -> Self {
        Self { sleep: sleep_until(clock, Time::NEVER), stop }
    }

    /// Returns true if the stop has come.
    pub(super) async fn has_stopped(&mut self) -> bool {
        poll_fn(|cx| Poll::Ready(self.stop.as_mut().poll(cx).is_ready())).await
    }

    /// Waits until `at`, or until the stop. Returns true if the stop has come, even if `at` has also come.
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
                // Without this yield, a loop without delays would monopolize its thread.
                cx.waker().wake_by_ref();
            }
            others_ran = true;
            Poll::Pending
        })
        .await
    }
}

/// Runs `future` to completion. Returns `None` if it has panicked and [`handle_crash`] has
/// returned.
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

/// Tries `condition` once. If the condition holds or fails, breaks with the result of the wait. A
/// panic after which [`handle_crash`] returns counts as "not yet".
pub(super) async fn try_condition<R: Future<Output = Result<bool, E>>, E>(
    condition: &mut impl FnMut() -> R,
) -> ControlFlow<Result<(), Error<E>>> {
    match run_guarded(async { condition().await }).await {
        Some(Ok(true)) => ControlFlow::Break(Ok(())),
        Some(Err(error)) => ControlFlow::Break(Err(Error::Condition(error))),
        Some(Ok(false)) | None => ControlFlow::Continue(()),
    }
}
