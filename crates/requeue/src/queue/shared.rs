//! The state that all handles share, its lock, and the work after the release of the lock.
//!
//! Wakers, hooks and the clock are user code, so they are called only after the lock is released.

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

/// The maximum number of keys that are delivered, dropped or copied before the lock is released.
pub(super) const LOCK_BATCH: usize = 256;

/// The state that the lock guards.
pub(crate) struct State<K> {
    pub(crate) core: core::Queue<K>,
    pub(super) waiters: Waiters,
    pub(super) drainers: Drainers,
    pub(super) watchers: Watchers,
    /// The number of calls of `shut_down`. Each call ends the wait of the drains that were created
    /// before.
    pub(super) shut_downs: u64,
    /// The keys whose pending runs were dropped after the shutdown, for example because they
    /// failed.
    pub(super) dropped: DroppedKeys<K>,
    due_alarm: DueAlarm,
    /// Present while an alarm watches over a task that was woken and has not yet been polled.
    watch: Option<Box<Watch>>,
    /// The last value that was written to `Shared::hint`.
    hint: bool,
    /// The events that the hooks have already received. It is in a box, because few queues have
    /// hooks.
    reported: Option<Box<Events>>,
}

impl<K: Eq + Clone> State<K> {
    /// Returns true if due keys must become ready without an operation. This is the case if getters
    /// wait, or if a due add can restart a run.
    #[inline]
    fn needs_alarm(&self) -> bool {
        !self.waiters.is_empty() || watches_restarts(&self.core, &self.watchers)
    }

    /// Returns the events since the last call. An operation on one key often makes other keys
    /// ready, so the events need not be those of the present operation.
    fn unreported_events(&mut self) -> Events {
        let all = Events::read_totals(&self.core);
        all.events_since(std::mem::replace(&mut **self.reported.get_or_insert_default(), all))
    }
}

/// Returns true if a key that becomes due can wake one of `watchers`.
#[inline]
fn watches_restarts<K: Eq + Clone>(core: &core::Queue<K>, watchers: &Watchers) -> bool {
    core.restarts() && !watchers.is_empty()
}

/// The alarm for the earliest due time of a key.
struct DueAlarm {
    alarm: Alarm,
    /// The time of the alarm that is armed, or is being armed. [`Time::NEVER`] if there is none.
    armed: Time,
    /// True while a thread arms the alarm, which it does without the lock.
    arming: bool,
    /// True if this thread must check again when it has armed the alarm.
    arm_again: bool,
}

/// A wake that a task has received. The task must be polled before the time of the alarm.
struct Watch {
    wake: u64,
    /// The alarm, or `None` while a thread arms it.
    alarm: Option<Alarm>,
    /// True if the time of the alarm came while a thread was arming it.
    fired: bool,
}

/// The time within which a woken task must be polled, if other tasks wait for the same key.
const GRACE: Duration = Duration::from_millis(5);

/// The state that all handles of a queue share.
pub(crate) struct Shared<K: Key> {
    /// Identifies the queue within the process.
    pub(super) number: u64,
    state: RankedMutex<State<K>>,
    /// True if an add needs the time. It is only a hint: the caller of an add then reads the clock
    /// before it acquires the lock.
    hint: AtomicBool,
    /// True if there is a key for the spinning thread. It is only a hint.
    pub(super) go: AtomicBool,
    /// True if an add has had a reason. It is set before that add acquires the lock, so that its
    /// run reads the new value. It need not be a type of loom, because the lock orders the
    /// accesses.
    has_reasons: std::sync::atomic::AtomicBool,
    pub(super) facts: Facts,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limiter: LockedLimiter<K>,
    pub(crate) hooks: Option<Arc<dyn QueueMetrics<K>>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) tally: Tally,
    /// The trace contexts of keys, if the queue creates spans.
    #[cfg(feature = "opentelemetry")]
    pub(super) traces: Option<Box<Traces<K>>>,
    /// A weak reference to this value. Its upgrade succeeds as long as anything borrows from the
    /// queue, because a handle then exists.
    pub(super) this: Weak<Self>,
    timer: OnceLock<Waker>,
}

/// Properties of a queue that follow from its settings and never change.
pub(super) struct Facts {
    /// The rank of the lock. `None` if no user code runs under the lock.
    rank: Option<Rank>,
    /// True if every operation needs the time: the queue tracks times, has a pace, restarts runs,
    /// or records events.
    pub(super) always_needs_now: bool,
    /// True if the queue records events.
    is_recording: bool,
    /// True if an add restarts the run in flight of its key.
    pub(super) restarts: bool,
    /// True if each release of the lock must call hooks, or wake the workers of restarted runs.
    has_news: bool,
    /// True if the fast paths of gets apply: the queue has no custom order and no pace.
    pub(super) has_fast_gets: bool,
    /// True if a parked thread can wake itself at a deadline, because the clock follows real time.
    /// The value is stored, because the clock is user code, and the value is needed under the lock.
    pub(super) is_real_time: bool,
}

/// Counters that are not part of the state machine. No memory ordering depends on them.
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
        // An empty queue has no deadlines. If `promote` needs the time even in an empty queue,
        // every operation needs the time.
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
        // This counter need not be a type of loom, because no memory ordering depends on it.
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

    /// Stores that an add has a reason. The caller calls this function before it acquires the lock
    /// for this add.
    #[cold]
    pub(super) fn expect_reasons(&self) {
        self.has_reasons.store(true, Ordering::Relaxed);
    }

    /// Returns the reasons of the run of this delivery.
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
    /// Acquires the lock. If `operation` needs the time and the caller has not read the clock, also
    /// reads it. The clock is read without the lock, because it may be user code.
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
        // The clock is user code, so it must not be called under the lock. Another thread may
        // acquire the lock in the meantime, as if this call had begun later.
        drop(state);
        let now = self.clock.now();
        Ok((self.lock()?, now))
    }

    /// Acquires the lock for an operation without a parameter `now`. Only the recorder needs the
    /// time of such an operation.
    pub(super) fn lock_to_change(&self) -> Result<RankedGuard<'_, State<K>>, Reentered> {
        let now = self.facts.is_recording.then(|| self.clock.now());
        let mut state = self.lock()?;
        if let Some(now) = now {
            state.core.observe(now);
        }
        Ok(state)
    }

    /// Reads the clock before the caller acquires the lock, if `operation` needs the time or is
    /// likely to need it, and the caller has not read the clock.
    #[inline(always)]
    pub(super) fn now_before_lock(
        &self,
        operation: Operation<'_>,
        now: Option<Time>,
    ) -> Option<Time> {
        let is_likely = match operation {
            // The hint is also true if every operation needs the time.
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
    /// Returns the time to pass to `operation`. This is `now` if the clock was read, or any time if
    /// `operation` does not need the time. `None` means that the caller must release the lock and
    /// read the clock.
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

    /// Releases the lock. Then wakes getters, arms the alarm and calls the hooks, as the changes
    /// under the lock require.
    #[inline(always)]
    pub(crate) fn release_lock(&self, mut state: RankedGuard<'_, State<K>>) {
        let hint = state.core.needs_now(Operation::Promote);
        if state.hint != hint {
            state.hint = hint;
            // A relaxed store is sufficient, because an old hint only costs time. The hint is not
            // stored if it is unchanged, so that it stays in the caches of threads that add keys.
            self.hint.store(hint, Ordering::Relaxed);
        }
        if state.waiters.is_spinning() && state.core.eligible() > 0 {
            // A relaxed store is sufficient, because the spinning thread then acquires the lock.
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
        // The events are counted under the lock. The hooks are called without the lock, because
        // they are user code.
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

    /// Like `release_and_notify`, for a queue in which adds restart runs.
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
            // A parked thread can wake itself at a deadline only if the clock follows real time.
            // Otherwise, an alarm is needed.
            arm = due < due_alarm.armed && !(waiters.has_threads() && self.facts.is_real_time);
        }
        // The lock is released first. Wakers and the clock are user code, which may call this
        // queue.
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

    /// Arms the alarm for the earliest due time, if getters wait and no thread will wake itself at
    /// that time.
    ///
    /// The alarm is armed without the lock. If several threads want to arm it, or its time comes
    /// while it is being armed, one thread arms it and then checks again. If the time has come in
    /// all attempts, this thread wakes all getters, which then poll the clock themselves.
    fn arm_alarm(&self) {
        for _ in 0..8 {
            let Ok(mut state) = self.lock() else { return };
            if state.due_alarm.arming {
                state.due_alarm.arm_again = true;
                return;
            }
            let due = state.core.next_due().filter(|&due| due < state.due_alarm.armed);
            let (Some(due), true) = (due, state.needs_alarm()) else { return };
            // These values are set before the lock is released, so that only one thread at a time
            // arms the alarm.
            state.due_alarm.armed = due;
            (state.due_alarm.arming, state.due_alarm.arm_again) = (true, false);
            drop(state);
            let alarm = quietly(|| self.clock.arm(due, self.timer_waker()));
            let Ok(mut state) = self.lock() else { return };
            state.due_alarm.arming = false;
            if alarm.is_none() {
                // If the clock panics, no alarm is armed. The next caller tries again.
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

    /// Called when the time of the alarm has come, or earlier. Makes due keys ready, on the thread
    /// that drives the clock. A getter therefore gets its key even if no other getter is polled.
    fn promote_due(&self) {
        loop {
            let now = self.clock.now();
            let Ok(mut state) = self.lock() else { return };
            // This alarm is used up, so the next release of the lock may arm another one.
            state.due_alarm.armed = Time::NEVER;
            if !state.needs_alarm() {
                // No getter waits. The next getter makes due keys ready itself.
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

    /// Arms an alarm that watches over the tasks with the wakes up to number `wake`. Only one such
    /// alarm is armed at a time. A busy queue therefore arms at most one alarm per [`GRACE`].
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
            // A clock that panics, or that wakes immediately, cannot watch over tasks. All getters
            // are woken instead.
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

    /// Called when the grace period of the watched tasks has ended. If they have not been polled,
    /// wakes other tasks instead.
    fn wake_others(&self) {
        let Ok(mut state) = self.lock() else { return };
        if let Some(watch) = &mut state.watch
            && watch.alarm.is_none()
        {
            // `watch_tasks` is still arming this alarm, and handles it. Otherwise, the two methods
            // could call each other without end.
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
        // Each key is dropped separately, so that all keys are dropped even if one panics. If two
        // keys panicked while one collection was dropped, the process would abort.
        let state = self.state.get_mut();
        let core = std::mem::replace(&mut state.core, core::Queue::new(core::Config::default()));
        let dropped = std::mem::replace(&mut state.dropped, DroppedKeys::new());
        core.into_keys().chain(dropped.into_keys()).for_each(drop_quietly);
    }
}

/// Returns true if the code of this type of key certainly does not call a queue. The function knows
/// only the most common types of keys.
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
