//! Where a queue gets its time, and who wakes it when a time has come.
//!
//! A [`Clock`] does two things: it says what time it is, and it wakes a [`Waker`] once a time has
//! come. It never runs a callback and needs no task, so that one trait serves async and blocking
//! callers alike.
//!
//! | clock | `now` | who wakes |
//! |---|---|---|
//! | [`SystemClock`], the default | the machine's monotonic clock | one thread for the whole process, started by the first alarm |
#![cfg_attr(
    feature = "tokio",
    doc = "| [`TokioClock`] | the runtime's clock, which a test can pause | the runtime's timer driver |"
)]
#![cfg_attr(
    feature = "tsc",
    doc = "| [`TscClock`] | the processor's counter, which is quick to read | `SystemClock`'s thread |"
)]
//! | [`FakeClock`] | what the test has set | the thread that moves the clock |

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

/// Says what time it is, and wakes when a time has come.
///
/// Those who wait on a clock look at [`now`](Clock::now) whenever they are woken, and arm again
/// when it is too early. This is what lets a clock wake too often: because it arms at most an
/// hour ahead, because its runtime is shutting down, or because an alarm was dropped while it
/// was going off. It never wakes too late on purpose, and never forgets an armed alarm.
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
    /// The time now, in nanoseconds since an origin that the clock chooses.
    ///
    /// Times of different clocks don't compare.
    fn now(&self) -> Time;

    /// Wakes `waker` once [`now`](Clock::now) has reached `at`, unless the alarm is dropped
    /// before.
    ///
    /// An `at` that has come already wakes at once, in the calling thread and before this
    /// returns: hold no lock that the waker takes. [`Time::NEVER`] never wakes. Spurious wakes
    /// are allowed, so whoever is woken compares `now` with `at`, and arms again.
    fn arm(&self, at: Time, waker: &Waker) -> Alarm;

    /// As [`arm`](Clock::arm), for a queue that watches over a task it has woken. Tests that count the
    /// alarms of a [`FakeClock`] do not see it.
    #[doc(hidden)]
    fn arm_watchdog(&self, at: Time, waker: &Waker) -> Alarm {
        self.arm(at, waker)
    }

    /// Whether a thread that parks for a duration finds this clock that much later.
    ///
    /// A queue asks once, when it is built. Where it is true, a blocked thread may keep its own deadline; where it is not, the thread
    /// has to be woken by an alarm. It may be off by a little: who finds that it is too early waits
    /// again. [`SystemClock`] says true, and so does the one that reads the processor's counter.
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

/// An armed alarm; dropping it disarms.
///
/// A wake that is already on its way when the alarm is dropped may still arrive.
#[must_use = "an alarm is disarmed when it is dropped"]
pub struct Alarm(Option<Pin<Box<dyn Send + Sync>>>);

impl Alarm {
    /// An alarm that is disarmed by dropping `guard`: for those who write a clock.
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

    /// An alarm that will not go off, or has gone off already.
    pub const fn none() -> Self {
        Self(None)
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // With the guard goes a waker, perhaps its last copy: the user's code, like a clock's.
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
