//! The clock of the machine, and the one thread that wakes the wakers of its alarms.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::timers::{Key, Timers};
use super::{Alarm, Clock};
use crate::Time;
use crate::sync::quietly;

/// The monotonic clock of the machine.
///
/// At the first use of the clock in a process, its time is 1 ns. [`Time::ZERO`] is therefore before any
/// time that this clock returns. All `SystemClock`s
/// return the same time.
///
/// **One thread for the whole process**, called `requeue-timer`, wakes the wakers of all alarms.
/// The first alarm whose time has not yet come starts this thread, and the thread never stops. It
/// uses absolute deadlines. It sleeps for at most an hour at a time, so that it notices a
/// suspension of the machine.
///
/// Wakers run on this thread, so they must be quick. The thread survives a waker that panics. If
/// the operating system refuses to start the thread, each alarm wakes its waker immediately. A
/// waiting caller then polls the clock continuously, but is not forgotten.
///
/// # Examples
///
/// ```
/// use requeue::Time;
/// use requeue::clock::{Clock, SystemClock};
///
/// let before = SystemClock.now();
/// assert!(before > Time::ZERO);
/// assert!(SystemClock.now() >= before);
/// assert!(SystemClock.is_real_time());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        Time::from_nanos(1) + ORIGIN.elapsed()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        if at == Time::NEVER {
            return Alarm::none();
        }
        if at <= self.now() {
            waker.wake_by_ref();
            return Alarm::none();
        }
        match TIMER.arm_timer(at, waker.clone()) {
            Ok(key) => Alarm::new(Disarm(key)),
            Err(waker) => {
                waker.wake();
                Alarm::none()
            }
        }
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

struct Disarm(Key);

impl Drop for Disarm {
    fn drop(&mut self) {
        // The lock is released at the end of this statement. Dropping the waker afterwards may arm
        // or disarm an alarm.
        let waker = TIMER.lock().timers.remove(self.0);
        drop(waker);
    }
}

static TIMER: TimerThread = TimerThread {
    state: Mutex::new(State { timers: Timers::new(), started: false }),
    earlier: Condvar::new(),
};

struct TimerThread {
    state: Mutex<State>,
    /// Notified when an alarm is armed that is earlier than all other alarms.
    earlier: Condvar,
}

struct State {
    timers: Timers,
    started: bool,
}

impl TimerThread {
    /// The longest sleep of the thread. It is limited, because the monotonic clock may stand still
    /// while the machine is suspended.
    const LONGEST_PARK: Duration = Duration::from_secs(3600);
    /// The maximum number of wakers that the thread removes before it releases the lock.
    const BATCH: usize = 64;

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms an alarm. Returns the waker if the thread could not be started.
    fn arm_timer(&'static self, at: Time, waker: Waker) -> Result<Key, Waker> {
        let mut state = self.lock();
        if !state.started {
            let thread = thread::Builder::new().name("requeue-timer".into());
            if thread.spawn(|| self.run_timers()).is_err() {
                return Err(waker);
            }
            state.started = true;
        }
        let key = state.timers.insert(at, waker);
        let is_first = state.timers.first_deadline() == Some(key);
        drop(state);
        // Without this notification, the thread would sleep until the deadline that was the
        // earliest before.
        if is_first {
            self.earlier.notify_one();
        }
        Ok(key)
    }

    fn run_timers(&self) {
        let mut due = Vec::with_capacity(Self::BATCH);
        let mut state = self.lock();
        loop {
            let now = SystemClock.now();
            while due.len() < Self::BATCH
                && let Some(waker) = state.timers.pop_due(now)
            {
                due.push(waker);
            }
            if due.is_empty() {
                let next = state.timers.first_deadline().map_or(Time::NEVER, |(at, _)| at);
                let park = next.since(now).min(Self::LONGEST_PARK);
                let woken = self.earlier.wait_timeout(state, park);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                // The wakers run without the lock, because a waker may arm or disarm an alarm.
                drop(state);
                due.drain(..).for_each(|waker| _ = quietly(|| waker.wake()));
                state = self.lock();
            }
        }
    }
}
