//! A future that waits until a clock has reached a given time.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Alarm, Clock};
use crate::Time;

/// Waits until `clock` has reached `at`.
///
/// The future is never ready before that time: if the clock wakes it too early, it arms a new
/// alarm. No clock reaches [`Time::NEVER`].
///
/// # Cancel safety
///
/// Dropping the future disarms its alarm, and has no other effect.
///
/// # Examples
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

/// A future that is ready when a clock has reached a given time. [`sleep_until`] creates it.
#[must_use = "a future does nothing unless it is polled"]
pub struct Sleep<'a, C: Clock + ?Sized> {
    clock: &'a C,
    at: Time,
    alarm: Alarm,
}

impl<C: Clock + ?Sized> Sleep<'_, C> {
    /// Makes the future wait until `at` instead, and disarms the alarm for the previous time.
    // Only the loops of `wait` need this method, so it is hidden.
    #[doc(hidden)]
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
        // A poll cannot know if the alarm has caused it, so each poll that is too early arms a new
        // alarm. The old alarm is dropped first, so that there are never two.
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
