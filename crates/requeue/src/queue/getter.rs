//! Takes keys, and waits for them. The calls of the public API are in `get.rs`.
//!
//! In the order of this file: one key without waiting, many keys in one call, a key after a
//! completion, a getter that waits, and a thread that parks.
//!
//! A getter that finds no key joins the list of waiters under the same hold of the lock, so it misses no key that
//! becomes ready later. The getter checks again when its task is polled or its thread is woken.

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

/// The lock, and the key that was taken under it.
type Taken<'a, K> = (RankedGuard<'a, State<K>>, Option<Delivery<K>>);

impl<K: Key> Shared<K> {
    /// Takes the next key in the common case, in which no user code runs and the clock is read
    /// before the lock is taken. The inner value is final. The outer `None` means that the caller
    /// must call [`take`](Queue::take).
    ///
    /// The two functions do not share the memory of their results. A processor that writes a key,
    /// and immediately reads it in larger pieces, must wait until the write is done.
    #[inline(always)]
    pub(super) fn take_fast(&self) -> Option<Option<Delivery<K>>> {
        if !self.facts.has_fast_gets {
            return None;
        }
        let read = self.now_before_lock(Operation::Get, None);
        let mut state = self.lock().ok()?;
        let now = state.time_for(Operation::Get, read)?;
        let taken = state.core.get(now);
        // The number of due keys may exceed the number that one call makes ready.
        if read.is_some() && taken.is_none() {
            return None;
        }
        self.release_lock(state);
        Some(taken)
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes the next ready key, if any, and returns it with the lock.
    pub(super) fn lock_and_take(&self) -> Result<Taken<'_, K>, Reentered> {
        let shared = &self.shared;
        let (mut state, mut now) = shared.lock_for(Operation::Get, None)?;
        if state.core.pace().is_some() {
            let mut keys = Vec::new();
            state.core.sweep_pace(now, &mut keys);
            if !keys.is_empty() && std::mem::needs_drop::<K>() {
                // Keys are dropped outside the lock.
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
            // More keys were due than one call makes ready, and none of the ready keys could be delivered.
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
    /// Takes up to `max` keys under one hold of the lock, like `take_fast`. Returns `false`, and
    /// takes no key, if the caller must call [`take`](Queue::take).
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
    /// Takes ready keys until there are `max` items, or no more ready keys.
    pub(super) fn take_more<'q>(&'q self, items: Vec<Item<'q, K>>, max: usize) -> Vec<Item<'q, K>> {
        let mut taken = TakenBatch { shared: &self.shared, items, deliveries: Vec::new() };
        // The capacity is limited, so that a large `max` allocates no memory for keys that may not
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
/// released first, and then these deliveries are released.
struct TakenBatch<'q, K: Key> {
    shared: &'q Shared<K>,
    items: Vec<Item<'q, K>>,
    /// Deliveries of a queue with hooks. The hooks are notified outside the lock, when the
    /// deliveries become items.
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
    /// Completes the delivery as `succeed` does, and takes the next key if both have a fast path.
    /// `None` means that the caller must look for a key.
    #[inline(always)]
    pub(super) fn succeed_and_take(&self, mut item: Item<'_, K>) -> Option<Delivery<K>> {
        if !item.is_of(self) || !self.facts.has_fast_gets {
            item.succeed();
            return None;
        }
        // The limiter is called before the queue is locked, because the limiter's lock has the
        // lower rank.
        self.limiter.forget_key(&item);
        // This value is declared before the guard, so it is dropped after the lock is released, even if the `clone` of
        // a key panics under the lock.
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
        // The completion may have needed a time that `get` does not need, so `time_for` decides again. With a drain, no
        // next key is taken here, because the drain must notice that no key is in flight.
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

/// Takes a key, and waits while none is ready.
pub(super) struct Getter<'q, K: Key, S: BuildHasher> {
    pub(super) queue: &'q Queue<K, S>,
    place: Option<Place>,
    kind: Kind,
    /// True if the getter waits until `None` is final.
    until_final: bool,
    pub(super) deadline: Option<Time>,
    /// The alarm for the deadline, if the deadline is not kept by a parked thread.
    alarm: Option<Alarm>,
}

/// The way to wait for the next check.
enum Pause {
    /// The thread spins.
    Spin,
    /// The getter is listed and will be woken. A thread must not sleep beyond this time.
    Until(Time),
}

impl<'q, K: Key, S: BuildHasher> Getter<'q, K, S> {
    /// Returns the getter of a task, which returns `None` as client-go's does.
    #[inline]
    pub(super) const fn new(queue: &'q Queue<K, S>) -> Self {
        let (kind, until_final) = (Kind::Task, false);
        Self { queue, place: None, kind, until_final, deadline: None, alarm: None }
    }

    /// Returns true if the getter has begun to wait.
    pub(super) const fn is_waiting(&self) -> bool {
        self.place.is_some()
    }

    /// Makes the getter wait until `None` is final.
    pub(super) fn wait_until_final(&mut self) {
        // The list of waiters has a copy of the flag.
        self.leave_waiters();
        self.until_final = true;
    }

    /// Blocks this thread until there is a result.
    pub(super) fn block_thread(mut self) -> Option<Delivery<K>> {
        // A future that has begun to wait is listed as a task.
        self.leave_waiters();
        self.kind = Kind::Thread;
        let shared = &self.queue.shared;
        // All waits of a thread share one waker, so that a getter that is already listed is
        // recognized.
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

    /// Returns the result, or the way to wait for it. `None` means that the queue has no more keys,
    /// or that the deadline has passed.
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
                // Each check arms the alarm again, because an alarm may go off early, and because it wakes only the
                // waker with which it was armed.
                if !keeps_deadline {
                    self.alarm = quietly(|| shared.clock.arm(deadline, waker));
                }
                Err(Pause::Until(until.min(deadline)))
            }
        }
    }

    /// Takes a key, or returns `None` if the queue has no key and will have no key. Otherwise, joins the list of
    /// waiters.
    fn take_or_join(&mut self, waker: &Waker) -> Result<Option<Delivery<K>>, Pause> {
        let shared = &self.queue.shared;
        // A waker's `clone` is user code. The `clone` runs outside the lock, and only if no key is ready.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.queue.lock_and_take() else {
                // The caller is user code of a key, which runs under the lock. A wait for a key could then last
                // forever.
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

    /// Leaves the list of waiters.
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
        // A task without budget takes no key, so that other tasks run.
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

/// The interval at which a parked thread checks again if the queue's clock does not follow real
/// time.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl<K: Key> Shared<K> {
    /// Waits for a key, for less time than parking and waking a thread takes. If a worker asks for
    /// a key just before an add, the add then does not have to wake a thread. Waking a thread is
    /// the most expensive part of an add.
    fn spin_briefly(&self) {
        for _ in 0..SPINS {
            // The flag is only a hint, because after the spin the thread checks under the lock.
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
        // Without the limit, the thread would sleep too long after a step of the clock or a suspension of the machine.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.facts.is_real_time {
            park_timeout(left);
        } else {
            // If the clock does not follow the machine's time, the alarm wakes this thread. The alarm's runtime may not
            // be running, so the thread also checks at intervals.
            park_warily(left.max(CHECK_INTERVAL));
        }
    }
}
thread_local! {
    /// The waker of this thread.
    pub(super) static THREAD: Waker = {
        let thread = current();
        waker_fn(move || thread.unpark())
    };
}
