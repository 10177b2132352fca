//! The algorithm of a getter: check for a key, join the list of waiters, park.
//!
//! A getter is listed under the same hold of the lock under which it found no key, so it misses no
//! key that becomes ready later.
//! later is missed.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use requeue_core::{Delivery, Finish, Operation, Time};

use super::Queue;
use super::item::{Ended, Item};
use super::shared::{LOCK_BATCH, Shared, State};
use super::waiters::{Kind, Place};
use crate::Key;
use crate::clock::{Alarm, Clock};
use crate::ranked_mutex::{RankedGuard, Reentered};
use crate::sync::{
    Arc, Ordering, SPINS, Thread, current, drop_quietly, park, park_timeout, park_warily, quietly,
    spin_loop, thread_local,
};

/// The interval at which a parked thread checks again if the queue's clock does not follow real
/// time.
const LOOK: Duration = Duration::from_millis(10);

/// The lock, and the key that was taken under it.
type Taken<'a, K> = (RankedGuard<'a, State<K>>, Option<Delivery<K>>);

/// A getter that may wait.
pub(super) struct Wait {
    place: Option<Place>,
    kind: Kind,
    /// True if the getter waits until `None` is final.
    until_final: bool,
}

impl Wait {
    pub(super) const fn new(kind: Kind, until_final: bool) -> Self {
        Self { place: None, kind, until_final }
    }

    pub(super) const fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    pub(super) const fn is_thread(&self) -> bool {
        matches!(self.kind, Kind::Thread)
    }
}

/// The result of one check.
pub(super) enum Look<K> {
    Key(Delivery<K>),
    Ended,
    /// The thread must spin, and then check again.
    Spin,
    /// The getter is listed and will be woken. A thread that keeps the time must not sleep beyond
    /// `until`.
    Wait {
        until: Time,
    },
}

impl<K: Key> Shared<K> {
    /// Takes the next key in the common case, in which no user code runs and the clock is read
    /// before. The inner result is final. `None` means that the caller must call
    /// [`take`](Self::take).
    ///
    /// The two functions do not share the memory of their results: a processor that writes a key
    /// and reads it at once in larger pieces must wait until the write is done.
    #[inline(always)]
    pub(super) fn take_plain(&self) -> Option<Option<Delivery<K>>> {
        if self.has_order {
            return None;
        }
        let now = self.tracks.then(|| self.clock.now());
        let mut state = self.lock().ok()?;
        if now.is_none() && state.core.needs_now(Operation::Get) {
            return None;
        }
        let taken = state.core.get(now.unwrap_or_default());
        // More keys may be due than one call makes ready.
        if now.is_some() && taken.is_none() {
            return None;
        }
        self.release(state);
        Some(taken)
    }

    /// Takes up to `max` keys under one hold of the lock, like `take_plain`. Returns `false`, and
    /// takes nothing, if the caller must call [`take`](Self::take).
    pub(super) fn take_many_plain<'q>(&'q self, items: &mut Vec<Item<'q, K>>, max: usize) -> bool {
        if self.has_order || self.hooks.is_some() {
            return false;
        }
        let Ok(mut state) = self.lock() else { return true };
        if state.core.needs_now(Operation::Get) {
            return false;
        }
        for _ in 0..max {
            let Some(out) = state.core.get(Time::ZERO) else { break };
            items.push(Item::lent(self, out));
            if state.core.needs_now(Operation::Get) {
                break;
            }
        }
        self.release(state);
        true
    }

    /// Takes the next ready key, if there is one, and returns it with the lock.
    pub(super) fn take(&self, hash_of: &dyn Fn(&K) -> u64) -> Result<Taken<'_, K>, Reentered> {
        let (mut state, mut now) = self.lock_for(Operation::Get, None)?;
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
            // More keys were due than one call makes ready, and none of them could be delivered.
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

    /// Performs one check of a waiting getter: returns a key, or the end of the queue, or lists the
    /// getter.
    pub(super) fn look(
        &self,
        wait: &mut Wait,
        waker: &Waker,
        hash_of: &dyn Fn(&K) -> u64,
    ) -> Look<K> {
        // A waker's `clone` is user code. It runs outside the lock, and only if no key is ready.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.take(hash_of) else {
                // The code of a key waits for a key under the lock, so none could ever be delivered
                // to it.
                return Look::Ended;
            };
            let core = &state.core;
            let ended = if wait.until_final { core.is_finished() } else { core.is_exhausted() };
            if taken.is_some() || ended {
                let old = state.waiters.leave(&mut wait.place);
                self.release(state);
                drop_quietly(old);
                drop_quietly(fresh);
                return taken.map_or(Look::Ended, Look::Key);
            }
            if state.waiters.spin(&mut wait.place, wait.kind, wait.until_final) {
                self.go.store(false, Ordering::Relaxed);
                self.release(state);
                return Look::Spin;
            }
            if state.waiters.is_listed_with(wait.place, waker) {
                break (state, None);
            }
            if let Some(waker) = fresh.take() {
                let old = state.waiters.wait(&mut wait.place, wait.kind, wait.until_final, waker);
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

    /// Waits for less time than parking and waking a thread takes, or until there is a key. If a
    /// worker asks for the next key a moment before it is added, no thread must be woken. Waking a
    /// thread is the most expensive part of an add.
    pub(super) fn spin(&self) {
        for _ in 0..SPINS {
            if self.go.load(Ordering::Relaxed) {
                return;
            }
            spin_loop();
        }
    }

    /// Parks this thread until it is woken, or about `until`.
    pub(super) fn park(&self, until: Time) {
        if until == Time::NEVER {
            return park();
        }
        // The limit is for steps of the clock and suspended machines, so that the thread does not
        // oversleep.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.is_real_time {
            park_timeout(left);
        } else {
            // If time is not the machine's, the alarm wakes this thread. Nothing may be driving the
            // alarm's runtime at the moment, so the thread also checks from time to time.
            park_warily(left.max(LOOK));
        }
    }

    /// Removes a getter that no longer waits.
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

impl<K: Key> Shared<K> {
    /// Completes the delivery as `succeed` does, and takes the next key if both have a fast path.
    /// `None` means that the caller must check for a key.
    #[inline(always)]
    pub(super) fn succeed_and_take(&self, mut item: Item<'_, K>) -> Option<Delivery<K>> {
        if !item.is_of(self) || self.has_order {
            item.succeed();
            return None;
        }
        self.limiter.forget(&item);
        // Dropped after the lock is released, even if a key's `clone` panics under it.
        let mut ended = Ended::new();
        let how = Finish::Succeed;
        let locked = self.lock_for(Operation::Finish(item.ticket(), &how), None);
        let (mut state, now) = locked.ok()?;
        let Some(finished) = state.core.finish(item.ticket(), how, now) else {
            self.release(state);
            item.free();
            return None;
        };
        let (unused, worked) = state.keep_dropped(finished);
        ended.set(&mut item, unused);
        // If times are not kept, the clock was read for the completion at most, not for the get. A
        // drain must see the moment in which no key is in flight.
        let takes =
            (self.tracks || !state.core.needs_now(Operation::Get)) && state.drainers.is_empty();
        let taken = if takes { state.core.get(now) } else { None };
        self.release(state);
        if worked.is_some() {
            self.tell_worked(ended.key(), worked);
        }
        drop(ended);
        taken
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes ready keys until there are `max` items, or no more ready keys.
    pub(super) fn take_more<'q>(&'q self, items: Vec<Item<'q, K>>, max: usize) -> Vec<Item<'q, K>> {
        let mut taken = Slice { shared: &self.shared, items, outs: Vec::new() };
        taken.items.reserve(max.saturating_sub(taken.items.len()).min(32));
        while taken.items.len() < max {
            let before = taken.items.len();
            let room = (max - before).min(LOCK_BATCH);
            if !self.shared.take_many_plain(&mut taken.items, room) {
                let Ok((mut state, one)) = self.shared.take(&|key| self.hash(key)) else { break };
                taken.outs.extend(one);
                while (1..room).contains(&taken.outs.len())
                    && !state.core.has_order()
                    && !state.core.needs_now(Operation::Get)
                    && let Some(out) = state.core.get(Time::ZERO)
                {
                    taken.outs.push(out);
                }
                self.shared.release(state);
                let Slice { shared, items, outs } = &mut taken;
                items.extend(outs.drain(..).map(|out| Item::lent(*shared, out)));
            }
            if taken.items.len() == before {
                break;
            }
        }
        std::mem::take(&mut taken.items)
    }

    pub(super) fn block(&self, deadline: Option<Time>, until_final: bool) -> Option<Delivery<K>> {
        let mut waiting = Waiting::new(self, Kind::Thread, until_final);
        waiting.deadline = deadline;
        THREAD.with(|waker| {
            loop {
                match waiting.look(waker) {
                    Ok(answer) => return answer,
                    Err(Pause::Spin) => self.shared.spin(),
                    Err(Pause::Until(until)) => self.shared.park(until),
                }
            }
        })
    }
}

/// Deliveries that are being taken under the lock. If a key's `clone` panics there, the lock is
/// released first, and then these deliveries are released.
struct Slice<'q, K: Key> {
    shared: &'q Shared<K>,
    items: Vec<Item<'q, K>>,
    /// Deliveries of a queue with hooks, which are notified of items outside the lock.
    outs: Vec<Delivery<K>>,
}

impl<K: Key> Drop for Slice<'_, K> {
    fn drop(&mut self) {
        let outs = self.outs.drain(..).map(|out| Item::lent(self.shared, out));
        for item in self.items.drain(..).chain(outs) {
            quietly(|| item.release());
        }
    }
}

thread_local! {
    /// Unparks this thread.
    pub(super) static THREAD: Waker = Waker::from(Arc::new(Unpark(current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The way in which a thread waits before its next check.
enum Pause {
    Spin,
    /// Until it is woken, or until this time.
    Until(Time),
}

/// The common part of all waiting getters.
pub(super) struct Waiting<'q, K: Key, S: BuildHasher> {
    pub(super) queue: &'q Queue<K, S>,
    pub(super) wait: Wait,
    pub(super) deadline: Option<Time>,
    /// The alarm of a deadline that no parked thread keeps.
    alarm: Option<Alarm>,
}

impl<'q, K: Key, S: BuildHasher> Waiting<'q, K, S> {
    pub(super) const fn new(queue: &'q Queue<K, S>, kind: Kind, until_final: bool) -> Self {
        Self { queue, wait: Wait::new(kind, until_final), deadline: None, alarm: None }
    }

    /// Returns the result, or how to wait for it.
    fn look(&mut self, waker: &Waker) -> Result<Option<Delivery<K>>, Pause> {
        let (queue, shared) = (self.queue, &self.queue.shared);
        match shared.look(&mut self.wait, waker, &|key| queue.hash(key)) {
            Look::Key(out) => Ok(Some(out)),
            Look::Ended => Ok(None),
            Look::Spin => Err(Pause::Spin),
            Look::Wait { until } => match self.deadline {
                None | Some(Time::NEVER) => Err(Pause::Until(until)),
                Some(deadline) if shared.clock.now() >= deadline => {
                    shared.leave(&mut self.wait);
                    Ok(None)
                }
                Some(deadline) if shared.is_real_time && self.wait.is_thread() => {
                    Err(Pause::Until(until.min(deadline)))
                }
                Some(deadline) => {
                    self.alarm = quietly(|| shared.clock.arm(deadline, waker));
                    Err(Pause::Until(until.min(deadline)))
                }
            },
        }
    }
}

impl<K: Key, S: BuildHasher> Future for Waiting<'_, K, S> {
    type Output = Option<Delivery<K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        #[cfg(feature = "tokio")]
        let budget = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        match self.look(cx.waker()) {
            Ok(answer) => {
                #[cfg(feature = "tokio")]
                budget.made_progress();
                Poll::Ready(answer)
            }
            Err(_) => Poll::Pending,
        }
    }
}

impl<K: Key, S: BuildHasher> Drop for Waiting<'_, K, S> {
    fn drop(&mut self) {
        self.queue.shared.leave(&mut self.wait);
    }
}
