//! The clock of a tokio runtime. The timer driver of the runtime wakes the wakers of its alarms.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::coop;
use tokio::time::Instant;

use super::{Alarm, Clock, SystemClock};
use crate::Time;
use crate::sync::{quietly, waker_fn};

/// The clock of a tokio runtime, for tests that pause or advance the time of the runtime.
///
/// A queue uses this clock only if [`Builder::clock`](crate::Builder::clock) sets it, even if the
/// queue is built in a runtime. When the time of the runtime is paused or advanced, so is the time
/// of this clock. The clock owns a handle of its runtime, so any thread can use it, even a thread
/// of another runtime. Its time begins at 1 ns when the clock is created. Clones
/// return the same time. Clocks that were created separately do not.
///
/// Each alarm is an entry of the runtime's timer driver, which wakes the waker itself. **No task is
/// spawned**, and an alarm needs no polling. Like all timers of tokio, alarms have a resolution of
/// one millisecond, and are never early. They wake their wakers only while the runtime runs. A
/// current-thread runtime runs only inside `block_on`.
///
/// A runtime has no timer driver if it was built without one, or if it has shut down. The thread of
/// [`SystemClock`] then wakes the wakers, so waiting callers are not forgotten. If the time was
/// paused when the runtime shut down, the time no longer changes.
///
/// The clock must detect a shutdown. If an alarm is armed when the runtime shuts down, its waker is
/// woken early, which shows the shutdown. Otherwise, the next call of [`arm`](Clock::arm) causes a
/// panic in tokio. The clock catches this panic, and only the message of the panic hook is visible.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{Clock, TokioClock, sleep_until};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let clock = TokioClock::current();
/// let start = clock.now();
/// sleep_until(&clock, start + Duration::from_secs(3600)).await;
/// assert!(clock.now().since(start) >= Duration::from_secs(3600));
///
/// // A queue that uses the time that the test pauses:
/// let queue = requeue::Queue::builder().clock(clock).build().expect("the settings are valid");
/// queue.add_after("a", Duration::from_secs(3600));
/// assert_eq!(queue.get().await.as_deref(), Some(&"a"));
/// # }
/// ```
#[derive(Clone)]
pub struct TokioClock(Arc<Shared>);

struct Shared {
    handle: Handle,
    origin: Instant,
    /// True if the runtime has no timer driver, or the driver has shut down.
    driverless: AtomicBool,
}

impl TokioClock {
    /// The longest time ahead for which an alarm is armed. A caller with a later deadline is woken
    /// at that time, and arms a new alarm.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// Creates a clock of the runtime to which `handle` belongs.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::clock::{Clock, TokioClock};
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    /// let clock = TokioClock::new(runtime.handle().clone());
    /// assert!(clock.now() > requeue::Time::ZERO);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn new(handle: Handle) -> Self {
        let origin = instant_of(&handle);
        Self(Arc::new(Shared { handle, origin, driverless: AtomicBool::new(false) }))
    }

    /// Creates a clock of the current runtime.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime, as [`Handle::current`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::clock::TokioClock;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let clock = TokioClock::current();
    /// # let _ = clock;
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn current() -> Self {
        Self::new(Handle::current())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        self.0.current_time()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        let now = self.now();
        if at <= now {
            waker.wake_by_ref();
            return Alarm::none();
        }
        let at = at.min(now + Self::FARTHEST);
        // A relaxed load is sufficient, because the flag only avoids a panic. If the load returns
        // an old value, `arm_driver` panics, and the panic is caught.
        if !self.0.driverless.load(Ordering::Relaxed) {
            match quietly(|| self.arm_driver(at, waker)) {
                Some(alarm) => return alarm,
                None => self.0.driverless.store(true, Ordering::Relaxed),
            }
        }
        SystemClock.arm(SystemClock.now() + at.since(now), waker)
    }
}

impl TokioClock {
    /// Arms a timer of the runtime. Panics if the runtime has no timer driver, or if the driver has
    /// shut down.
    fn arm_driver(&self, at: Time, waker: &Waker) -> Alarm {
        let (clock, relayed) = (Arc::clone(&self.0), waker.clone());
        // A driver that shuts down wakes all its timers, and panics if it must create a new one.
        // Before a shutdown, its timers are never early. An early wake therefore shows that the
        // driver has shut down.
        let relay = waker_fn(move || {
            if clock.current_time() < at {
                clock.driverless.store(true, Ordering::Relaxed);
            }
            relayed.wake_by_ref();
        });
        let _context = self.0.handle.enter();
        let deadline = self.0.origin + at.since(Shared::START);
        let mut sleep = Box::pin(tokio::time::sleep_until(deadline));
        // Arming an alarm is not work of the calling task, so it must not use the cooperative
        // budget of this task. A task that has used up its budget could otherwise not arm an alarm.
        let polled = pin!(coop::unconstrained(sleep.as_mut()));
        if polled.poll(&mut Context::from_waker(&relay)).is_ready() {
            waker.wake_by_ref();
            return Alarm::none();
        }
        Alarm(Some(sleep))
    }
}

impl Shared {
    /// The time of the clock when it is created.
    const START: Time = Time::from_nanos(1);

    fn current_time(&self) -> Time {
        Self::START + instant_of(&self.handle).saturating_duration_since(self.origin)
    }
}

/// Returns the time of the runtime, which may be paused.
fn instant_of(handle: &Handle) -> Instant {
    // Entering a runtime panics on a thread whose thread-local values were already destroyed.
    let asked = quietly(|| {
        let _context = handle.enter();
        Instant::now()
    });
    asked.unwrap_or_else(|| std::time::Instant::now().into())
}

impl fmt::Debug for TokioClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
