//! The state that all handles share, its one lock, and the work that follows the release of the
//! lock.
//!
//! Wakers, hooks and the clock are user code, so they are called only after the release.

use std::any::TypeId;
use std::task::Waker;
use std::time::Duration;

use requeue_core::{self as core, Operation, Reasons, Time};

use super::drainers::Drainers;
use super::dropped_keys::DroppedKeys;
use super::hooks::Events;
use super::limiter::LockedLimiter;
use super::waiters::{Waiters, Wakes};
use super::watchers::Watchers;
use crate::Key;
use crate::clock::{Alarm, Clock};
use crate::metrics::QueueMetrics;
use crate::ranked_mutex::{Rank, RankedGuard, RankedMutex, Reentered};
use crate::sync::{
    Arc, AtomicBool, AtomicU64, OnceLock, Ordering, Weak, drop_quietly, quietly, waker_fn,
};
#[cfg(feature = "opentelemetry")]
use crate::trace::Traces;

/// The maximum number of keys that are delivered, dropped or copied under one hold of the lock.
pub(super) const LOCK_BATCH: usize = 256;

/// The state that the lock guards.
pub(crate) struct State<K> {
    pub(crate) core: core::Queue<K>,
    pub(super) waiters: Waiters,
    pub(super) drainers: Drainers,
    pub(super) watchers: Watchers,
    /// The number of calls of `shut_down`. Each call ends the waits of earlier drains.
    pub(super) shut_downs: u64,
    /// Keys whose pending run was dropped after the shutdown, for example because they failed.
    pub(super) dropped: DroppedKeys<K>,
    due_alarm: DueAlarm,
    /// `Some` while the clock watches over a task that was woken and has not been polled.
    watch: Option<Box<Watch>>,
    /// The current value of `Shared::hint`.
    hint: bool,
    /// The events that were reported to the hooks. Boxed, because few queues have hooks.
    reported: Option<Box<Events>>,
}

impl<K: Eq + Clone> State<K> {
    /// Returns true if due keys must become ready without an operation: getters wait, or an add
    /// that becomes due can restart a run.
    #[inline]
    fn needs_alarm(&self) -> bool {
        !self.waiters.is_empty() || watches_restarts(&self.core, &self.watchers)
    }

    /// Returns the events since the last call. Other operations may have caused them, because an
    /// operation on one key often makes other keys ready.
    fn unreported_events(&mut self) -> Events {
        let all = Events::read_totals(&self.core);
        all.events_since(std::mem::replace(&mut **self.reported.get_or_insert_default(), all))
    }
}

/// Returns true if a key that becomes due may wake one of `watchers`.
#[inline]
fn watches_restarts<K: Eq + Clone>(core: &core::Queue<K>, watchers: &Watchers) -> bool {
    core.restarts() && !watchers.is_empty()
}

/// The alarm for the earliest due time.
struct DueAlarm {
    alarm: Alarm,
    /// The time at which the alarm that is armed, or being armed, goes off.
    armed: Time,
    /// True while a thread arms the alarm. The thread does not hold the lock.
    arming: bool,
    /// True if the thread that arms the alarm must check once more.
    arm_again: bool,
}

/// A wake that a task must use before the alarm goes off.
struct Watch {
    wake: u64,
    /// The alarm, or `None` while the alarm is being armed.
    alarm: Option<Alarm>,
    /// True if the alarm has gone off while it was being armed.
    fired: bool,
}

/// The grace period in which a woken task must be polled, if other tasks wait for the same key.
const GRACE: Duration = Duration::from_millis(5);

/// The state that all handles of a queue share.
pub(crate) struct Shared<K: Key> {
    /// Distinguishes the queues of a process.
    pub(super) number: u64,
    state: RankedMutex<State<K>>,
    /// A hint: if true, an add needs the time, so its caller reads the clock before it acquires the lock.
    hint: AtomicBool,
    /// A hint: true if there is a key for the spinning thread.
    pub(super) go: AtomicBool,
    /// True if an add had a reason. The flag is set before the lock for this add is acquired, so that a run sees it.
    /// The type is not one of loom's primitives, because the lock orders the accesses.
    has_reasons: std::sync::atomic::AtomicBool,
    pub(super) facts: Facts,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limiter: LockedLimiter<K>,
    pub(crate) hooks: Option<Arc<dyn QueueMetrics<K>>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) tally: Tally,
    /// The trace contexts of keys, in a queue with traces.
    #[cfg(feature = "opentelemetry")]
    pub(super) traces: Option<Box<Traces<K>>>,
    /// A weak reference to this value. An upgrade returns `Some` while any value borrows from the queue, because a
    /// handle keeps the queue alive.
    pub(super) this: Weak<Self>,
    timer: OnceLock<Waker>,
}

/// The facts about a queue that its settings decide.
pub(super) struct Facts {
    /// The rank of the lock, or `None` if no user code runs under it.
    rank: Option<Rank>,
    /// True if every operation needs the current time: times are kept, the queue has a pace, adds restart runs, or
    /// events are recorded.
    pub(super) always_needs_now: bool,
    /// True if events are recorded.
    is_recording: bool,
    /// True if an add restarts the run in flight of its key.
    pub(super) restarts: bool,
    /// True if each release of the lock calls hooks or wakes restarted runs.
    has_news: bool,
    /// True if the fast paths of gets apply: the queue has no custom order and no pace.
    pub(super) has_fast_gets: bool,
    /// True if a parked thread can keep a deadline of this clock. The value is read once, because the clock is user
    /// code, and the value may be needed under the lock.
    pub(super) is_real_time: bool,
}

/// Counters that the state machine does not keep. No memory ordering depends on these counters.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) given_up: AtomicU64,
    pub(crate) panics: AtomicU64,
}

impl<K: Key> Shared<K> {
    pub(super) fn new(
        config: core::Config<K>,
        clock: Arc<dyn Clock>,
        limiter: LockedLimiter<K>,
        hooks: Option<Arc<dyn QueueMetrics<K>>>,
        name: Option<Arc<str>>,
        #[cfg(feature = "opentelemetry")] traces: Option<Box<Traces<K>>>,
    ) -> Arc<Self> {
        let has_order = matches!(config.order, core::Order::Custom(_));
        let rank = (has_order || !has_plain_code::<K>()).then_some(Rank::Queue);
        let has_fast_gets = !has_order && config.pace.is_none();
        let core = core::Queue::new(config);
        let restarts = core.restarts();
        // An empty queue has no deadlines. If the check of deadlines nevertheless needs the time, every operation needs
        // the time.
        let always_needs_now = core.needs_now(Operation::Promote);
        let facts = Facts {
            rank,
            always_needs_now,
            is_recording: core.is_recording(),
            restarts,
            has_news: restarts || hooks.is_some(),
            has_fast_gets,
            is_real_time: clock.is_real_time(),
        };
        let state = State {
            core,
            waiters: Waiters::new(),
            drainers: Drainers::default(),
            watchers: Watchers::default(),
            shut_downs: 0,
            dropped: DroppedKeys::new(),
            due_alarm: DueAlarm {
                alarm: Alarm::none(),
                armed: Time::NEVER,
                arming: false,
                arm_again: false,
            },
            watch: None,
            hint: always_needs_now,
            reported: None,
        };
        // This counter is not one of loom's primitives, because no memory ordering depends on it.
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Arc::new_cyclic(|this| Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            state: RankedMutex::new(state),
            hint: AtomicBool::new(always_needs_now),
            go: AtomicBool::new(false),
            has_reasons: std::sync::atomic::AtomicBool::new(false),
            facts,
            clock,
            limiter,
            hooks,
            name,
            tally: Tally::default(),
            #[cfg(feature = "opentelemetry")]
            traces,
            this: Weak::clone(this),
            timer: OnceLock::new(),
        })
    }

    /// Notes that an add has a reason, before its lock is taken.
    #[cold]
    pub(super) fn expect_reasons(&self) {
        self.has_reasons.store(true, Ordering::Relaxed);
    }

    /// Returns the reasons of the run of a delivery.
    #[inline]
    pub(super) fn run_reasons(&self, ticket: &core::Ticket) -> Reasons {
        if !self.has_reasons.load(Ordering::Relaxed) {
            return Reasons::default();
        }
        self.lock().map_or_else(|_| Reasons::default(), |state| state.core.run_reasons(ticket))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Result<RankedGuard<'_, State<K>>, Reentered> {
        self.state.lock(self.facts.rank)
    }
}

// --- Reading the clock --------------------------------------------------------------------------

impl<K: Key> Shared<K> {
    /// Acquires the lock. Also reads the clock if `operation` needs the time and the caller has not
    /// read the clock. The clock is read without the lock, because it may be user code.
    #[inline(always)]
    pub(super) fn lock_for(
        &self,
        operation: Operation<'_>,
        now: Option<Time>,
    ) -> Result<(RankedGuard<'_, State<K>>, Time), Reentered> {
        let now = self.now_before_lock(operation, now);
        let state = self.lock()?;
        if let Some(now) = state.time_for(operation, now) {
            return Ok((state, now));
        }
        // The clock is user code, so it is not called under the lock. While the lock is released, another thread may
        // acquire it, as if this call had begun later.
        drop(state);
        let now = self.clock.now();
        Ok((self.lock()?, now))
    }

    /// Acquires the lock for an operation that has no time. Only the recording needs the time.
    pub(super) fn lock_to_change(&self) -> Result<RankedGuard<'_, State<K>>, Reentered> {
        let now = self.facts.is_recording.then(|| self.clock.now());
        let mut state = self.lock()?;
        if let Some(now) = now {
            state.core.observe(now);
        }
        Ok(state)
    }

    /// Reads the clock before the lock is taken, if `operation` needs or probably needs the time,
    /// and the caller has not read the clock.
    #[inline(always)]
    pub(super) fn now_before_lock(
        &self,
        operation: Operation<'_>,
        now: Option<Time>,
    ) -> Option<Time> {
        let is_likely = match operation {
            // The hint is also set if every operation needs the time.
            Operation::Add(_) => self.hint.load(Ordering::Relaxed),
            _ => self.facts.always_needs_now,
        };
        match now {
            None if is_likely || operation.always_needs_now() => Some(self.clock.now()),
            now => now,
        }
    }
}

impl<K: Eq + Clone> State<K> {
    /// Returns the time to pass to `operation`: `now` if the clock was read, or any time if `operation` does not need
    /// the time. `None` means that the clock must be read, without the lock.
    #[inline(always)]
    pub(super) fn time_for(&self, operation: Operation<'_>, now: Option<Time>) -> Option<Time> {
        match now {
            None if self.core.needs_now(operation) => None,
            now => Some(now.unwrap_or_default()),
        }
    }
}

impl<K: Key> Shared<K> {
    // --- Release --------------------------------------------------------------------------------

    /// Releases the lock, and then wakes getters, arms the alarm and calls the hooks, as the
    /// changes under the lock require.
    #[inline(always)]
    pub(crate) fn release_lock(&self, mut state: RankedGuard<'_, State<K>>) {
        let hint = state.core.needs_now(Operation::Promote);
        if state.hint != hint {
            state.hint = hint;
            // A relaxed store suffices, because an old hint only costs time. An equal hint is not
            // stored again, so that it stays in the caches of adding threads.
            self.hint.store(hint, Ordering::Relaxed);
        }
        if state.waiters.is_spinning() && state.core.eligible() > 0 {
            // A relaxed store suffices, because the spinning thread then acquires the lock.
            self.go.store(true, Ordering::Relaxed);
        }
        if state.waiters.is_empty() && state.drainers.is_empty() && !self.facts.has_news {
            drop(state);
        } else {
            self.release_and_notify(state);
        }
    }

    #[inline(never)]
    fn release_and_notify(&self, mut state: RankedGuard<'_, State<K>>) {
        if self.facts.restarts {
            return self.release_and_wake_restarted(state);
        }
        // The events are counted under the lock and reported without it, because hooks are user
        // code.
        let events = self.hooks.as_ref().map(|hooks| (hooks, state.unreported_events()));
        if state.waiters.is_empty() && state.drainers.is_empty() {
            drop(state);
        } else {
            self.notify_and_arm(state);
        }
        if let Some((hooks, events)) = events {
            events.call_hooks(&**hooks);
        }
    }

    /// Like `release_and_notify`, in a queue in which adds restart runs.
    #[cold]
    fn release_and_wake_restarted(&self, mut state: RankedGuard<'_, State<K>>) {
        let events = self.hooks.as_ref().map(|hooks| (hooks, state.unreported_events()));
        let mut wakes = Wakes::new();
        for epoch in state.core.take_restarted() {
            state.watchers.take_wakers(epoch, &mut wakes);
        }
        self.notify_and_arm(state);
        wakes.wake_each();
        if let Some((hooks, events)) = events {
            events.call_hooks(&**hooks);
        }
    }

    fn notify_and_arm(&self, mut state: RankedGuard<'_, State<K>>) {
        let mut wakes = Wakes::new();
        let State { core, waiters, drainers, watchers, due_alarm, watch, .. } = &mut *state;
        if core.ending() != core::Ending::Open {
            if core.is_finished() {
                waiters.wake_all(true, &mut wakes);
            } else if core.is_exhausted() {
                waiters.wake_all(false, &mut wakes);
            }
        }
        drainers.finish_reached(core).for_each(|waker| wakes.push(waker));
        let eligible = core.eligible();
        waiters.wake_for(eligible, &mut wakes);
        let unused = waiters.unused_wake(eligible).filter(|_| watch.is_none());
        if let Some(wake) = unused {
            *watch = Some(Box::new(Watch { wake, alarm: None, fired: false }));
        }
        let mut arm = false;
        if (!waiters.is_empty() || watches_restarts(core, watchers))
            && let Some(due) = core.next_due()
        {
            waiters.keep_time(due).into_iter().for_each(|waker| wakes.push(waker));
            // A parked thread can keep only deadlines of a clock that follows real time. Any other
            // clock needs an alarm.
            arm = due < due_alarm.armed && !(waiters.has_threads() && self.facts.is_real_time);
        }
        // The lock is released first, because wakers and the clock are user code, which may call
        // this queue.
        drop(state);
        wakes.wake_each();
        if arm {
            self.arm_alarm();
        }
        if let Some(wake) = unused {
            self.watch_tasks(wake);
        }
    }

    // --- Alarms ---------------------------------------------------------------------------------

    /// Arms the alarm for the earliest due time, if getters wait for it and no thread keeps the
    /// time.
    ///
    /// The clock arms the alarm outside the lock. If several threads want to arm an alarm, or if an alarm goes off
    /// while it is being armed, one thread arms it and checks once more. If alarms repeatedly go off while they are
    /// being armed, the waiting getters poll the clock instead of this thread.
    fn arm_alarm(&self) {
        for _ in 0..8 {
            let Ok(mut state) = self.lock() else { return };
            if state.due_alarm.arming {
                state.due_alarm.arm_again = true;
                return;
            }
            let due = state.core.next_due().filter(|&due| due < state.due_alarm.armed);
            let (Some(due), true) = (due, state.needs_alarm()) else { return };
            // These values are set before the lock is released, so only one thread at a time arms
            // the alarm.
            state.due_alarm.armed = due;
            (state.due_alarm.arming, state.due_alarm.arm_again) = (true, false);
            drop(state);
            let alarm = quietly(|| self.clock.arm(due, self.timer_waker()));
            let Ok(mut state) = self.lock() else { return };
            state.due_alarm.arming = false;
            if alarm.is_none() {
                // A clock that panics has armed no alarm. The next caller tries again.
                state.due_alarm.armed = Time::NEVER;
            }
            let old = std::mem::replace(&mut state.due_alarm.alarm, alarm.unwrap_or_default());
            let again = state.due_alarm.arm_again;
            drop(state);
            drop_quietly(old);
            if !again {
                return;
            }
        }
        let Ok(mut state) = self.lock() else { return };
        let mut wakes = Wakes::new();
        state.waiters.wake_all(true, &mut wakes);
        drop(state);
        wakes.wake_each();
    }

    fn timer_waker(&self) -> &Waker {
        self.timer.get_or_init(|| self.alarm_waker(Self::promote_due))
    }

    fn alarm_waker(&self, on_alarm: fn(&Self)) -> Waker {
        let shared = Weak::clone(&self.this);
        waker_fn(move || {
            if let Some(shared) = shared.upgrade() {
                on_alarm(&shared);
            }
        })
    }

    /// Handles the alarm, which may go off early. Makes due keys ready, on the thread that drives
    /// the clock. A getter therefore gets its key even if no other getter is polled.
    fn promote_due(&self) {
        loop {
            let now = self.clock.now();
            let Ok(mut state) = self.lock() else { return };
            // The alarm has gone off, so the next release of the lock may arm another alarm.
            state.due_alarm.armed = Time::NEVER;
            if !state.needs_alarm() {
                // The next getter checks for due keys itself.
                return;
            }
            state.core.promote(now, LOCK_BATCH);
            let more = state.core.next_due().is_some_and(|due| due <= now);
            self.release_lock(state);
            if !more {
                return;
            }
        }
    }

    /// Arms an alarm that watches over the tasks that hold the wakes up to `wake`. Only one such
    /// alarm is armed at a time, so a busy queue arms at most one alarm per [`GRACE`].
    #[cold]
    fn watch_tasks(&self, wake: u64) {
        let waker = self.alarm_waker(Self::wake_others);
        let alarm = quietly(|| self.clock.arm_watchdog(self.clock.now() + GRACE, &waker));
        let Ok(mut state) = self.lock() else { return };
        let mut wakes = Wakes::new();
        let unused = match (state.watch.as_mut().filter(|watch| watch.wake == wake), alarm) {
            (Some(watch), Some(alarm)) if !watch.fired => {
                watch.alarm = Some(alarm);
                None
            }
            // A clock that panics or wakes immediately cannot watch over tasks.
            (Some(_), alarm) => {
                state.watch = None;
                state.waiters.wake_all(true, &mut wakes);
                alarm
            }
            (None, alarm) => alarm,
        };
        drop(state);
        wakes.wake_each();
        drop_quietly(unused);
    }

    /// Handles the end of the grace period of the watched tasks. If the tasks have not been polled,
    /// wakes other tasks instead.
    fn wake_others(&self) {
        let Ok(mut state) = self.lock() else { return };
        if let Some(watch) = &mut state.watch
            && watch.alarm.is_none()
        {
            // `watch_tasks` handles the alarm. Otherwise, the two methods could call each other
            // recursively without end.
            watch.fired = true;
            return;
        }
        let watch = state.watch.take();
        if let Some(watch) = &watch {
            state.waiters.give_back(watch.wake);
        }
        self.release_lock(state);
        drop_quietly(watch);
    }
}

impl<K: Key> Drop for Shared<K> {
    fn drop(&mut self) {
        if !std::mem::needs_drop::<K>() {
            return;
        }
        // Each key is dropped separately, so that a key that panics does not prevent the drop of the next key. If two
        // keys panicked while one collection was dropped, the process would abort.
        let state = self.state.get_mut();
        let core = std::mem::replace(&mut state.core, core::Queue::new(core::Config::default()));
        let dropped = std::mem::replace(&mut state.dropped, DroppedKeys::new());
        core.into_keys().chain(dropped.into_keys()).for_each(drop_quietly);
    }
}

/// Returns true if keys of this type run no code that could call the queue while it is locked. This function knows the
/// most common types of keys.
fn has_plain_code<K: 'static>() -> bool {
    fn is_one_of<K: 'static>(types: &[TypeId]) -> bool {
        types.contains(&TypeId::of::<K>())
    }
    macro_rules! is_any {
        ($($of:ty),*) => { is_one_of::<K>(&[$(TypeId::of::<$of>()),*]) };
    }
    is_any!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, char, bool, ())
        || is_any!(&'static str, String, Box<str>, std::sync::Arc<str>, (String, String))
}
