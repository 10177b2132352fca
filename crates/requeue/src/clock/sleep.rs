//! Waiting for a time as a future.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Alarm, Clock};
use crate::Time;

/// Waits until `clock` has reached `at`.
///
/// It is never ready early: woken too soon, it arms again. [`Time::NEVER`] is never reached.
///
/// # Cancel safety
///
/// Dropping it disarms, and loses nothing.
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
///
/// let clock = FakeClock::new();
/// let at = clock.now() + Duration::from_millis(20);
/// clock.run(sleep_until(&clock, at));
/// assert_eq!(clock.now(), at);
/// ```
pub fn sleep_until<C: Clock + ?Sized>(clock: &C, at: Time) -> Sleep<'_, C> {
    Sleep { clock, at, alarm: Alarm::none() }
}

/// A future that is ready once a clock has reached a time. See [`sleep_until`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep<'a, C: Clock + ?Sized> {
    clock: &'a C,
    at: Time,
    alarm: Alarm,
}

impl<C: Clock + ?Sized> Sleep<'_, C> {
    /// The time it waits for.
    #[must_use]
    pub fn deadline(&self) -> Time {
        self.at
    }

    /// Waits for `at` from now on; the alarm for the earlier time is disarmed.
    pub fn reset(&mut self, at: Time) {
        self.at = at;
        self.alarm = Alarm::none();
    }
}

impl<C: Clock + ?Sized> Future for Sleep<'_, C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at != Time::NEVER && self.clock.now() >= self.at {
            self.alarm = Alarm::none();
            return Poll::Ready(());
        }
        // Whether the alarm has gone off can't be seen, only that someone polls and it is early:
        // so it is armed anew each time. The old one goes first, so that there is never a second.
        self.alarm = Alarm::none();
        self.alarm = self.clock.arm(self.at, cx.waker());
        Poll::Pending
    }
}

impl<C: Clock + ?Sized> fmt::Debug for Sleep<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.at).finish_non_exhaustive()
    }
}
