//! The one lock, what is done under it, and what is done after it.

use std::any::TypeId;
use std::task::{Wake, Waker};
use std::time::Duration;

use requeue_core::{self as core, HandOut, Time};

use super::Item;
use super::hooks::Told;
use super::limits::Limits;
use super::lost::Lost;
use super::waiters::{Kind, Place, Waiters, Wakes};
use crate::Key;
use crate::clock::{Alarm, Clock};
use crate::metrics::QueueMetrics;
use crate::sync::{
    Arc, AtomicBool, AtomicU64, Guarded, Held, OnceLock, Ordering, Reentered, Weak, drop_quietly,
    park, park_timeout, park_warily, quietly,
};

/// How many keys are handed out, dropped or copied under one hold of the lock.
pub(super) const SLICE: usize = 256;

/// How soon a parked thread looks again that waits for a clock which does not go by real time.
const LOOK: Duration = Duration::from_millis(10);

/// What the lock guards.
pub(crate) struct State<K> {
    pub(crate) core: core::Queue<K>,
    pub(super) waiters: Waiters,
    /// Those who wait until the queue is drained.
    pub(super) drainers: Vec<(u64, Waker)>,
    pub(super) drainer: u64,
    /// How often `shut_down` was called: it ends a drain that came before.
    pub(super) shut_downs: u64,
    /// Keys that were dropped after the ending, by failures and the like.
    pub(super) lost: Lost<K>,
    alarm: Alarm,
    /// What the alarm is armed for, or is being armed for.
    armed: Time,
    /// Whether a thread is arming it, and whether it has to look once more.
    arming: bool,
    arm_again: bool,
    /// What `Shared::hint` says.
    hint: bool,
    /// What the hooks were told so far.
    pub(super) told: Told,
}

/// What all handles of a queue share.
pub(crate) struct Shared<K: Key> {
    /// Tells the queues of a process apart.
    pub(super) number: u64,
    state: Guarded<State<K>>,
    /// Whether an add needs the time, so that it can be read before the lock is taken. A hint.
    hint: AtomicBool,
    /// Whether times are kept: then every operation needs its own.
    pub(super) tracks: bool,
    /// Whether it has an order of the user's own.
    has_order: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits<K>,
    pub(crate) hooks: Option<Arc<dyn QueueMetrics>>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) given_up: AtomicU64,
    pub(crate) panics: AtomicU64,
    this: Weak<Self>,
    timer: OnceLock<Waker>,
}

/// The lock, and the key that was taken under it.
type Taken<'a, K> = (Held<'a, State<K>>, Option<HandOut<K>>);

/// What a new queue is made of.
pub(super) struct Parts<K: Key> {
    pub(super) config: core::Config<K>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Limits<K>,
    pub(super) hooks: Option<Arc<dyn QueueMetrics>>,
    pub(super) name: Option<Arc<str>>,
}

impl<K: Key> Shared<K> {
    pub(super) fn new(parts: Parts<K>) -> Arc<Self> {
        let has_order = matches!(parts.config.order, core::Order::Custom(_));
        let watched = has_order || !has_plain_code::<K>();
        let tracks = parts.config.track;
        let core = core::Queue::new(parts.config);
        let hint = core.add_needs_now();
        let state = State {
            core,
            waiters: Waiters::new(),
            drainers: Vec::new(),
            drainer: 0,
            shut_downs: 0,
            lost: Lost::new(),
            alarm: Alarm::none(),
            armed: Time::NEVER,
            arming: false,
            arm_again: false,
            hint,
            told: Told::default(),
        };
        // No primitive of the queue's: nothing is ordered by it.
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Arc::new_cyclic(|this| Self {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            state: Guarded::new(state, watched),
            hint: AtomicBool::new(hint),
            tracks,
            has_order,
            clock: parts.clock,
            limits: parts.limits,
            hooks: parts.hooks,
            name: parts.name,
            given_up: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            this: Weak::clone(this),
            timer: OnceLock::new(),
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Result<Held<'_, State<K>>, Reentered> {
        self.state.lock()
    }

    /// The time, if an operation that adds is likely to need it.
    #[inline]
    pub(super) fn hinted_now(&self) -> Option<Time> {
        self.hint.load(Ordering::Relaxed).then(|| self.clock.now())
    }

    /// Takes the lock, with the time read before if `needs` says so of what it guards.
    #[inline]
    pub(super) fn lock_at(
        &self,
        now: Option<Time>,
        needs: impl Fn(&core::Queue<K>) -> bool,
    ) -> Result<(Held<'_, State<K>>, Time), Reentered> {
        let now = now.or_else(|| self.tracks.then(|| self.clock.now()));
        self.at(self.lock()?, now, needs)
    }

    /// The time for what is to be done under the lock, which is let go while a clock is read.
    #[inline]
    pub(super) fn at<'a>(
        &'a self,
        state: Held<'a, State<K>>,
        now: Option<Time>,
        needs: impl Fn(&core::Queue<K>) -> bool,
    ) -> Result<(Held<'a, State<K>>, Time), Reentered> {
        match now {
            Some(now) => Ok((state, now)),
            None if needs(&state.core) => {
                drop(state);
                let now = self.clock.now();
                Ok((self.lock()?, now))
            }
            None => Ok((state, Time::ZERO)),
        }
    }

    /// Releases the lock, and does what has come up meanwhile: wakes getters, sets the alarm, tells
    /// the hooks.
    #[inline(always)]
    pub(super) fn release(&self, mut state: Held<'_, State<K>>) {
        let hint = state.core.add_needs_now();
        if state.hint != hint {
            state.hint = hint;
            self.hint.store(hint, Ordering::Relaxed);
        }
        if state.waiters.is_empty() && state.drainers.is_empty() && self.hooks.is_none() {
            drop(state);
        } else {
            self.release_with_news(state);
        }
    }

    #[inline(never)]
    fn release_with_news(&self, mut state: Held<'_, State<K>>) {
        let news = self.hooks.as_ref().map(|hooks| (hooks, state.news()));
        if state.waiters.is_empty() && state.drainers.is_empty() {
            drop(state);
        } else {
            self.settle(state);
        }
        if let Some((hooks, news)) = news {
            news.tell(&**hooks);
        }
    }

    fn settle(&self, mut state: Held<'_, State<K>>) {
        let mut wakes = Wakes::new();
        let State { core, waiters, drainers, armed, .. } = &mut *state;
        if core.ending() != core::Ending::Open {
            if core.is_finished() {
                waiters.wake_all(true, &mut wakes);
            } else if core.is_exhausted() {
                waiters.wake_all(false, &mut wakes);
            }
            if core.is_drained() {
                drainers.drain(..).for_each(|(_, waker)| wakes.push(waker));
            }
        }
        waiters.wake_for(core.eligible(), &mut wakes);
        let mut arm = false;
        if !waiters.is_empty()
            && let Some(due) = core.next_due()
        {
            waiters.keep_time(due).into_iter().for_each(|waker| wakes.push(waker));
            // A parked thread knows real time only; another clock has to be asked to wake.
            arm = due < *armed && !(waiters.has_threads() && self.clock.is_real_time());
        }
        drop(state);
        wakes.wake();
        if arm {
            self.arm();
        }
    }

    // --- Time -----------------------------------------------------------------------------------

    /// Sets the alarm for the earliest due time, if somebody waits for it and no thread keeps it.
    ///
    /// Arming is the clock's business and happens outside the lock; of several threads that want
    /// to, or an alarm that goes off while it is being armed, one does it and looks once more.
    /// Where alarms keep going off as they are armed, those who wait look at the clock all the time,
    /// not whoever happens to be here.
    fn arm(&self) {
        for _ in 0..8 {
            let Ok(mut state) = self.lock() else { return };
            if state.arming {
                state.arm_again = true;
                return;
            }
            let due = state.core.next_due().filter(|&due| due < state.armed);
            let (Some(due), false) = (due, state.waiters.is_empty()) else { return };
            (state.armed, state.arming, state.arm_again) = (due, true, false);
            drop(state);
            let alarm = quietly(|| self.clock.arm(due, self.timer()));
            let Ok(mut state) = self.lock() else { return };
            state.arming = false;
            if alarm.is_none() {
                // A clock that panics has armed nothing: whoever comes next tries again.
                state.armed = Time::NEVER;
            }
            let old = std::mem::replace(&mut state.alarm, alarm.unwrap_or_default());
            let again = state.arm_again;
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
        wakes.wake();
    }

    fn timer(&self) -> &Waker {
        self.timer.get_or_init(|| Waker::from(Arc::new(Timer(Weak::clone(&self.this)))))
    }

    /// The alarm has gone off, perhaps too early: makes what is due ready, in the thread that
    /// drives the clock, so that no getter has to be polled for another to be served.
    fn tick(&self) {
        loop {
            let now = self.clock.now();
            let Ok(mut state) = self.lock() else { return };
            state.armed = Time::NEVER;
            if state.waiters.is_empty() {
                // Whoever comes next looks for itself.
                return;
            }
            state.core.promote(now, SLICE);
            let more = state.core.next_due().is_some_and(|due| due <= now);
            self.release(state);
            if !more {
                return;
            }
        }
    }

    // --- Getting --------------------------------------------------------------------------------

    /// Takes the next key where there is nothing to be asked before, as mostly. What it finds is
    /// final; `None` leaves it to [`take`](Self::take). The two don't share their results' memory:
    /// a key that is written and read again at once, in larger pieces, waits for the first to be
    /// done.
    #[inline(always)]
    pub(super) fn take_plain(&self) -> Option<Option<HandOut<K>>> {
        if self.has_order {
            return None;
        }
        let now = self.tracks.then(|| self.clock.now());
        let mut state = self.lock().ok()?;
        if now.is_none() && state.core.get_needs_now() {
            return None;
        }
        let taken = state.core.get(now.unwrap_or_default());
        // With a time, more may be due than one look makes ready.
        if now.is_some() && taken.is_none() {
            return None;
        }
        self.release(state);
        Some(taken)
    }

    /// As `take_plain`, of up to `max` keys under one hold of the lock. `false`: it is to be left to
    /// [`take`](Self::take), and nothing was taken.
    pub(super) fn take_many_plain<'q>(&'q self, items: &mut Vec<Item<'q, K>>, max: usize) -> bool {
        let Ok(mut state) = self.lock() else { return true };
        if self.has_order || self.hooks.is_some() || state.core.get_needs_now() {
            return false;
        }
        for _ in 0..max {
            let Some(out) = state.core.get(Time::ZERO) else { break };
            items.push(Item::lent(self, out));
            if state.core.get_needs_now() {
                break;
            }
        }
        self.release(state);
        true
    }

    /// Takes the next key, if there is one, and leaves the lock to the caller.
    pub(super) fn take(&self, hash_of: &dyn Fn(&K) -> u64) -> Result<Taken<'_, K>, Reentered> {
        let (mut state, mut now) = self.lock_at(None, core::Queue::get_needs_now)?;
        loop {
            let mut again = false;
            let taken = if state.core.has_order() {
                let popped = state.core.get_by_order(now, hash_of);
                again = popped.again;
                if !popped.dropped.is_empty() {
                    drop(state);
                    popped.dropped.into_iter().for_each(drop_quietly);
                    state = self.lock()?;
                }
                popped.item
            } else {
                state.core.get(now)
            };
            // More keys were due than one call makes ready, and none of them could leave.
            let more_due =
                || !state.core.is_paused() && state.core.next_due().is_some_and(|due| due <= now);
            if taken.is_some() || !(again || more_due()) {
                return Ok((state, taken));
            }
            self.release(state);
            now = self.clock.now();
            state = self.lock()?;
        }
    }

    /// One look of a waiting getter: a key, the end, or a place among the waiting.
    pub(super) fn look(
        &self,
        wait: &mut Wait,
        waker: &Waker,
        hash_of: &dyn Fn(&K) -> u64,
    ) -> Look<K> {
        // A waker's `clone` is the user's code: not under the lock, and not where a key is at hand.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.take(hash_of) else {
                // A key's own code waits for a key: nobody could ever hand it one.
                return Look::Ended;
            };
            let core = &state.core;
            let ended = if wait.patient { core.is_finished() } else { core.is_exhausted() };
            if taken.is_some() || ended {
                let old = state.waiters.leave(&mut wait.place);
                self.release(state);
                drop_quietly(old);
                drop_quietly(fresh);
                return taken.map_or(Look::Ended, Look::Key);
            }
            if state.waiters.is_listed_with(wait.place, waker) {
                break (state, None);
            }
            if let Some(waker) = fresh.take() {
                let old = state.waiters.wait(&mut wait.place, wait.kind, wait.patient, waker);
                break (state, old);
            }
            drop(state);
            fresh = Some(waker.clone());
        };
        let due = state.core.next_due().unwrap_or(Time::NEVER);
        let leads = wait.kind == Kind::Thread && state.waiters.lead(wait.place, due);
        self.release(state);
        drop_quietly(old);
        drop_quietly(fresh);
        Look::Wait { until: if leads { due } else { Time::NEVER } }
    }

    /// A handle that keeps the queue alive. There is one while anything borrows from it.
    pub(super) fn handle(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// Parks this thread until it is woken, or about `until`.
    pub(super) fn park(&self, until: Time) {
        if until == Time::NEVER {
            return park();
        }
        // A step of the clock, or a machine that slept, must not be slept through.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.clock.is_real_time() {
            park_timeout(left);
        } else {
            // Where time is not the machine's, the alarm wakes; unless its runtime is one that nobody
            // drives just now, so that the thread looks for itself now and then.
            park_warily(left.max(LOOK));
        }
    }

    /// A getter gives up waiting.
    pub(super) fn leave(&self, wait: &mut Wait) {
        if wait.place.is_none() {
            return;
        }
        let Ok(mut state) = self.lock() else { return };
        let old = state.waiters.leave(&mut wait.place);
        self.release(state);
        drop_quietly(old);
    }
}

impl<K: Key> Drop for Shared<K> {
    fn drop(&mut self) {
        if !std::mem::needs_drop::<K>() {
            return;
        }
        // One by one: a key that panics must not keep the next from being dropped, and two that
        // panic while a collection is dropped end the process.
        let Ok(mut state) = self.state.lock() else { return };
        let core = std::mem::replace(&mut state.core, core::Queue::new(core::Config::default()));
        let lost = std::mem::take(&mut state.lost);
        drop(state);
        core.into_keys().chain(lost.into_keys()).for_each(drop_quietly);
    }
}

/// Whether keys of this type have no code that could come back to the queue while it is locked:
/// one of the types that are keys mostly.
fn has_plain_code<K: 'static>() -> bool {
    fn any<K: 'static>(types: &[TypeId]) -> bool {
        types.contains(&TypeId::of::<K>())
    }
    macro_rules! is_any {
        ($($of:ty),*) => { any::<K>(&[$(TypeId::of::<$of>()),*]) };
    }
    is_any!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, char, bool, ())
        || is_any!(&'static str, String, Box<str>, std::sync::Arc<str>, (String, String))
}

/// A getter that may have to wait.
pub(super) struct Wait {
    place: Option<Place>,
    kind: Kind,
    /// Whether only a final `None` will do.
    patient: bool,
}

impl Wait {
    pub(super) const fn new(kind: Kind, patient: bool) -> Self {
        Self { place: None, kind, patient }
    }

    pub(super) const fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    pub(super) const fn is_thread(&self) -> bool {
        matches!(self.kind, Kind::Thread)
    }
}

/// What a getter finds.
pub(super) enum Look<K> {
    Key(HandOut<K>),
    Ended,
    /// It is in the list, and will be woken; a thread that keeps the time sleeps no longer than
    /// `until`.
    Wait {
        until: Time,
    },
}

/// The queue as the waker of its own alarm.
struct Timer<K: Key>(Weak<Shared<K>>);

impl<K: Key> Wake for Timer<K> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.tick();
        }
    }
}
