//! A clock that stands still until a test moves it.
//!
//! No alarm is missed: deadlines are absolute, and one lock guards both the clock's time and the
//! alarms.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::timers::{Key, Timers};
use super::{Alarm, Clock};
use crate::Time;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError, waker_fn};

/// A clock for tests, whose time changes only when a test moves it.
///
/// Clones share one clock. Deadlines are absolute: if the time of an alarm has come when it is armed, the alarm goes
/// off immediately. No alarm is missed, because the order in which alarms are armed and the clock is moved has no
/// effect.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue::clock::{FakeClock, sleep_until};
///
/// let clock = FakeClock::new();
/// let bed = clock.now();
/// clock.run(sleep_until(&clock, bed + Duration::from_secs(8 * 3600)));
/// assert_eq!(clock.now().since(bed), Duration::from_secs(8 * 3600));
/// ```
#[derive(Clone)]
pub struct FakeClock(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified when the number of armed alarms grows.
    more_armed: Condvar,
}

struct State {
    now: Time,
    timers: Timers,
    /// The alarms of queues that watch over tasks. These alarms go off like all other alarms, but
    /// [`armed`](FakeClock::armed) does not count them.
    watchdogs: Timers,
}

/// Returns the earliest deadline of all alarms.
fn next_deadline(timers: &Timers, watchdogs: &Timers) -> Option<Time> {
    [timers, watchdogs].into_iter().filter_map(Timers::first_deadline).map(|(at, _)| at).min()
}

/// Selects one of the two sets of alarms.
type Set = fn(&mut State) -> &mut Timers;

impl FakeClock {
    /// Creates a clock that stands at one second after its origin.
    #[must_use]
    pub fn new() -> Self {
        let now = Time::ZERO + Duration::from_secs(1);
        let state = State { now, timers: Timers::new(), watchdogs: Timers::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), more_armed: Condvar::new() }))
    }

    /// Returns the time to which this clock was last moved.
    #[must_use]
    pub fn now(&self) -> Time {
        self.lock().now
    }

    /// Moves the clock forward by `by`, wakes all wakers that are due, and returns after it has
    /// woken them.
    ///
    /// Wakers are woken in the order of their deadlines. Wakers with equal deadlines are woken in the order in which
    /// they were armed. Wakers run on this thread without a lock, so a waker may use the clock. A waker reads the time
    /// after the move, which may be later than its deadline.
    ///
    /// # Panics
    ///
    /// Panics if a waker panics. The remaining wakers are woken at the next move of the clock.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.now = state.now + by;
        drop(state);
        self.wake_due();
    }

    /// Moves the clock to `now`, forward or back, and wakes all wakers that are due, as
    /// [`advance`](Self::advance) does.
    ///
    /// # Panics
    ///
    /// Panics if a waker panics.
    pub fn set(&self, now: Time) {
        self.lock().now = now;
        self.wake_due();
    }

    /// Returns the number of armed alarms that have neither gone off nor been dropped.
    ///
    /// A queue also arms alarms to watch over tasks that it has woken. These alarms go off like all
    /// other alarms, but are not counted.
    #[must_use]
    pub fn armed(&self) -> usize {
        self.lock().timers.len()
    }

    /// Returns the time of the next armed alarm, or `None` if no alarm is armed.
    // Only the simulations of this workspace need this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn next_alarm(&self) -> Option<Time> {
        self.lock().timers.first_deadline().map(|(at, _)| at)
    }

    /// Blocks this thread until at least `n` alarms are armed. Other threads arm the alarms.
    ///
    /// With this method, a test waits without a sleep until the threads or tasks that it started are waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::task::Waker;
    /// use std::thread;
    /// use std::time::Duration;
    /// use requeue::clock::{Clock, FakeClock};
    ///
    /// let clock = FakeClock::new();
    /// let at = clock.now() + Duration::from_secs(1);
    /// let other = thread::spawn({
    ///     let clock = clock.clone();
    ///     move || clock.arm(at, Waker::noop())
    /// });
    /// clock.wait_armed(1);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(clock.armed(), 0);
    /// # drop(other);
    /// ```
    pub fn wait_armed(&self, n: usize) {
        let mut state = self.lock();
        while state.timers.len() < n {
            state = self.0.more_armed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs `future` to completion on this thread, and moves the clock to the next alarm whenever
    /// the future waits.
    ///
    /// The method is for futures that wait only for this clock. Hours of the clock take microseconds, and each run has
    /// the same result.
    ///
    /// # Panics
    ///
    /// Panics if the future waits and no alarm is armed, because nothing on this thread could ever
    /// wake it.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let woken = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&woken);
        let waker = waker_fn(move || flag.store(true, Ordering::Release));
        let mut future = pin!(future);
        loop {
            // Acquire makes the writes of the waking thread visible to the poll. Release has no
            // effect here.
            while woken.swap(false, Ordering::AcqRel) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
                {
                    return output;
                }
            }
            let next = {
                let state = self.lock();
                next_deadline(&state.timers, &state.watchdogs)
            };
            match next {
                Some(at) => self.set(at),
                None => panic!("the future waits, and no alarm of its clock is armed"),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one waker at a time, so that a waker can disarm later alarms.
    fn wake_due(&self) {
        while let Some(waker) = self.pop_due() {
            waker.wake();
        }
    }

    fn pop_due(&self) -> Option<Waker> {
        let mut state = self.lock();
        let State { now, timers, watchdogs } = &mut *state;
        let is_watchdog =
            watchdogs.first_deadline().map(|(at, _)| at) == next_deadline(timers, watchdogs);
        let set = if is_watchdog { watchdogs } else { timers };
        set.pop_due(*now)
    }

    fn arm_in(&self, set: Set, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        let waker = waker.clone();
        let mut state = self.lock();
        if at <= state.now {
            drop(state);
            waker.wake();
            return Alarm::none();
        }
        let key = set(&mut state).insert(at, waker);
        drop(state);
        self.0.more_armed.notify_all();
        Alarm::new(Disarm { clock: self.clone(), set, key })
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Time {
        self.now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        self.arm_in(|state| &mut state.timers, at, waker)
    }

    fn arm_watchdog(&self, at: Time, waker: &Waker) -> Alarm {
        self.arm_in(|state| &mut state.watchdogs, at, waker)
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let (now, armed) = (state.now, state.timers.len());
        drop(state);
        f.debug_struct("FakeClock").field("now", &now).field("armed", &armed).finish()
    }
}

struct Disarm {
    clock: FakeClock,
    set: Set,
    key: Key,
}

impl Drop for Disarm {
    fn drop(&mut self) {
        // The waker is dropped after the lock is released, because its drop may use the clock.
        let waker = (self.set)(&mut self.clock.lock()).remove(self.key);
        drop(waker);
    }
}
