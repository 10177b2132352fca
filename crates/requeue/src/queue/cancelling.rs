//! The cancellation of runs in flight, and the future that waits for it.

use std::borrow::Borrow;
use std::future::Future;
use std::hash::{BuildHasher, Hash};
use std::pin::Pin;
use std::task::{Context, Poll};

use requeue_core::{self as core, CancelReason, CancelledRun};

use super::Queue;
use super::shared::{Shared, State};
use super::waiters::Wakes;
use super::watchers::Watcher;
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Arc, Weak, drop_quietly, waker_fn};

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Cancels the run in flight of `key`. The result says if there was such a run.
    ///
    /// The [`Item`](super::Item) of the run is notified. [Workers](crate::workers) then cancel the
    /// context of their handler with [`CancelReason::Cancelled`]. The key stays in flight until its
    /// worker completes the delivery. If the worker uses
    /// [`Completion::Cancelled`](crate::Completion::Cancelled), the run counts neither as a success
    /// nor as a failure. The same applies if the item of a cancelled run is dropped, or if its
    /// handler panics. Any other completion has its usual effect.
    ///
    /// The call does not change pending runs of the key or its failures. To stop all work on a key,
    /// also call [`cancel`](Self::cancel), which removes its pending runs.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{CancelReason, CancelledRun, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add("build");
    /// assert_eq!(queue.cancel_running("build"), CancelledRun::NotInFlight);
    ///
    /// let item = queue.try_get().unwrap();
    /// assert_eq!(queue.cancel_running("build"), CancelledRun::Cancelled);
    /// assert_eq!(item.cancel_reason(), Some(CancelReason::Cancelled));
    /// drop(item);
    /// assert_eq!((queue.failures("build"), queue.states().total()), (0, 0));
    /// ```
    pub fn cancel_running<Q>(&self, key: &Q) -> CancelledRun
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_key(key);
        // Due keys become ready first, because a delayed add that is due may itself restart the
        // run.
        let Some((mut state, _)) = self.shared.lock_settled() else {
            return CancelledRun::NotInFlight;
        };
        let (cancelled, epoch) = state.core.cancel_running(key, hash);
        let mut wakes = Wakes::new();
        if let Some(epoch) = epoch {
            state.watchers.take_wakers(epoch, &mut wakes);
        }
        self.shared.release_lock(state);
        wakes.wake_each();
        cancelled
    }
}

impl<K: Key> Shared<K> {
    /// Returns why the run of this delivery was cancelled. Returns `None` if it was not cancelled,
    /// or if the delivery was completed.
    pub(super) fn cancel_reason(&self, ticket: &core::Ticket) -> Option<CancelReason> {
        let state = self.lock_after_restarts()?;
        let reason = state.core.cancel_reason(ticket);
        self.release_lock(state);
        reason
    }

    /// Prevents any later cancellation of the run of this delivery. Returns why the run was
    /// cancelled, if it was.
    pub(super) fn seal_run(&self, ticket: &core::Ticket) -> Option<CancelReason> {
        let mut state = self.lock_after_restarts()?;
        let reason = state.core.seal(ticket);
        self.release_lock(state);
        reason
    }

    /// Acquires the lock. In a queue where adds restart runs, first makes due keys ready.
    fn lock_after_restarts(&self) -> Option<RankedGuard<'_, State<K>>> {
        if self.facts.restarts { Some(self.lock_settled()?.0) } else { self.lock().ok() }
    }
}

/// A future that waits until a delivery is cancelled. If the delivery is completed first, the
/// future never becomes ready. The future does not keep the queue alive.
#[must_use = "it has no effect once it is dropped"]
pub(crate) struct Cancellation<K: Key> {
    shared: Weak<Shared<K>>,
    ticket: core::Ticket,
    /// The number and the entry of the future in the list of futures, while it waits.
    listed: Option<(u64, Arc<Watcher>)>,
}

impl<K: Key> Cancellation<K> {
    pub(super) const fn new(shared: Weak<Shared<K>>, ticket: core::Ticket) -> Self {
        Self { shared, ticket, listed: None }
    }

    /// Calls `f` when the delivery is cancelled, on the thread that cancels it. If the returned
    /// value is dropped before, `f` is not called.
    pub(super) fn call_on_cancel(
        mut self,
        f: impl Fn(CancelReason) + Send + Sync + 'static,
    ) -> Self {
        let (shared, ticket) = (Weak::clone(&self.shared), self.ticket);
        let waker = waker_fn(move || {
            if let Some(reason) = shared.upgrade().and_then(|shared| shared.cancel_reason(&ticket))
            {
                f(reason);
            }
        });
        if Pin::new(&mut self).poll(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
        self
    }

    /// Removes the future from the list of futures.
    fn leave_watchers(&mut self) {
        let Some((number, watcher)) = self.listed.take() else { return };
        if let Some(shared) = self.shared.upgrade()
            && let Ok(mut state) = shared.lock()
        {
            state.watchers.remove_watcher(self.ticket.epoch(), number);
        }
        drop_quietly(watcher);
    }
}

/// The future does not pin any of its fields.
impl<K: Key> Unpin for Cancellation<K> {}

impl<K: Key> Future for Cancellation<K> {
    type Output = CancelReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CancelReason> {
        let this = self.get_mut();
        // The future is polled often, and a run is rarely cancelled. A poll with the same waker
        // therefore does not acquire the lock.
        if this.listed.as_ref().is_some_and(|(_, watcher)| watcher.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        this.leave_watchers();
        let Some(shared) = this.shared.upgrade() else { return Poll::Pending };
        let watcher = Watcher::new(cx.waker().clone());
        let Some(mut state) = shared.lock_after_restarts() else {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        if let Some(reason) = state.core.cancel_reason(&this.ticket) {
            shared.release_lock(state);
            return Poll::Ready(reason);
        }
        if state.core.key_of(&this.ticket).is_some() {
            let number = state.watchers.list_watcher(this.ticket.epoch(), Arc::clone(&watcher));
            this.listed = Some((number, watcher));
        }
        shared.release_lock(state);
        Poll::Pending
    }
}

impl<K: Key> Drop for Cancellation<K> {
    fn drop(&mut self) {
        self.leave_watchers();
    }
}
