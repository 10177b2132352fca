//! The clock of a tokio runtime, whose timer driver wakes the alarms.

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

/// The clock of a tokio runtime, for tests that pause or advance its time.
///
/// A queue uses this clock only if [`Builder::clock`](crate::Builder::clock) sets it, even if the queue is built in a
/// runtime. If the time of the runtime is paused or advanced, so is the time of the clock. The clock holds a handle of
/// its runtime, so any thread can use it, including a thread of another runtime. The times of the clock count from its
/// creation, which is time 1 (in nanoseconds). Clones return the same time. Clocks that were created separately do not.
///
/// Alarms are entries of the runtime's timer driver, which wakes the waker itself. **No task is spawned**, and an alarm
/// goes off without being polled. Like all of tokio's timers, alarms have a resolution of one millisecond and never go
/// off early. Alarms go off only while the runtime runs. A current-thread runtime runs only inside `block_on`.
///
/// If there is no timer driver, because the runtime has shut down or was built without one, the thread of
/// [`SystemClock`] wakes the wakers, so waiting callers are not forgotten. If the time was paused when its runtime shut
/// down, the time no longer changes. Alarms that were armed at that moment detect the shutdown without a panic.
/// Otherwise, the first alarm detects the shutdown by a panic in tokio, which is caught. Only the message of the panic
/// hook is visible.
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
/// // A queue whose time the test pauses:
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
    /// True if the timer driver has permanently shut down.
    driverless: AtomicBool,
}

impl TokioClock {
    /// The longest time ahead for which an alarm is armed. A caller that waits longer is woken, and
    /// arms again.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// Returns the clock of the runtime that `handle` belongs to.
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

    /// Returns the clock of the current runtime.
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
        // A relaxed load suffices, because the flag only saves a panic. With an old value, arming
        // panics, and the panic is caught.
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
    /// Arms a timer of the runtime. Panics if there is no timer driver, or if the driver has shut
    /// down.
    fn arm_driver(&self, at: Time, waker: &Waker) -> Alarm {
        let (clock, relayed) = (Arc::clone(&self.0), waker.clone());
        // A driver that shuts down fires all of its timers, and panics if it is asked for a new timer. Before that, its
        // timers never fire early. An early wake therefore shows that the driver has shut down.
        let relay = waker_fn(move || {
            if clock.current_time() < at {
                clock.driverless.store(true, Ordering::Relaxed);
            }
            relayed.wake_by_ref();
        });
        let _context = self.0.handle.enter();
        let deadline = self.0.origin + at.since(Shared::START);
        let mut sleep = Box::pin(tokio::time::sleep_until(deadline));
        // Arming is not work of the calling task, so it must not use the task's budget. Otherwise,
        // a task that has used up its budget could not arm a timer.
        let polled = pin!(coop::unconstrained(sleep.as_mut()));
        if polled.poll(&mut Context::from_waker(&relay)).is_ready() {
            waker.wake_by_ref();
            return Alarm::none();
        }
        Alarm(Some(sleep))
    }
}

impl Shared {
    /// The clock's time when it is created.
    const START: Time = Time::from_nanos(1);

    fn current_time(&self) -> Time {
        Self::START + instant_of(&self.handle).saturating_duration_since(self.origin)
    }
}

/// Reads the runtime's own time, which may be paused.
fn instant_of(handle: &Handle) -> Instant {
    // On a thread whose thread-locals have been destroyed, entering a runtime panics.
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
