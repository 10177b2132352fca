//! The algorithm that takes keys and waits for them. The public API is in `get.rs`.
//!
//! This file contains, in this order: taking one key without waiting, taking many keys in one call,
//! taking a key after a completion, a getter that waits, and a thread that parks.
//!
//! A getter that finds no key joins the list of waiters before it releases the lock, so it misses
//! no key that becomes ready later. It checks again when its task is polled or its thread is woken.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue_core::{Delivery, Finish, Operation, Time};

use super::Queue;
use super::item::{Completed, Item};
use super::shared::{LOCK_BATCH, Shared, State};
use super::waiters::{Kind, Place};
use crate::clock::{Alarm, Clock};
use crate::ranked_mutex::{RankedGuard, Reentered};
use crate::sync::{
    Ordering, SPINS, current, drop_quietly, park, park_timeout, park_warily, quietly, spin_loop,
    thread_local, waker_fn,
};
use crate::{Completion, Key};

// --- A key without waiting ------------------------------------------------------------------------------

/// The lock guard, and the key that was taken under the lock.
type Taken<'a, K> = (RankedGuard<'a, State<K>>, Option<Delivery<K>>);

impl<K: Key> Shared<K> {
    /// Takes the next key in the common case: no user code runs, and the clock is read before the
    /// lock is acquired. The inner `Option` is the result. The outer `None` means that the caller
    /// must use the general path.
    ///
    /// The fast path and the general path do not share the memory of their results. If a processor
    /// writes a key in small pieces and immediately reads it in larger ones, the read must wait for
    /// the writes.
    #[inline(always)]
    pub(super) fn take_fast(&self) -> Option<Option<Delivery<K>>> {
        if !self.facts.has_fast_gets {
            return None;
        }
        let read = self.now_before_lock(Operation::Get, None);
        let mut state = self.lock().ok()?;
        let now = state.time_for(Operation::Get, read)?;
        let taken = state.core.get(now);
        // More keys may be due than one call makes ready.
        if read.is_some() && taken.is_none() {
            return None;
        }
        self.release_lock(state);
        Some(taken)
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes the next ready key, if any. Returns it together with the lock guard.
    pub(super) fn lock_and_take(&self) -> Result<Taken<'_, K>, Reentered> {
        let shared = &self.shared;
        let (mut state, mut now) = shared.lock_for(Operation::Get, None)?;
        if state.core.pace().is_some() {
            let mut keys = Vec::new();
            state.core.sweep_pace(now, &mut keys);
            if !keys.is_empty() && std::mem::needs_drop::<K>() {
                // The keys are dropped outside the lock.
                drop(state);
                keys.into_iter().for_each(drop_quietly);
                state = shared.lock()?;
            }
        }
        loop {
            let mut again = false;
            let taken = if state.core.has_order() {
                let popped = state.core.get_by_order(now, |key| self.hash_key(key));
                again = popped.again;
                if !popped.dropped.is_empty() {
                    drop(state);
                    popped.dropped.into_iter().for_each(drop_quietly);
                    state = shared.lock()?;
                }
                popped.item
            } else {
                state.core.get(now)
            };
            // More keys were due than one call makes ready, and none of the ready keys could be
            // delivered.
            let more_due =
                || !state.core.is_paused() && state.core.next_due().is_some_and(|due| due <= now);
            if taken.is_some() || !(again || more_due()) {
                return Ok((state, taken));
            }
            shared.release_lock(state);
            now = shared.clock.now();
            state = shared.lock()?;
        }
    }
}

// --- Many keys in one call --------------------------------------------------------------------------

impl<K: Key> Shared<K> {
    /// Takes up to `max` keys under one acquisition of the lock, like `take_fast`. Returns `false`
    /// without taking a key if the caller must use the general path.
    fn take_many_fast<'q>(&'q self, items: &mut Vec<Item<'q, K>>, max: usize) -> bool {
        if !self.facts.has_fast_gets || self.hooks.is_some() {
            return false;
        }
        let Ok(mut state) = self.lock() else { return true };
        let Some(mut now) = state.time_for(Operation::Get, None) else { return false };
        for _ in 0..max {
            let Some(delivery) = state.core.get(now) else { break };
            items.push(Item::new_borrowed(self, delivery));
            let Some(next) = state.time_for(Operation::Get, None) else { break };
            now = next;
        }
        self.release_lock(state);
        true
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes ready keys until there are `max` items, or until no key is ready.
    pub(super) fn take_more<'q>(&'q self, items: Vec<Item<'q, K>>, max: usize) -> Vec<Item<'q, K>> {
        let mut taken = TakenBatch { shared: &self.shared, items, deliveries: Vec::new() };
        // The capacity is limited. A large `max` then allocates no memory for keys that may not
        // exist.
        taken.items.reserve(max.saturating_sub(taken.items.len()).min(32));
        while taken.items.len() < max {
            let before = taken.items.len();
            let left = (max - before).min(LOCK_BATCH);
            if !self.shared.take_many_fast(&mut taken.items, left) {
                let Ok((mut state, one)) = self.lock_and_take() else { break };
                taken.deliveries.extend(one);
                while (1..left).contains(&taken.deliveries.len())
                    && self.shared.facts.has_fast_gets
                    && let Some(now) = state.time_for(Operation::Get, None)
                    && let Some(delivery) = state.core.get(now)
                {
                    taken.deliveries.push(delivery);
                }
                self.shared.release_lock(state);
                let TakenBatch { shared, items, deliveries } = &mut taken;
                items.extend(
                    deliveries.drain(..).map(|delivery| Item::new_borrowed(*shared, delivery)),
                );
            }
            if taken.items.len() == before {
                break;
            }
        }
        std::mem::take(&mut taken.items)
    }
}

/// Deliveries that are being taken under the lock. If the `clone` of a key panics, the lock is
/// released, and the drop of this value releases these deliveries.
struct TakenBatch<'q, K: Key> {
    shared: &'q Shared<K>,
    items: Vec<Item<'q, K>>,
    /// The deliveries of a queue with hooks. They become items outside the lock, because this calls
    /// the hooks.
    deliveries: Vec<Delivery<K>>,
}

impl<K: Key> Drop for TakenBatch<'_, K> {
    fn drop(&mut self) {
        let deliveries =
            self.deliveries.drain(..).map(|delivery| Item::new_borrowed(self.shared, delivery));
        for item in self.items.drain(..).chain(deliveries) {
            quietly(|| item.complete(Completion::Release));
        }
    }
}

// --- A key after a completion -------------------------------------------------------------------

impl<K: Key> Shared<K> {
    /// Completes a delivery as `succeed` does. Also takes the next key if the fast path applies.
    /// `None` means that the caller must look for a key itself.
    #[inline(always)]
    pub(super) fn succeed_and_take(&self, mut item: Item<'_, K>) -> Option<Delivery<K>> {
        if !item.is_of(self) || !self.facts.has_fast_gets {
            item.succeed();
            return None;
        }
        // The limiter is called before the queue is locked, because the lock of the limiter must be
        // acquired first.
        self.limiter.forget_key(&item);
        // This value is declared before the guard, so it is dropped after the lock is released,
        // even if the `clone` of a key panics under the lock.
        let mut completed = Completed::new();
        let how = Finish::Succeed;
        let locked = self.lock_for(Operation::Finish(&item.ticket, &how), None);
        let (mut state, now) = locked.ok()?;
        state.watchers.end_delivery(item.fencing_token());
        let Some(finished) = state.core.finish(&item.ticket, how, now) else {
            self.release_lock(state);
            item.drop_contents();
            return None;
        };
        let (unused, worked) = state.keep_dropped(finished);
        completed.take_contents(&mut item, unused);
        // The completion may have needed the time although `get` does not, so `time_for` decides
        // again. If a drain waits, no key is taken here, because the drain must notice that no key
        // is in flight.
        let next = state.time_for(Operation::Get, self.facts.always_needs_now.then_some(now));
        let taken = match next.filter(|_| state.drainers.is_empty()) {
            Some(now) => state.core.get(now),
            None => None,
        };
        self.release_lock(state);
        if worked.is_some() {
            self.report_worked(completed.delivered_key(), worked);
        }
        drop(completed);
        taken
    }
}

// --- A getter that waits ------------------------------------------------------------------------

/// A future that takes a key, and waits while none is ready.
pub(super) struct Getter<'q, K: Key, S: BuildHasher> {
    pub(super) queue: &'q Queue<K, S>,
    place: Option<Place>,
    kind: Kind,
    /// True if the getter returns `None` only when this result is final.
    until_final: bool,
    pub(super) deadline: Option<Time>,
    /// The alarm for the deadline. It is not needed if a parked thread wakes itself at the
    /// deadline.
    alarm: Option<Alarm>,
}

/// How to wait before the next check.
enum Pause {
    /// The thread spins.
    Spin,
    /// The getter is in the list and will be woken. A thread must not sleep beyond this time.
    Until(Time),
}

impl<'q, K: Key, S: BuildHasher> Getter<'q, K, S> {
    /// Creates the getter of a task. It returns `None` in the same cases as client-go's `Get`.
    #[inline]
    pub(super) const fn new(queue: &'q Queue<K, S>) -> Self {
        let (kind, until_final) = (Kind::Task, false);
        Self { queue, place: None, kind, until_final, deadline: None, alarm: None }
    }

    /// Returns true if the getter is in the list of waiters.
    pub(super) const fn is_waiting(&self) -> bool {
        self.place.is_some()
    }

    /// Makes the getter return `None` only when this result is final.
    pub(super) fn wait_until_final(&mut self) {
        // The list of waiters has a copy of this flag, so the getter must leave the list first.
        self.leave_waiters();
        self.until_final = true;
    }

    /// Blocks this thread until there is a result.
    pub(super) fn block_thread(mut self) -> Option<Delivery<K>> {
        // A future that has waited is in the list as a task, not as a thread.
        self.leave_waiters();
        self.kind = Kind::Thread;
        let shared = &self.queue.shared;
        // All getters of a thread use the same waker, so that a getter that is already in the list
        // is recognized.
        THREAD.with(|waker| {
            loop {
                match self.check_or_wait(waker) {
                    Ok(result) => return result,
                    Err(Pause::Spin) => shared.spin_briefly(),
                    Err(Pause::Until(until)) => shared.park_until(until),
                }
            }
        })
    }

    /// Returns the result, or how to wait for it. The result `None` means that the queue has no
    /// more keys, or that the deadline has passed.
    fn check_or_wait(&mut self, waker: &Waker) -> Result<Option<Delivery<K>>, Pause> {
        let until = match self.take_or_join(waker) {
            Err(Pause::Until(until)) => until,
            result => return result,
        };
        let shared = &self.queue.shared;
        match self.deadline {
            None | Some(Time::NEVER) => Err(Pause::Until(until)),
            Some(deadline) if shared.clock.now() >= deadline => {
                self.leave_waiters();
                Ok(None)
            }
            Some(deadline) => {
                let keeps_deadline = shared.facts.is_real_time && self.kind == Kind::Thread;
                // Each check arms a new alarm: an alarm may be early, and it wakes only the waker
                // with which it was armed.
                if !keeps_deadline {
                    self.alarm = quietly(|| shared.clock.arm(deadline, waker));
                }
                Err(Pause::Until(until.min(deadline)))
            }
        }
    }

    /// Takes a key. Returns `None` if the queue will have no more keys. Otherwise, joins the list
    /// of waiters.
    fn take_or_join(&mut self, waker: &Waker) -> Result<Option<Delivery<K>>, Pause> {
        let shared = &self.queue.shared;
        // The `clone` of a waker is user code. It runs without the lock, and only if no key is
        // ready.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.queue.lock_and_take() else {
                // The caller is the code of a key, such as its `clone`, which runs under the lock.
                // If it waited for a key, it could wait forever.
                return Ok(None);
            };
            let core = &state.core;
            let ended = if self.until_final { core.is_finished() } else { core.is_exhausted() };
            if taken.is_some() || ended {
                let old = state.waiters.remove_waiter(&mut self.place);
                shared.release_lock(state);
                drop_quietly(old);
                drop_quietly(fresh);
                return Ok(taken);
            }
            if state.waiters.start_spinning(&mut self.place, self.kind, self.until_final) {
                // The flag is cleared under the lock, so the getter misses no key that comes later.
                shared.go.store(false, Ordering::Relaxed);
                shared.release_lock(state);
                return Err(Pause::Spin);
            }
            if state.waiters.is_listed_with(self.place, waker) {
                break (state, None);
            }
            if let Some(waker) = fresh.take() {
                let old =
                    state.waiters.list_waiter(&mut self.place, self.kind, self.until_final, waker);
                break (state, old);
            }
            drop(state);
            fresh = Some(waker.clone());
        };
        let due = state.core.next_due().unwrap_or(Time::NEVER);
        let leads = self.kind == Kind::Thread && state.waiters.become_leader(self.place, due);
        shared.release_lock(state);
        drop_quietly(old);
        drop_quietly(fresh);
        Err(Pause::Until(if leads { due } else { Time::NEVER }))
    }

    /// Removes the getter from the list of waiters.
    fn leave_waiters(&mut self) {
        if self.place.is_none() {
            return;
        }
        let shared = &self.queue.shared;
        let Ok(mut state) = shared.lock() else { return };
        let old = state.waiters.remove_waiter(&mut self.place);
        shared.release_lock(state);
        drop_quietly(old);
    }
}

impl<K: Key, S: BuildHasher> Future for Getter<'_, K, S> {
    type Output = Option<Delivery<K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A task that has used up its budget takes no key, so that other tasks run.
        #[cfg(feature = "tokio")]
        let budget = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        match self.check_or_wait(cx.waker()) {
            Ok(result) => {
                #[cfg(feature = "tokio")]
                budget.made_progress();
                Poll::Ready(result)
            }
            Err(_) => Poll::Pending,
        }
    }
}

impl<K: Key, S: BuildHasher> Drop for Getter<'_, K, S> {
    #[inline]
    fn drop(&mut self) {
        if self.is_waiting() {
            self.leave_waiters();
        }
    }
}

// --- A thread that parks ------------------------------------------------------------------------

/// The interval at which a parked thread checks again, if the clock of the queue does not follow
/// real time.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl<K: Key> Shared<K> {
    /// Waits for a key without parking, for less time than parking and waking a thread takes. If a
    /// key is added just after a worker has asked for one, the add then does not have to wake a
    /// thread. Waking a thread would be the most expensive part of the add.
    fn spin_briefly(&self) {
        for _ in 0..SPINS {
            // The flag is only a hint: after the spin, the thread checks again under the lock.
            if self.go.load(Ordering::Relaxed) {
                return;
            }
            spin_loop();
        }
    }

    /// Parks this thread until it is woken, or until about the time `until`.
    pub(super) fn park_until(&self, until: Time) {
        if until == Time::NEVER {
            return park();
        }
        // The sleep is limited. Otherwise, the thread would sleep for too long after a step of the
        // clock or a suspension of the machine.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.facts.is_real_time {
            park_timeout(left);
        } else {
            // If the clock does not follow real time, its alarm wakes this thread. The runtime that
            // drives the alarm may not be running, so the thread also checks at intervals.
            park_warily(left.max(CHECK_INTERVAL));
        }
    }
}
thread_local! {
    /// The waker that unparks this thread.
    pub(super) static THREAD: Waker = {
        let thread = current();
        waker_fn(move || thread.unpark())
    };
}
