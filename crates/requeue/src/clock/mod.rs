//! Clocks: the sources of time for a queue.
//!
//! A [`Clock`] returns the current time, and wakes a [`Waker`] when a given time has come. It runs
//! no callbacks and needs no task, so the same trait serves async and blocking callers. A clock may
//! wake a waker too early, but never forgets an armed alarm.
//!
//! | clock | the source of its time | wakers are woken by |
//! |---|---|---|
//! | [`SystemClock`], the default | the machine's monotonic clock | one thread for the whole process, which the first alarm starts |
#![cfg_attr(
    feature = "tokio",
    doc = "| [`TokioClock`] | the runtime's clock, which a test can pause | the runtime's timer driver |"
)]
#![cfg_attr(
    feature = "tsc",
    doc = "| [`TscClock`] | the processor's counter, which is quick to read | `SystemClock`'s thread |"
)]
//! | [`FakeClock`] | a test, which sets the time | the thread that changes the time |

mod fake;
mod sleep;
mod system;
mod timers;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tsc")]
mod tsc;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;

use crate::Time;
use crate::sync::drop_quietly;

pub use self::fake::FakeClock;
pub use self::sleep::{Sleep, sleep_until};
pub use self::system::SystemClock;
#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;
#[cfg(feature = "tsc")]
pub use self::tsc::TscClock;

/// A source of time, which also wakes a waker when a given time has come.
///
/// A clock may wake a waker too early: because it arms alarms at most an hour ahead, because its
/// runtime shuts down, or because an alarm was dropped while its waker was being woken. After each
/// wake, a caller must therefore compare [`now`](Clock::now) with its deadline. If the wake was too
/// early, the caller arms a new alarm. A clock never delays a wake deliberately, and never forgets
/// an armed alarm.
///
/// # Examples
///
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use requeue::clock::{Clock, FakeClock};
///
/// let clock = FakeClock::new();
/// let alarm = clock.arm(clock.now() + Duration::from_secs(1), Waker::noop());
/// assert_eq!(clock.armed(), 1);
/// drop(alarm);
/// assert_eq!(clock.armed(), 0);
/// ```
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time, in nanoseconds since an origin that the clock chooses.
    ///
    /// Times of different clocks cannot be compared, because their origins differ.
    fn now(&self) -> Time;

    /// Wakes `waker` when [`now`](Clock::now) has reached `at`, unless the returned alarm is
    /// dropped before.
    ///
    /// If `at` has already come, `arm` wakes the waker on the calling thread before it returns. The
    /// caller must therefore hold no lock that the waker acquires. An alarm for [`Time::NEVER`]
    /// never wakes its waker. A clock may wake the waker too early. The woken caller must compare
    /// `now` with `at`, and arm a new alarm if the wake was too early.
    fn arm(&self, at: Time, waker: &Waker) -> Alarm;

    /// Arms an alarm as [`arm`](Clock::arm) does. A queue arms such an alarm to watch over a task
    /// that it has woken.
    ///
    /// [`FakeClock::armed`] does not include these alarms. The default implementation calls `arm`.
    #[doc(hidden)]
    fn arm_watchdog(&self, at: Time, waker: &Waker) -> Alarm {
        self.arm(at, waker)
    }

    /// Returns true if this clock follows real time: while a thread sleeps for a duration, the
    /// clock advances by that duration.
    ///
    /// A queue calls this method once, when it is built. If the result is true, a blocked thread
    /// may sleep until its deadline itself. Otherwise, only an alarm wakes the thread. The clock
    /// may differ slightly from real time, because a thread that wakes too early waits again.
    /// [`SystemClock`] returns true, and so does the clock that reads the processor's counter.
    fn is_real_time(&self) -> bool {
        false
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Time {
        (**self).now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        (**self).arm(at, waker)
    }

    fn arm_watchdog(&self, at: Time, waker: &Waker) -> Alarm {
        (**self).arm_watchdog(at, waker)
    }

    fn is_real_time(&self) -> bool {
        (**self).is_real_time()
    }
}

/// An armed alarm. Dropping it disarms the alarm.
///
/// If the clock is already waking the waker when the alarm is dropped, the wake may still arrive.
#[must_use = "an alarm is disarmed when it is dropped"]
pub struct Alarm(Option<Pin<Box<dyn Send + Sync>>>);

impl Alarm {
    /// Returns an alarm that contains `guard`. When the alarm is dropped, it drops the guard, whose
    /// `Drop` disarms the alarm.
    ///
    /// This function is for implementations of [`Clock`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use requeue::clock::Alarm;
    ///
    /// let guard = Arc::new(());
    /// let alarm = Alarm::new(Arc::clone(&guard));
    /// assert_eq!(Arc::strong_count(&guard), 2);
    /// drop(alarm);
    /// assert_eq!(Arc::strong_count(&guard), 1);
    /// ```
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Some(Box::pin(guard)))
    }

    /// Returns an alarm that never wakes a waker, or whose waker has already been woken.
    pub const fn none() -> Self {
        Self(None)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // The guard owns a waker, perhaps its last copy. Dropping the guard can therefore run user
        // code, which may panic.
        drop_quietly(self.0.take());
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Alarm(armed)" } else { "Alarm(none)" })
    }
}
