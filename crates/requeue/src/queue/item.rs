//! A key that was handed out.

use std::fmt;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use requeue_core::{self as core, Asked, Delivery, Finish, Finished, Operation, Time};

use super::Shared;
use super::shared::{SLICE, State};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Arc, Ordering, drop_quietly, quietly};

enum Owner<'q, K: Key> {
    Lent(&'q Shared<K>),
    Owned(Arc<Shared<K>>),
}

impl<K: Key> Deref for Owner<'_, K> {
    type Target = Shared<K>;

    fn deref(&self) -> &Shared<K> {
        match self {
            Self::Lent(shared) => shared,
            Self::Owned(shared) => shared,
        }
    }
}

/// A key with a worker: nobody else has it until this ends.
///
/// It ends by one of [`succeed`](Self::succeed), [`retry`](Self::retry),
/// [`retry_after`](Self::retry_after), [`requeue_after`](Self::requeue_after),
/// [`put_back`](Self::put_back) and [`done`](Self::done). **An item that is dropped unfinished has
/// failed** and is retried with backoff: a worker that panics, is cancelled or returns early loses
/// nothing.
///
/// ```
/// use requeue::{Queue, clock::FakeClock};
/// use std::time::Duration;
///
/// let clock = FakeClock::new();
/// let queue = Queue::builder().clock(clock.clone()).build()?;
/// queue.add("flaky");
/// drop(queue.try_get());
/// assert_eq!(queue.waiting(), 1);
///
/// clock.advance(Duration::from_secs(1));
/// let item = queue.try_get().expect("the backoff has passed");
/// assert_eq!(item.attempt(), 2);
/// item.succeed();
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[must_use = "an item that is dropped unfinished counts as failed"]
pub struct Item<'q, K: Key> {
    /// `None` once it has ended.
    live: Option<(Owner<'q, K>, K)>,
    ticket: core::Ticket,
    asked: Asked,
    failures: u32,
}

impl<'q, K: Key> Item<'q, K> {
    pub(super) fn lent(shared: &'q Shared<K>, out: Delivery<K>) -> Self {
        Self::new(Owner::Lent(shared), out)
    }

    pub(super) fn owned(shared: Arc<Shared<K>>, out: Delivery<K>) -> Item<'static, K> {
        Item::new(Owner::Owned(shared), out)
    }

    #[inline]
    fn new(owner: Owner<'q, K>, out: Delivery<K>) -> Self {
        if let (Some(hooks), Some(queued)) = (&owner.hooks, out.queued) {
            quietly(|| hooks.get(&out.key, queued));
        }
        Self {
            live: Some((owner, out.key)),
            ticket: out.ticket,
            asked: out.asked,
            failures: out.failures,
        }
    }

    /// The key. The item derefs to it, too.
    #[must_use]
    pub fn key(&self) -> &K {
        match &self.live {
            Some((_, key)) => key,
            // Only the methods that take the item by value, and its drop, take what is in it.
            None => unreachable!("an item that has ended is gone"),
        }
    }

    /// Which attempt this is: 1, and one more for each failure in a row before.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.failures.saturating_add(1)
    }

    /// How many adds this run stands for; at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.asked.adds
    }

    /// The reasons of those adds, or-ed.
    #[must_use]
    pub const fn reasons(&self) -> u32 {
        self.asked.reasons
    }

    /// The highest priority of those adds.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.asked.priority
    }

    /// The priority with which the key comes back, if this hand-out brings it back: retried,
    /// requeued, put back or dropped. Unless said, it is the one it has.
    ///
    /// ```
    /// use requeue::{Add, Order, Queue};
    ///
    /// let queue = Queue::builder().order(Order::Priority { oldest_every: 10 }).build()?;
    /// queue.add_with("a", Add::now().priority(5));
    /// let mut item = queue.try_get().unwrap();
    /// item.set_priority(-5);
    /// item.put_back();
    /// assert_eq!(queue.try_get().unwrap().priority(), -5);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub const fn set_priority(&mut self, priority: i32) {
        self.asked.priority = priority;
    }

    /// The number of this hand-out, never used twice in the life of the queue.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.ticket.epoch()
    }

    /// Whether the key was added again since it was handed out, so that it will be once more.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.live.as_ref().is_some_and(|(owner, _)| {
            owner.lock().is_ok_and(|state| state.core.is_dirty(&self.ticket))
        })
    }

    /// Done, and its failures forgotten (client-go's `Forget`, then `Done`).
    #[inline]
    pub fn succeed(mut self) {
        self.end(|shared, key, _| {
            shared.limits.forget(key);
            Finish::Succeed
        });
    }

    /// Ends all of them as [`succeed`](Self::succeed) does, under few holds of the lock.
    ///
    /// ```
    /// use requeue::{Item, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add_all(0..100);
    /// Item::succeed_all(queue.try_get_many(32));
    /// assert_eq!((queue.len(), queue.processing()), (68, 0));
    /// ```
    pub fn succeed_all(items: impl IntoIterator<Item = Self>) {
        // The iterator is the user's code: outside the lock.
        let mut items: Vec<Self> = items.into_iter().collect();
        if let Some(Some((Owner::Lent(shared), _))) = items.first().map(|item| &item.live) {
            let shared = *shared;
            items.chunks_mut(SLICE).for_each(|slice| shared.succeed_all(slice));
        }
        for item in items {
            // Another queue's, or its own.
            if item.live.is_some() {
                item.succeed();
            }
        }
    }

    /// Failed: counted, and tried again after the limiter's delay, which is returned (client-go's
    /// `AddRateLimited`, then `Done`).
    pub fn retry(mut self) -> Duration {
        let Some((owner, key)) = &self.live else { return Duration::ZERO };
        // One time for both, so that what the limiter holds back is what the queue holds back.
        let now = owner.clock.now();
        let delay = owner.limits.delay(key, now);
        self.end_at(Some(now), |_, _, asked| Finish::Fail { delay, asked });
        delay
    }

    /// Failed, and tried again after `delay`: counted as an attempt, but the limiter is not asked
    /// and its delays grow no longer.
    pub fn retry_after(mut self, delay: Duration) {
        self.end(|_, _, asked| Finish::Fail { delay, asked });
    }

    /// Done, its failures forgotten, and added again after `delay`, with the priority it had.
    pub fn requeue_after(mut self, delay: Duration) {
        self.end(|shared, key, asked| {
            shared.limits.forget(key);
            Finish::Later { after: delay, asked }
        });
    }

    /// As if it had not been handed out: ready at once, at the tail, with no failure counted. For
    /// a worker that may not go on: it is paused, or has lost its leadership.
    pub fn put_back(mut self) {
        self.end(|_, _, asked| Finish::PutBack { asked });
    }

    /// Not tried again: its failures are forgotten, and it is counted as given up
    /// (`workqueue_given_up_total`). If it was added again meanwhile, it starts afresh at once.
    ///
    /// client-go's `Forget`, then `Done`, as its tutorials do after the last retry.
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::client_go();
    /// queue.add_rate_limited("hopeless");
    /// # queue.add("hopeless");
    /// let item = queue.try_get().unwrap();
    /// assert_eq!(item.attempt(), 2);
    /// item.give_up();
    /// assert_eq!((queue.failures("hopeless"), queue.given_up()), (0, 1));
    /// ```
    pub fn give_up(mut self) {
        self.end(|shared, key, _| {
            shared.given_up.fetch_add(1, Ordering::Relaxed);
            shared.limits.forget(key);
            Finish::Succeed
        });
    }

    /// client-go's `Done`, which clears no failures: [`succeed`](Self::succeed) does.
    pub fn done(mut self) {
        self.end(|_, _, _| Finish::Done);
    }

    /// The same item, to be sent anywhere: it keeps the queue alive.
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add_all(["a", "b"]);
    /// let items: Vec<_> = queue.try_get_many(2).into_iter().map(|i| i.into_owned()).collect();
    /// std::thread::spawn(move || items.into_iter().for_each(|item| item.succeed()));
    /// ```
    pub fn into_owned(mut self) -> Item<'static, K> {
        let live = self.live.take().and_then(|(owner, key)| {
            let owner = match owner {
                Owner::Lent(shared) => shared.handle()?,
                Owner::Owned(shared) => shared,
            };
            Some((Owner::Owned(owner), key))
        });
        Item { live, ticket: self.ticket, asked: self.asked, failures: self.failures }
    }

    /// Gives up the guard, for those who carry keys across tasks or languages: the hand-out lasts
    /// until [`Queue::done`](super::Queue::done) with the key, or
    /// [`Queue::done_ticket`](super::Queue::done_ticket) with the ticket.
    pub fn into_parts(mut self) -> (K, Ticket) {
        match self.live.take() {
            Some((owner, key)) => {
                let ticket = Ticket { ticket: self.ticket, queue: owner.number };
                if let Ok(mut state) = owner.lock() {
                    state.core.detach(&self.ticket);
                }
                (key, ticket)
            }
            // As in `key`.
            None => unreachable!("an item that has ended is gone"),
        }
    }

    /// Whether it is this queue's, and has not ended.
    #[inline]
    pub(super) fn is_of(&self, shared: &Shared<K>) -> bool {
        self.live.as_ref().is_some_and(|(owner, _)| std::ptr::eq(&**owner, shared))
    }

    #[inline]
    pub(super) const fn ticket(&self) -> &core::Ticket {
        &self.ticket
    }

    #[inline]
    fn end(&mut self, how: impl FnOnce(&Shared<K>, &K, Asked) -> Finish) {
        self.end_at(None, how);
    }

    #[inline]
    fn end_at(&mut self, now: Option<Time>, how: impl FnOnce(&Shared<K>, &K, Asked) -> Finish) {
        let Some((owner, key)) = &self.live else { return };
        let how = how(owner, key, self.asked);
        // If a key's `clone` panics in here, nothing has happened, and the item's drop ends it.
        owner.finish(&self.ticket, how, now, key);
        self.free();
    }

    #[inline]
    pub(super) fn free(&mut self) {
        if let Some((owner, key)) = self.live.take() {
            drop_quietly(key);
            drop(owner);
        }
    }
}

impl<K: Key> Drop for Item<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if self.live.is_some() {
            self.abandon();
        }
    }
}

impl<K: Key> Item<'_, K> {
    /// Ends an item that nobody has ended.
    #[cold]
    fn abandon(&mut self) {
        // May run while unwinding: nothing of the user's may unwind out of it.
        let Some((owner, key)) = &self.live else { return };
        let now = quietly(|| owner.clock.now()).unwrap_or_default();
        let delay = owner.limits.delay(key, now);
        let how = Finish::Fail { delay, asked: self.asked };
        if quietly(|| owner.finish(&self.ticket, how, Some(now), key)).is_none() {
            quietly(|| owner.finish_without_copies(&self.ticket, how, now, key));
        }
        self.free();
    }
}

/// What a panic leaves behind is a run that has failed.
impl<K: Key> UnwindSafe for Item<'_, K> {}
impl<K: Key> RefUnwindSafe for Item<'_, K> {}

impl<K: Key> Deref for Item<'_, K> {
    type Target = K;

    fn deref(&self) -> &K {
        self.key()
    }
}

impl<K: Key + fmt::Debug> fmt::Debug for Item<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.live.as_ref().map(|(_, key)| key))
            .field("attempt", &self.attempt())
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

/// Names a hand-out whose guard was given up. It does nothing by itself when it is dropped: the
/// key stays with its worker until somebody says that it is done.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[must_use = "a key whose ticket is lost is done only by `Queue::done`"]
pub struct Ticket {
    ticket: core::Ticket,
    /// The queue's number: hand-outs of another have the same epochs.
    queue: u64,
}

impl Ticket {
    /// The number of the hand-out, never used twice in the life of the queue.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.ticket.epoch()
    }

    pub(super) fn finish<K: Key>(&self, shared: &Shared<K>) -> bool {
        shared.number == self.queue && shared.finish_detached(&self.ticket)
    }
}

/// The contents of an item that has ended. They are the user's, so that they are dropped outside the lock,
/// and a panic of their drop goes no further.
pub(super) struct Ended<'q, K: Key> {
    live: Option<(Owner<'q, K>, K)>,
    /// The queue's own key, if it keeps no record.
    unused: Option<K>,
}

impl<'q, K: Key> Ended<'q, K> {
    pub(super) const fn new() -> Self {
        Self { live: None, unused: None }
    }

    /// Takes the contents of `item`, whose delivery has ended.
    #[inline]
    pub(super) fn set(&mut self, item: &mut Item<'q, K>, unused: Option<K>) {
        (self.live, self.unused) = (item.live.take(), unused);
    }

    /// The key that was delivered.
    pub(super) fn key(&self) -> Option<&K> {
        self.live.as_ref().map(|(_, key)| key)
    }
}

impl<K: Key> Drop for Ended<'_, K> {
    #[inline]
    fn drop(&mut self) {
        drop_quietly(self.live.take());
        drop_quietly(self.unused.take());
    }
}

impl<K: Key> State<K> {
    /// Keeps the key of a run that was lost, for those who ask for dropped keys. Returns the key to drop
    /// instead, and how long the key was in flight.
    #[inline(always)]
    pub(super) fn keep_lost(&mut self, finished: Finished<K>) -> (Option<K>, Option<Duration>) {
        let Finished { mut key, lost, worked, .. } = finished;
        if lost && let Some(key) = key.take() {
            self.lost.push(key);
        }
        (key, worked)
    }
}

impl<K: Key> Shared<K> {
    /// Ends the items that were lent by this queue.
    fn succeed_all(&self, items: &mut [Item<'_, K>]) {
        let is_ours = |item: &Item<'_, K>| matches!(&item.live, Some((Owner::Lent(of), _)) if std::ptr::eq(*of, self));
        for item in items.iter().filter(|item| is_ours(item)) {
            self.limits.forget(item);
        }
        let now = if self.tracks { self.clock.now() } else { Time::ZERO };
        let mut ended = Vec::new();
        let Ok(mut state) = self.lock() else { return };
        // If no key waits, the time matters to none of them.
        let has_now = self.tracks || !state.core.needs_now(Operation::Promote);
        for item in items.iter_mut().filter(|item| !self.has_order && is_ours(item)) {
            let operation = Operation::Finish(&item.ticket, &Finish::Succeed);
            if !has_now && state.core.needs_now(operation) {
                continue;
            }
            let finished = state.core.finish(&item.ticket, Finish::Succeed, now);
            let Some(finished) = finished else { continue };
            let (unused, worked) = state.keep_lost(finished);
            let own = item.live.take();
            if std::mem::needs_drop::<K>() || worked.is_some() {
                ended.push((own, unused, worked));
            }
        }
        self.release(state);
        for (own, unused, worked) in ended {
            self.tell_worked(own.as_ref().map(|(_, key)| key), worked);
            drop_quietly(own);
            drop_quietly(unused);
        }
        // The others call the user's code under the lock, or need the time.
        for item in items.iter_mut().filter(|item| is_ours(item)) {
            item.end(|_, _, _| Finish::Succeed);
        }
    }

    /// Ends the delivery of `key`. `false`, and no effect, if it has ended already.
    #[inline]
    pub(crate) fn finish(
        &self,
        ticket: &core::Ticket,
        how: Finish,
        now: Option<Time>,
        key: &K,
    ) -> bool {
        let operation = Operation::Finish(ticket, &how);
        let needs_now = now.is_none() && (self.tracks || operation.always_needs_now());
        let now = if needs_now { Some(self.clock.now()) } else { now };
        let Ok(mut state) = self.lock() else { return false };
        if now.is_none() && state.core.needs_now(operation) {
            return self.finish_with_clock(state, ticket, how, key);
        }
        let finished = state.core.finish(ticket, how, now.unwrap_or_default());
        self.finished(state, finished, Some(key))
    }

    /// Reads the clock without the lock, and then ends the delivery. Apart from `finish`, so that the
    /// common case keeps one guard in registers.
    #[cold]
    #[inline(never)]
    fn finish_with_clock(
        &self,
        state: RankedGuard<'_, State<K>>,
        ticket: &core::Ticket,
        how: Finish,
        key: &K,
    ) -> bool {
        drop(state);
        let now = self.clock.now();
        let Ok(mut state) = self.lock() else { return false };
        let finished = state.core.finish(ticket, how, now);
        self.finished(state, finished, Some(key))
    }

    /// Ends a delivery whose guard was given up, as client-go's `Done`. `false`, and no effect, if it has
    /// ended already.
    pub(super) fn finish_detached(&self, ticket: &core::Ticket) -> bool {
        let how = Finish::Done;
        // Declared before the guard of the lock, so that a panic releases the lock first.
        let mut copy = None;
        let locked = self.lock_for(Operation::Finish(ticket, &how), None);
        let Ok((mut state, now)) = locked else { return false };
        if self.hooks.is_some() {
            copy = state.core.key_of(ticket).cloned();
        }
        let finished = state.core.finish(ticket, how, now);
        let has_ended = self.finished(state, finished, copy.as_ref());
        drop_quietly(copy);
        has_ended
    }

    /// Ends a delivery that could not be ended because a key's `clone` has panicked.
    #[cold]
    fn finish_without_copies(&self, ticket: &core::Ticket, how: Finish, now: Time, key: &K) {
        let Ok(mut state) = self.lock() else { return };
        let finished = state.core.finish_without_copies(ticket, how, now);
        self.finished(state, finished, Some(key));
    }

    /// Releases the lock after a delivery has ended, and then drops and reports what it leaves behind.
    /// `false` if it had ended before.
    #[inline(always)]
    fn finished(
        &self,
        mut state: RankedGuard<'_, State<K>>,
        finished: Option<Finished<K>>,
        delivered: Option<&K>,
    ) -> bool {
        let Some(finished) = finished else {
            // Keys that were due have become ready all the same.
            self.release(state);
            return false;
        };
        let (unused, worked) = state.keep_lost(finished);
        self.release(state);
        if worked.is_some() {
            self.tell_worked(delivered, worked);
        }
        drop_quietly(unused);
        true
    }

    #[inline(never)]
    pub(super) fn tell_worked(&self, key: Option<&K>, worked: Option<Duration>) {
        if let (Some(hooks), Some(key), Some(worked)) = (&self.hooks, key, worked) {
            quietly(|| hooks.done(key, worked));
        }
    }
}
