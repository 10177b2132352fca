//! The clock of a tokio runtime.

use std::fmt;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, TryCurrentError};
use tokio::task::coop;
use tokio::time::Instant;

use super::{Alarm, Clock, SystemClock};
use crate::Time;

/// The clock of a tokio runtime, for tests that pause or advance its time.
///
/// A queue uses it only if [`Builder::clock`](crate::Builder::clock) sets it, also when the queue is built
/// in a runtime. It obeys a runtime whose time is paused or advanced, and it holds its runtime's handle, so
/// that any thread can use it, one of another runtime too. Its times count from the moment it was
/// made, which is the time 1; clones agree, clocks made apart do not.
///
/// Alarms are entries of the runtime's timer driver, which wakes the waker itself: **no task is
/// spawned**, and nothing has to be polled for an alarm to go off. As all of tokio's timers they
/// have a resolution of one millisecond and never go off early, and they go off only while the
/// runtime runs: a current-thread runtime outside of `block_on` stands still.
///
/// Where there is no timer driver to ask, because the runtime has shut down or was built without
/// one, [`SystemClock`]'s thread wakes instead: what waits is not forgotten. A time that was
/// paused when its runtime shut down stays where it was. What was armed when the runtime shut
/// down notices without a panic; otherwise the first alarm finds out by a panic of tokio's, which
/// is caught, so that all one sees of it is the message of the panic hook.
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
    /// The timer driver can't be asked, now and for ever.
    driverless: AtomicBool,
}

impl TokioClock {
    /// How far ahead an alarm is armed at most. Who waits for longer is woken, and arms again.
    const FARTHEST: Duration = Duration::from_secs(3600);

    /// The clock of the runtime that `handle` belongs to.
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

    /// The clock of the runtime that this code runs in.
    ///
    /// # Panics
    ///
    /// Outside of a runtime, as [`Handle::current`] does.
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

    /// The clock of the runtime that this code runs in.
    ///
    /// # Errors
    ///
    /// Outside of a runtime.
    ///
    /// ```
    /// use requeue::clock::TokioClock;
    ///
    /// assert!(TokioClock::try_current().is_err());
    /// ```
    pub fn try_current() -> Result<Self, TryCurrentError> {
        Handle::try_current().map(Self::new)
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Time {
        self.0.now()
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
        if !self.0.driverless.load(Ordering::Relaxed) {
            match panic::catch_unwind(AssertUnwindSafe(|| self.arm_driver(at, waker))) {
                Ok(alarm) => return alarm,
                Err(_) => self.0.driverless.store(true, Ordering::Relaxed),
            }
        }
        SystemClock.arm(SystemClock.now() + at.since(now), waker)
    }
}

impl TokioClock {
    /// Panics when there is no timer driver, or when it has shut down.
    fn arm_driver(&self, at: Time, waker: &Waker) -> Alarm {
        let relay = Relay { clock: Arc::clone(&self.0), at, waker: waker.clone() };
        let relay = Waker::from(Arc::new(relay));
        let _context = self.0.handle.enter();
        let deadline = self.0.origin + at.since(Shared::START);
        let mut sleep = Box::pin(tokio::time::sleep_until(deadline));
        // Arming is no work of the task that calls us, so it costs none of its budget; a task that
        // has spent its budget would not get to the timer.
        let polled = pin!(coop::unconstrained(sleep.as_mut()));
        if polled.poll(&mut Context::from_waker(&relay)).is_ready() {
            waker.wake_by_ref();
            return Alarm::none();
        }
        Alarm(Some(sleep))
    }
}

impl Shared {
    /// The clock's time at its origin.
    const START: Time = Time::from_nanos(1);

    fn now(&self) -> Time {
        Self::START + instant_of(&self.handle).saturating_duration_since(self.origin)
    }
}

/// A runtime's time can be paused, so it is that runtime that has to be asked.
fn instant_of(handle: &Handle) -> Instant {
    // A thread whose thread-locals are gone can't enter a runtime, and panics.
    let asked = panic::catch_unwind(AssertUnwindSafe(|| {
        let _context = handle.enter();
        Instant::now()
    }));
    asked.unwrap_or_else(|_| std::time::Instant::now().into())
}

/// What a timer of the runtime wakes.
///
/// A driver that shuts down fires all of its timers, and panics when it is asked for another. Its
/// timers never fire early otherwise, so this is how we know without asking.
struct Relay {
    clock: Arc<Shared>,
    at: Time,
    waker: Waker,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.clock.now() < self.at {
            self.clock.driverless.store(true, Ordering::Relaxed);
        }
        self.waker.wake_by_ref();
    }
}

impl fmt::Debug for TokioClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
