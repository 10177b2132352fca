//! A delivered key, and the completion of its delivery.
//!
//! Each delivery is completed exactly once: by a method that consumes the item, or by the drop of
//! the item. The delivery of a detached item is completed by its ticket or its key.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use requeue_core::{
    self as core, Asked, Delivery, Ending, Finish, Finished, Operation, Reasons, Time,
};

use super::cancelling::Cancellation;
use super::shared::{LOCK_BATCH, Shared, State};
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Arc, Ordering, Weak, drop_quietly, quietly};
#[cfg(feature = "opentelemetry")]
use crate::trace::Taken;
use crate::{CancelReason, Completion, Key};

enum Owner<'q, K: Key> {
    Borrowed(&'q Shared<K>),
    Owned(Arc<Shared<K>>),
}

impl<K: Key> Deref for Owner<'_, K> {
    type Target = Shared<K>;

    fn deref(&self) -> &Shared<K> {
        match self {
            Self::Borrowed(shared) => shared,
            Self::Owned(shared) => shared,
        }
    }
}

/// A delivered key. No other worker gets the key until the delivery is completed.
///
/// A worker completes the delivery with [`succeed`](Self::succeed), with [`retry`](Self::retry), or
/// with [`complete`](Self::complete) and any other [`Completion`]. **If an item is dropped before
/// that, its run has failed**, and the key is retried with a backoff. No key is therefore lost when
/// a worker panics, is dropped or returns early. There is one exception: if the run was
/// [cancelled](Self::cancelled), dropping the item completes the delivery with
/// [`Completion::Cancelled`].
///
/// # Examples
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
    /// The queue and the key, or `None` after the completion.
    live: Option<(Owner<'q, K>, K)>,
    pub(super) ticket: core::Ticket,
    asked: Asked,
    failures: u32,
    #[cfg(feature = "opentelemetry")]
    pub(super) taken: Option<Box<Taken>>,
}

impl<'q, K: Key> Item<'q, K> {
    pub(super) fn new_borrowed(shared: &'q Shared<K>, delivery: Delivery<K>) -> Self {
        Self::new(Owner::Borrowed(shared), delivery)
    }

    #[inline]
    fn new(owner: Owner<'q, K>, delivery: Delivery<K>) -> Self {
        if let (Some(hooks), Some(queued)) = (&owner.hooks, delivery.queued) {
            // A panic of a hook must not lose the delivery, so it is caught.
            quietly(|| hooks.get(&delivery.key, queued));
        }
        Self {
            #[cfg(feature = "opentelemetry")]
            taken: owner.take_traced(&delivery),
            live: Some((owner, delivery.key)),
            ticket: delivery.ticket,
            asked: delivery.asked,
            failures: delivery.failures,
        }
    }

    /// Returns the key. An item also dereferences to its key.
    #[must_use]
    pub fn key(&self) -> &K {
        match &self.live {
            Some((_, key)) => key,
            // The contents are removed only when the item is dropped, or by methods that consume
            // it.
            None => unreachable!("a completed item is not accessible"),
        }
    }

    /// Returns the number of this attempt: one more than the number of consecutive failures before
    /// this run.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.failures.saturating_add(1)
    }

    /// Returns the number of adds that this run serves. It is at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.asked.adds
    }

    /// Returns the flags of all adds that this run serves, or-ed.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.asked.flags
    }

    /// Returns the reasons of the adds that this run serves. A retry also has the reasons of the
    /// failed run.
    ///
    /// If an add of the queue has ever had a reason, the call acquires the lock of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue, intern_reason, reason_text};
    ///
    /// let queue = Queue::new();
    /// queue.add_with("web", Add::now().reason(intern_reason("resync")));
    /// let reasons = queue.try_get().unwrap().reasons();
    /// assert_eq!(reasons.iter().map(|count| reason_text(count.reason)).collect::<Vec<_>>(), ["resync"]);
    /// ```
    #[must_use]
    pub fn reasons(&self) -> Reasons {
        let owner = self.live.as_ref().map(|(owner, _)| owner);
        owner.map(|owner| owner.run_reasons(&self.ticket)).unwrap_or_default()
    }

    /// Returns the highest priority of the adds that this run serves.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.asked.priority
    }

    /// Returns the time for which the key was ready before this delivery. Returns `None` unless the
    /// queue [tracks times](super::Builder::track_times).
    ///
    /// The time before the key became due is not included. If the queue tracks times, the call
    /// acquires its lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).track_times().build()?;
    /// queue.add("a");
    /// clock.advance(Duration::from_secs(3));
    /// let item = queue.try_get().unwrap();
    /// clock.advance(Duration::from_secs(1));
    /// queue.add("a"); // for the next run
    /// assert_eq!(item.queued(), Some(Duration::from_secs(3)));
    /// # item.succeed();
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    #[must_use]
    pub fn queued(&self) -> Option<Duration> {
        let (owner, _) = self.live.as_ref()?;
        // A queue that tracks times needs the time in every operation, so this queue does not track
        // times.
        if !owner.facts.always_needs_now {
            return None;
        }
        owner.lock().ok()?.core.queued(&self.ticket)
    }

    /// Sets the priority of the next run of the key, if the completion of this delivery causes a
    /// run.
    ///
    /// By default, that run has the priority of this run.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Completion, Order, Queue};
    ///
    /// let queue = Queue::builder().order(Order::Priority { oldest_every: 10 }).build()?;
    /// queue.add_with("a", Add::now().priority(5));
    /// let mut item = queue.try_get().unwrap();
    /// item.set_priority(-5);
    /// item.complete(Completion::Release);
    /// assert_eq!(queue.try_get().unwrap().priority(), -5);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub const fn set_priority(&mut self, priority: i32) {
        self.asked.priority = priority;
    }

    /// Returns the fencing token of this delivery. No other delivery of the queue has the same
    /// token.
    #[must_use]
    pub const fn fencing_token(&self) -> u64 {
        self.ticket.epoch()
    }

    /// Returns why the run was cancelled, or `None` if it was not cancelled.
    ///
    /// [`Queue::cancel_running`](super::Queue::cancel_running) cancels runs. An add also does, in a
    /// queue that [restarts](crate::InFlightPolicy::Restart) runs.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.live.as_ref().and_then(|(owner, _)| owner.cancel_reason(&self.ticket))
    }

    /// Waits until the run is cancelled, and returns the reason.
    ///
    /// The future does not borrow the item, so another task can await it. It does not keep the
    /// queue alive. If the delivery is completed or the queue is dropped, the future never becomes
    /// ready.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect. If the run is cancelled in the meantime, a later call
    /// still returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use requeue::{CancelReason, Queue, InFlightPolicy};
    ///
    /// let queue = Queue::builder().in_flight_policy(InFlightPolicy::restart()).build()?;
    /// queue.add("build");
    /// let item = queue.get().await.unwrap();
    /// queue.add("build"); // the sources have changed again
    /// let reason = tokio::select! {
    ///     reason = item.cancelled() => reason,
    ///     () = std::future::pending() => unreachable!("the build takes long"),
    /// };
    /// assert_eq!(reason, CancelReason::Restarted);
    /// item.complete(requeue::Completion::Cancelled);
    /// assert_eq!(queue.get().await.unwrap().adds(), 2);
    /// # Ok::<(), requeue::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + Sync + use<K> {
        self.new_cancellation()
    }

    /// Calls `f` when the run is cancelled, on the thread that cancels it. If the returned value is
    /// dropped before, `f` is not called.
    pub(crate) fn on_cancel(
        &self,
        f: impl Fn(CancelReason) + Send + Sync + 'static,
    ) -> Cancellation<K> {
        self.new_cancellation().call_on_cancel(f)
    }

    fn new_cancellation(&self) -> Cancellation<K> {
        let queue =
            self.live.as_ref().map_or_else(Weak::new, |(owner, _)| Weak::clone(&owner.this));
        Cancellation::new(queue, self.ticket)
    }

    /// Excludes this run from the [pace](crate::Builder::pace) of the queue. A worker calls this
    /// method if it finds no work for the key.
    ///
    /// In a queue without a pace, the call has no effect. [`count_start`](Self::count_start)
    /// reverses it.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::clock::FakeClock;
    /// use requeue::{Pace, Queue};
    /// use std::time::Duration;
    ///
    /// let pace = Pace::min_interval(Duration::from_secs(10));
    /// let queue = Queue::builder().clock(FakeClock::new()).pace(pace).build()?;
    /// queue.add("a");
    /// let item = queue.try_get().expect("it is ready");
    /// item.uncount_start();
    /// item.succeed();
    /// queue.add("a");
    /// assert!(queue.try_get().is_some());
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    // This method is hidden, because only the program `requeue` needs it: the program may find that
    // it does not have to start a run.
    #[doc(hidden)]
    pub fn uncount_start(&self) {
        if let Some((owner, _)) = &self.live
            && let Ok(mut state) = owner.lock_to_change()
        {
            state.core.uncount_start(&self.ticket);
        }
    }

    /// Makes this run count toward the [pace](crate::Builder::pace) of the queue from now on,
    /// instead of from its delivery. A worker calls this method if it starts the run some time
    /// after the delivery.
    ///
    /// In a queue without a pace, the call has no effect.
    // Only the program `requeue` needs this method, so it is hidden.
    #[doc(hidden)]
    pub fn count_start(&self) {
        let Some((owner, _)) = &self.live else { return };
        let now = owner.clock.now();
        if let Ok(mut state) = owner.lock() {
            state.core.count_start(&self.ticket, now);
        }
    }

    /// Completes the delivery with `completion`.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Completion, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add("a");
    /// let item = queue.try_get().unwrap();
    /// let result: Result<(), &str> = Err("not yet");
    /// item.complete(match result {
    ///     Ok(()) => Completion::Succeed,
    ///     Err(_) => Completion::Retry,
    /// });
    /// assert_eq!(queue.failures("a"), 1);
    /// ```
    #[inline]
    pub fn complete(mut self, completion: Completion) {
        self.complete_with(completion);
    }

    /// Completes the delivery with [`Completion::Succeed`]: the run succeeded, and the failures of
    /// the key are forgotten.
    #[inline]
    pub fn succeed(mut self) {
        self.complete_with(Completion::Succeed);
    }

    /// Completes the delivery with [`Completion::Retry`]: the run failed, and the key is retried
    /// after the backoff that the limiter computes.
    ///
    /// [`Queue::look_up`](super::Queue::look_up) then returns the due time of the key.
    pub fn retry(mut self) {
        self.complete_with(Completion::Retry);
    }

    /// Completes the delivery as client-go's `Done` does: the number of failures of the key does
    /// not change.
    ///
    /// This method is for code that comes from client-go. Other code calls
    /// [`succeed`](Self::succeed).
    pub fn done(mut self) {
        self.finish_with(Finish::Done);
    }

    /// Completes all `items` as [`succeed`](Self::succeed) does, and acquires the lock once per 256
    /// items.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Item, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add_all(0..100);
    /// Item::succeed_all(queue.get_many(32).now());
    /// assert_eq!((queue.len(), queue.states().in_flight), (68, 0));
    /// ```
    pub fn succeed_all(items: impl IntoIterator<Item = Self>) {
        // The iterator is user code, so it must not run under the lock.
        let mut items: Vec<Self> = items.into_iter().collect();
        if let Some(Some((Owner::Borrowed(shared), _))) = items.first().map(|item| &item.live) {
            let shared = *shared;
            items.chunks_mut(LOCK_BATCH).for_each(|slice| shared.succeed_all(slice));
        }
        for item in items {
            // This item belongs to another queue, or owns its queue, so it is completed separately.
            if item.live.is_some() {
                item.succeed();
            }
        }
    }

    /// Converts the item so that it can be sent to other threads and tasks.
    ///
    /// The new item keeps the queue alive.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add_all(["a", "b"]);
    /// let items: Vec<_> = queue.get_many(2).now().into_iter().map(|i| i.into_owned()).collect();
    /// std::thread::spawn(move || items.into_iter().for_each(|item| item.succeed()));
    /// ```
    pub fn into_owned(mut self) -> Item<'static, K> {
        let live = self.live.take().and_then(|(owner, key)| {
            let owner = match owner {
                Owner::Borrowed(shared) => shared.this.upgrade()?,
                Owner::Owned(shared) => shared,
            };
            Some((Owner::Owned(owner), key))
        });
        Item {
            live,
            ticket: self.ticket,
            asked: self.asked,
            failures: self.failures,
            #[cfg(feature = "opentelemetry")]
            taken: self.taken.take(),
        }
    }

    /// Detaches the delivery from this item, for code that passes keys between tasks or languages.
    ///
    /// The key stays in flight until a caller passes the key to
    /// [`Queue::done`](super::Queue::done), or the ticket to
    /// [`Queue::done_ticket`](super::Queue::done_ticket).
    pub fn into_parts(mut self) -> (K, Ticket) {
        match self.live.take() {
            Some((owner, key)) => {
                let ticket = Ticket { ticket: self.ticket, queue: owner.number };
                if let Ok(mut state) = owner.lock() {
                    state.core.detach(&self.ticket);
                }
                (key, ticket)
            }
            // No method has removed the contents of the item, as in `key`.
            None => unreachable!("a completed item is not accessible"),
        }
    }

    /// Returns the queue of the item, if it creates spans.
    #[cfg(feature = "opentelemetry")]
    pub(super) fn traced_queue(&self) -> Option<&Shared<K>> {
        self.live.as_ref().map(|(owner, _)| &**owner).filter(|shared| shared.traces.is_some())
    }

    /// Returns true if the item belongs to this queue, and its delivery is not completed.
    #[inline]
    pub(super) fn is_of(&self, shared: &Shared<K>) -> bool {
        self.live.as_ref().is_some_and(|(owner, _)| std::ptr::eq(&**owner, shared))
    }

    // This function is inlined, so that each caller contains only the code for its own completion.
    #[inline(always)]
    fn complete_with(&mut self, completion: Completion) {
        let Some((owner, key)) = &self.live else { return };
        let (how, now) = owner.resolve_completion(completion, key, self.asked, None);
        #[cfg(feature = "opentelemetry")]
        owner.pass_traces_on(key, &self.ticket, self.taken.take(), &how);
        // If the `clone` of a key panics in this call, the state is unchanged. The drop of the item
        // then completes the delivery.
        owner.finish_delivery(&self.ticket, how, now, key);
        self.drop_contents();
    }

    fn finish_with(&mut self, how: Finish) {
        let Some((owner, key)) = &self.live else { return };
        owner.finish_delivery(&self.ticket, how, None, key);
        self.drop_contents();
    }

    #[inline]
    pub(super) fn drop_contents(&mut self) {
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
            self.fail_dropped();
        }
    }
}

impl<K: Key> Item<'_, K> {
    /// Completes the delivery of an item that was dropped before its completion. The run has
    /// failed, unless it was cancelled.
    #[cold]
    fn fail_dropped(&mut self) {
        // This function may run during a panic, so it must catch every panic of user code.
        let Some((owner, key)) = &self.live else { return };
        let now = quietly(|| owner.clock.now()).unwrap_or_default();
        // The limiter is called without the lock. `seal_run` prevents a cancellation in the
        // meantime.
        let is_cancelled = quietly(|| owner.seal_run(&self.ticket)).flatten().is_some();
        let completion = if is_cancelled { Completion::Cancelled } else { Completion::Retry };
        let (how, _) = owner.resolve_completion(completion, key, self.asked, Some(now));
        #[cfg(feature = "opentelemetry")]
        quietly(|| owner.pass_traces_on(key, &self.ticket, self.taken.take(), &how));
        if quietly(|| owner.finish_delivery(&self.ticket, how, Some(now), key)).is_none() {
            quietly(|| owner.finish_without_copies(&self.ticket, how, now, key));
        }
        self.drop_contents();
    }
}

/// After a panic, the run has failed. No other state is affected.
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

/// Identifies a delivery that was detached from its item.
///
/// Dropping the ticket has no effect: the key stays in flight until a caller calls `done_ticket` or
/// `done`.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[must_use = "without its ticket, a delivery can only be completed by `Queue::done`"]
pub struct Ticket {
    pub(super) ticket: core::Ticket,
    /// The number of the queue. Deliveries of different queues can have the same epoch.
    pub(super) queue: u64,
}

/// The contents of a completed item. They are values of the user, so they are dropped outside the
/// lock, and a panic of their `drop` is discarded.
pub(super) struct Completed<'q, K: Key> {
    live: Option<(Owner<'q, K>, K)>,
    /// The key that the queue stored, if it no longer has a record of this key.
    unused: Option<K>,
}

impl<'q, K: Key> Completed<'q, K> {
    pub(super) const fn new() -> Self {
        Self { live: None, unused: None }
    }

    /// Moves the contents of `item`, whose delivery is completed, into this value.
    #[inline]
    pub(super) fn take_contents(&mut self, item: &mut Item<'q, K>, unused: Option<K>) {
        (self.live, self.unused) = (item.live.take(), unused);
    }

    /// Returns the key that was delivered.
    pub(super) fn delivered_key(&self) -> Option<&K> {
        self.live.as_ref().map(|(_, key)| key)
    }
}

impl<K: Key> Drop for Completed<'_, K> {
    #[inline]
    fn drop(&mut self) {
        drop_quietly(self.live.take());
        drop_quietly(self.unused.take());
    }
}

impl<K: Key> State<K> {
    /// If the run of the key was dropped, stores the key for `take_dropped`. Otherwise, returns the
    /// key, which the caller drops. Also returns the time for which the key was in flight.
    #[inline(always)]
    pub(super) fn keep_dropped(&mut self, finished: Finished<K>) -> (Option<K>, Option<Duration>) {
        let Finished { mut key, lost, worked, .. } = finished;
        if lost && let Some(key) = key.take() {
            self.dropped.push(key);
        }
        (key, worked)
    }
}

impl<K: Key> Shared<K> {
    /// Converts `completion` into the form that the state machine uses. Also returns the time, if
    /// the clock was read. Calls the limiter, and counts a key that is given up.
    #[inline(always)]
    fn resolve_completion(
        &self,
        completion: Completion,
        key: &K,
        asked: Asked,
        now: Option<Time>,
    ) -> (Finish, Option<Time>) {
        let how = match completion {
            Completion::Succeed => Finish::Succeed,
            Completion::RequeueAfter(delay) => Finish::RequeueAfter { delay, asked },
            Completion::Retry => {
                // The queue gets the same time as the limiter, so that both compute the same due
                // time.
                let now = now.unwrap_or_else(|| self.clock.now());
                let delay = self.limiter.next_delay(key, now);
                return (Finish::RetryAfter { delay, asked }, Some(now));
            }
            Completion::RetryAfter(delay) => Finish::RetryAfter { delay, asked },
            Completion::GiveUp => {
                self.tally.given_up.fetch_add(1, Ordering::Relaxed);
                Finish::GiveUp
            }
            Completion::Release => Finish::Release { asked },
            Completion::ReleaseAfter(delay) => Finish::ReleaseAfter { delay, asked },
            Completion::Cancelled => Finish::Cancelled { asked },
        };
        if let Finish::Succeed | Finish::GiveUp | Finish::RequeueAfter { .. } = how {
            self.limiter.forget_key(key);
        }
        (how, now)
    }

    /// Completes the deliveries of those items that borrow from this queue.
    fn succeed_all(&self, items: &mut [Item<'_, K>]) {
        let is_ours = |item: &Item<'_, K>| matches!(&item.live, Some((Owner::Borrowed(of), _)) if std::ptr::eq(*of, self));
        // The limiter is called before the queue is locked, because the lock of the limiter must be
        // acquired first.
        for item in items.iter().filter(|item| is_ours(item)) {
            self.limiter.forget_key(item);
        }
        let now = self.now_before_lock(Operation::Promote, None);
        let mut ended = Vec::new();
        let Ok(mut state) = self.lock() else { return };
        // If no key waits, no completion needs the time.
        let now = state.time_for(Operation::Promote, now);
        let has_order = state.core.has_order();
        for item in items.iter_mut().filter(|item| !has_order && is_ours(item)) {
            let operation = Operation::Finish(&item.ticket, &Finish::Succeed);
            let Some(now) = state.time_for(operation, now) else { continue };
            state.watchers.end_delivery(item.ticket.epoch());
            let finished = state.core.finish(&item.ticket, Finish::Succeed, now);
            let Some(finished) = finished else { continue };
            let (unused, worked) = state.keep_dropped(finished);
            let own = item.live.take();
            if std::mem::needs_drop::<K>() || worked.is_some() {
                ended.push((own, unused, worked));
            }
        }
        self.release_lock(state);
        for (own, unused, worked) in ended {
            self.report_worked(own.as_ref().map(|(_, key)| key), worked);
            drop_quietly(own);
            drop_quietly(unused);
        }
        // The remaining items are completed one by one: their completions call user code under the
        // lock, or need the time.
        for item in items.iter_mut().filter(|item| is_ours(item)) {
            item.finish_with(Finish::Succeed);
        }
    }

    /// Completes the delivery of `key`. If it was already completed, returns `false` and changes
    /// nothing.
    #[inline]
    pub(crate) fn finish_delivery(
        &self,
        ticket: &core::Ticket,
        how: Finish,
        now: Option<Time>,
        key: &K,
    ) -> bool {
        let locked = self.lock_for(Operation::Finish(ticket, &how), now);
        let Ok((mut state, now)) = locked else { return false };
        // If the `clone` of a key panics in `finish`, the drop of the item completes the delivery.
        state.watchers.end_delivery(ticket.epoch());
        let finished = state.core.finish(ticket, how, now);
        self.release_finished(state, finished, Some(key))
    }

    /// Completes a detached delivery as client-go's `Done` does. If it was already completed,
    /// returns `false` and changes nothing.
    pub(super) fn finish_detached(&self, ticket: &core::Ticket) -> bool {
        let how = Finish::Done;
        // This value is declared before the lock guard, so that a panic releases the lock before it
        // drops the value.
        let mut copy = None;
        let locked = self.lock_for(Operation::Finish(ticket, &how), None);
        let Ok((mut state, now)) = locked else { return false };
        // After a shutdown, the next run of the key may be dropped, and the limiter must then
        // forget the key.
        let may_forget = state.core.ending() == Ending::ShutDown && self.limiter.may_forget();
        if self.hooks.is_some() || may_forget {
            copy = state.core.key_of(ticket).cloned();
        }
        let finished = state.core.finish(ticket, how, now);
        state.watchers.end_delivery(ticket.epoch());
        let has_ended = self.release_finished(state, finished, copy.as_ref());
        drop_quietly(copy);
        has_ended
    }

    /// Completes a delivery after `finish` has failed, because the `clone` of a key panicked.
    #[cold]
    fn finish_without_copies(&self, ticket: &core::Ticket, how: Finish, now: Time, key: &K) {
        let Ok(mut state) = self.lock() else { return };
        let finished = state.core.finish_without_copies(ticket, how, now);
        self.release_finished(state, finished, Some(key));
    }

    /// Releases the lock after a completion. Then drops the keys that are no longer needed, and
    /// calls the hooks. Returns `false` if the delivery was already completed.
    #[inline(always)]
    fn release_finished(
        &self,
        mut state: RankedGuard<'_, State<K>>,
        finished: Option<Finished<K>>,
        delivered: Option<&K>,
    ) -> bool {
        let Some(finished) = finished else {
            // The call has made due keys ready, even if the delivery was already completed.
            self.release_lock(state);
            return false;
        };
        let is_dropped = finished.lost;
        let (unused, worked) = state.keep_dropped(finished);
        self.release_lock(state);
        if is_dropped && let Some(key) = delivered {
            // The queue has forgotten the failures of the key, so the limiter must forget them too.
            self.limiter.forget_key(key);
        }
        if worked.is_some() {
            self.report_worked(delivered, worked);
        }
        drop_quietly(unused);
        true
    }

    #[inline(never)]
    pub(super) fn report_worked(&self, key: Option<&K>, worked: Option<Duration>) {
        if let (Some(hooks), Some(key), Some(worked)) = (&self.hooks, key, worked) {
            quietly(|| hooks.done(key, worked));
        }
    }
}
