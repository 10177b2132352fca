//! A clock whose time changes only when a test changes it.
//!
//! The clock misses no alarm: deadlines are absolute, and one lock guards both the time and the
//! alarms.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::timers::{Key, Timers};
use super::{Alarm, Clock};
use crate::Time;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering, PoisonError, waker_fn};

/// A clock for tests. Its time changes only when the test changes it.
///
/// All clones have the same time. Deadlines are absolute: if the time of an alarm has already come
/// when the alarm is armed, its waker is woken immediately. The clock therefore misses no alarm,
/// whether the alarm is armed before or after the time changes.
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
    /// Notified when an alarm is armed, for `wait_armed`.
    more_armed: Condvar,
}

struct State {
    now: Time,
    timers: Timers,
    /// The alarms with which queues watch over the tasks that they have woken. They wake their
    /// wakers like all other alarms, but [`armed`](FakeClock::armed) does not include them.
    watchdogs: Timers,
}

/// Returns the earliest deadline in both sets of alarms.
fn next_deadline(timers: &Timers, watchdogs: &Timers) -> Option<Time> {
    [timers, watchdogs].into_iter().filter_map(Timers::first_deadline).map(|(at, _)| at).min()
}

/// Returns one of the two sets of alarms.
type Set = fn(&mut State) -> &mut Timers;

impl FakeClock {
    /// Creates a clock whose time is one second after its origin.
    #[must_use]
    pub fn new() -> Self {
        let now = Time::ZERO + Duration::from_secs(1);
        let state = State { now, timers: Timers::new(), watchdogs: Timers::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), more_armed: Condvar::new() }))
    }

    /// Returns the current time of this clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.lock().now
    }

    /// Moves the time forward by `by`. Before it returns, it has woken all wakers whose time has
    /// come.
    ///
    /// The wakers are woken in the order of their deadlines. If deadlines are equal, the order is
    /// that in which the alarms were armed. The wakers run on this thread, and the clock holds no
    /// lock, so a waker may use the clock. It then reads the new time, which may be later than its
    /// deadline.
    /// # Panics
    ///
    /// Panics if a waker panics. The next change of the time wakes the remaining wakers.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.now = state.now + by;
        drop(state);
        self.wake_due();
    }

    /// Sets the time to `now`, forward or back. Then wakes all wakers whose time has come, as
    /// [`advance`](Self::advance) does.
    ///
    /// # Panics
    ///
    /// Panics if a waker panics.
    pub fn set(&self, now: Time) {
        self.lock().now = now;
        self.wake_due();
    }

    /// Returns the number of armed alarms whose time has not come.
    ///
    /// A queue also arms alarms to watch over the tasks that it has woken. The result does not
    /// include these alarms.
    #[must_use]
    pub fn armed(&self) -> usize {
        self.lock().timers.len()
    }

    /// Returns the time of the earliest armed alarm, or `None` if no alarm is armed.
    // Only the simulations of this workspace need this method, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub fn next_alarm(&self) -> Option<Time> {
        self.lock().timers.first_deadline().map(|(at, _)| at)
    }

    /// Blocks this thread until other threads have armed alarms, so that at least `n` alarms are
    /// armed.
    ///
    /// A test calls this method to wait, without a sleep, until the threads or tasks that it has
    /// started are waiting.
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

    /// Runs `future` to completion on this thread. Each time the future waits, moves the time to
    /// the next alarm.
    ///
    /// The future must wait only for this clock. Hours of this clock take microseconds of real
    /// time, and each run has the same result.
    ///
    /// # Panics
    ///
    /// Panics if the future waits and no alarm is armed. Nothing on this thread could then wake the
    /// future.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let woken = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&woken);
        let waker = waker_fn(move || flag.store(true, Ordering::Release));
        let mut future = pin!(future);
        loop {
            // `Acquire` makes the writes of the waking thread visible to the poll. The `Release`
            // half has no effect at this point.
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

    /// Wakes one waker at a time, so that a waker can still disarm a later alarm.
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
        // The waker is dropped after the lock is released, because dropping it is user code that
        // may use the clock.
        let waker = (self.set)(&mut self.clock.lock()).remove(self.key);
        drop(waker);
    }
}
