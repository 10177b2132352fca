//! Pause, close, shutdown and drain of a queue.
//!
//! Each dropped key is reported once: by the call that dropped it, by a drain, or by
//! `take_dropped`.

use std::future::Future;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue_core::{Ending, Time};

use super::Queue;
use super::drainers::Until;
use super::dropped_keys::DroppedKeys;
use super::shared::{LOCK_BATCH, Shared};
use crate::Key;
use crate::clock::{Alarm, Clock};
use crate::sync::{Arc, drop_quietly, quietly};

/// The result of a drain.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Drained<K> {
    /// True if the drain was complete: no key was ready or in flight. With
    /// [`in_flight_only`](Drain::in_flight_only), true if no key was in flight.
    pub finished: bool,
    /// The number of keys that are still ready. They are still delivered to getters.
    pub ready: usize,
    /// The number of keys that are still in flight.
    pub in_flight: usize,
    /// The keys whose pending runs were dropped: the keys that waited when the queue was shut down,
    /// and the keys that failed later.
    pub dropped: Vec<K>,
}

impl<K> Drained<K> {
    /// Creates a result. It is `finished` if no key is ready or in flight.
    // Only requeue-store needs this function, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(ready: usize, in_flight: usize, dropped: Vec<K>) -> Self {
        Self { finished: ready == 0 && in_flight == 0, ready, in_flight, dropped }
    }
}

/// Dropped keys that were not yet returned to a caller. If this value is dropped, `take_dropped`
/// returns them.
struct Unreported<'q, K: Key> {
    shared: &'q Shared<K>,
    keys: Vec<K>,
}

impl<K: Key> Drop for Unreported<'_, K> {
    fn drop(&mut self) {
        // A drain was dropped, or a call has panicked, before the keys were returned.
        if !self.keys.is_empty()
            && let Ok(mut state) = self.shared.lock()
        {
            state.dropped.append_keys(std::mem::take(&mut self.keys));
        }
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Refuses new keys from now on. Known keys still run until none is left.
    ///
    /// Waiting keys are still delivered when they are due, and failed keys are retried. `get`
    /// returns `None` when no key is ready, waiting or in flight.
    ///
    /// Call this method at the end of the input. It can be called repeatedly, and from any thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Added, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add(1);
    /// queue.close();
    /// assert_eq!(queue.add(2), Added::Refused);
    /// queue.get().blocking().expect("the key is still delivered").succeed();
    /// assert!(queue.get().blocking().is_none());
    /// ```
    pub fn close(&self) {
        let Ok(mut state) = self.shared.lock_to_change() else { return };
        state.core.end(Ending::Closed);
        self.shared.release_lock(state);
    }

    /// Ends the wait of each key that waits for further debounced adds. Returns the number of these
    /// keys.
    ///
    /// The pending runs of these keys are due now, or as soon as a backoff and the
    /// [pace](crate::Pace) permit. Each run serves the adds that came before. The due times of
    /// other delayed adds do not change. A later [debounced](crate::Add::debounce) add waits again.
    ///
    /// Call this method when no more adds are expected: at the end of the input, or before a
    /// shutdown, which would drop the waiting keys. The keys become due in no particular order.
    ///
    /// If no key was ever debounced, the call examines no keys. Otherwise, it examines every key
    /// of the queue, up to 256 under one acquisition of the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add_with("config.toml", Add::debounce(Duration::from_secs(3600)));
    /// assert!(queue.try_get().is_none());
    /// assert_eq!(queue.flush_debounced(), 1);
    /// queue.try_get().expect("the key no longer waits").succeed();
    /// ```
    pub fn flush_debounced(&self) -> usize {
        let now = self.now();
        self.walk_records(|mut state, walk| {
            let flushed = state.core.flush_debounced(walk, LOCK_BATCH, now);
            state.core.promote(now, LOCK_BATCH);
            self.shared.release_lock(state);
            flushed
        })
    }

    /// Refuses all adds from now on, and drops the waiting keys.
    ///
    /// Returns the dropped keys, in no particular order.
    ///
    /// This is client-go's `ShutDown`. Ready keys are still delivered. After the last ready key,
    /// `get` returns `None`. As in client-go, this result is not final while a dirty key is in
    /// flight. If the queue is paused, its ready keys are also dropped. The same applies to the
    /// ready keys of a paused [group](Self::group). The queue and the limiter forget the failures
    /// of a dropped key.
    ///
    /// This method can be called repeatedly, and from any thread. It ends the wait of every earlier
    /// drain.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add("ready");
    /// queue.add_after("waiting", Duration::from_secs(3600));
    /// assert_eq!(queue.shut_down(), ["waiting"]);
    /// queue.get().blocking().expect("ready keys are delivered").succeed();
    /// assert!(queue.get().blocking().is_none());
    /// ```
    pub fn shut_down(&self) -> Vec<K> {
        let mut dropped = self.end_queue(true);
        std::mem::take(&mut dropped.keys)
    }

    fn end_queue(&self, ends_drains: bool) -> Unreported<'_, K> {
        let mut dropped = Unreported { shared: &self.shared, keys: Vec::new() };
        // Due keys are ready, even if no operation has noticed them, so they must not be dropped.
        let Some((state, _)) = self.shared.lock_settled() else { return dropped };
        let mut first = Some(state);
        loop {
            let is_first = first.is_some();
            let Some(mut state) = first.take().or_else(|| self.shared.lock_to_change().ok()) else {
                return dropped;
            };
            let mut wakers = Vec::new();
            if is_first {
                state.core.end(Ending::ShutDown);
                if ends_drains {
                    state.shut_downs += 1;
                    wakers.extend(state.drainers.take_wakers());
                }
            }
            let before = dropped.keys.len();
            let drop_some = || state.core.drop_some(LOCK_BATCH, &mut dropped.keys);
            let more = catch_unwind(AssertUnwindSafe(drop_some));
            let unordered = state.core.drain_order(LOCK_BATCH);
            let full = unordered.len() == LOCK_BATCH;
            self.shared.release_lock(state);
            unordered.into_iter().for_each(drop_quietly);
            dropped.keys[before..].iter().for_each(|key| self.forget_dropped(key));
            for waker in wakers {
                quietly(|| waker.wake());
            }
            match more {
                // The `clone` of a key has panicked. All getters and drains that waited have
                // already been woken.
                Err(panic) => resume_unwind(panic),
                Ok(more) if !more && !full => return dropped,
                Ok(_) => {}
            }
        }
    }

    /// Makes the limiter forget a key whose run was dropped, if the queue has forgotten its
    /// failures. If the key is in flight, it keeps its failures until its completion.
    fn forget_dropped(&self, key: &K) {
        if self.shared.limiter.may_forget() && quietly(|| self.failures(key)) == Some(0) {
            self.shared.limiter.forget_key(key);
        }
    }

    /// Shuts the queue down as [`shut_down`](Self::shut_down) does. Returns a [`Drain`], which
    /// waits until no key is ready or in flight.
    ///
    /// A later call of `shut_down` ends the wait.
    ///
    /// Await the drain in a task, or call [`blocking`](Drain::blocking) on a thread. By default,
    /// the time of the wait is not limited: see [`timeout`](Drain::timeout). With
    /// [`in_flight_only`](Drain::in_flight_only), the drain waits only for the keys in flight, as
    /// client-go's `ShutDownWithDrain` does.
    ///
    /// # Cancel safety
    ///
    /// This call shuts the queue down, before the future is polled. Dropping the future stops the
    /// wait. [`take_dropped`](Self::take_dropped) then returns the keys that the result would have
    /// contained.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use requeue::Queue;
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add("stuck");
    /// let item = queue.get().await;
    /// let drained = queue.shut_down_with_drain().timeout(Duration::from_millis(1)).await;
    /// assert!(!drained.finished);
    /// assert_eq!(drained.in_flight, 1);
    /// # drop(item);
    /// # });
    /// ```
    pub fn shut_down_with_drain(&self) -> Drain<'_, K, S> {
        Drain::new(self)
    }

    /// Returns true if the queue was shut down, like client-go's `ShuttingDown`.
    #[must_use]
    pub fn shutting_down(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.ending() == Ending::ShutDown)
    }

    /// Returns true if the queue refuses new keys, because it was [closed](Self::close) or shut
    /// down.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.ending() != Ending::Open)
    }

    /// Returns the keys that were dropped after the shutdown, because they failed or were requeued.
    ///
    /// Each key is returned once. If a drain has returned a key, this method does not.
    #[must_use = "each dropped key is returned only once"]
    pub fn take_dropped(&self) -> Vec<K> {
        let dropped = self
            .shared
            .lock()
            .map(|mut state| std::mem::replace(&mut state.dropped, DroppedKeys::new()));
        dropped.map(|dropped| dropped.into_keys().collect()).unwrap_or_default()
    }

    /// Pauses the queue: no key is delivered. All other operations continue: keys are added, become
    /// ready, and are completed.
    ///
    /// After a shutdown, the call has no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add(1);
    /// queue.pause();
    /// assert!(queue.try_get().is_none());
    /// queue.resume();
    /// assert!(queue.try_get().is_some());
    /// ```
    pub fn pause(&self) {
        let Ok(mut state) = self.shared.lock_to_change() else { return };
        state.core.pause();
        self.shared.release_lock(state);
    }

    /// Resumes the queue: keys are delivered again. After a shutdown, the call has no effect.
    pub fn resume(&self) {
        let Ok(mut state) = self.shared.lock_to_change() else { return };
        state.core.resume();
        self.shared.release_lock(state);
    }

    /// Returns true if the queue is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.is_paused())
    }
}

/// A future that waits until a queue is drained. [`Queue::shut_down_with_drain`] creates it.
#[must_use = "a future does nothing unless it is polled, but the queue is shut down already"]
pub struct Drain<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    queue: &'q Queue<K, S>,
    dropped: Unreported<'q, K>,
    deadline: Option<Time>,
    alarm: Option<Alarm>,
    /// The number of calls of `shut_down` before this drain was created.
    shut_downs: u64,
    /// The number of this drain in the list of drains, while it waits.
    number: Option<u64>,
    until: Until,
}

impl<'q, K: Key, S: BuildHasher> Drain<'q, K, S> {
    fn new(queue: &'q Queue<K, S>) -> Self {
        // The number is read before the shutdown. If another thread calls `shut_down` during this
        // shutdown, it therefore ends this drain.
        let shut_downs = queue.shared.lock().map_or(0, |state| state.shut_downs);
        let dropped = queue.end_queue(false);
        Self {
            queue,
            dropped,
            deadline: None,
            alarm: None,
            shut_downs,
            number: None,
            until: Until::Drained,
        }
    }

    /// Limits the wait to `timeout` from now, measured by the clock of the queue.
    ///
    /// After that time, the result contains the numbers of keys that are still ready or in flight.
    #[must_use = "a future does nothing unless it is polled, but the queue is shut down already"]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Some(self.queue.now() + timeout);
        self
    }

    /// Makes the drain wait only for the keys in flight, as client-go's `ShutDownWithDrain` does.
    ///
    /// Ready keys are still delivered to getters, but the drain does not wait for them.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add_all(["a", "b"]);
    /// let item = queue.try_get();
    /// let drain = queue.shut_down_with_drain().in_flight_only();
    /// drop(item);
    /// let drained = drain.blocking();
    /// assert!(drained.finished);
    /// assert_eq!(drained.ready, 1);
    /// ```
    #[must_use = "a future does nothing unless it is polled, but the queue is shut down already"]
    pub fn in_flight_only(mut self) -> Self {
        self.until = Until::NothingInFlight;
        self
    }

    /// Blocks this thread until the drain is complete, or its timeout has passed.
    pub fn blocking(mut self) -> Drained<K> {
        super::getter::THREAD.with(|waker| {
            loop {
                match self.check_drain(waker) {
                    Some(drained) => return drained,
                    None => self.queue.shared.park_until(self.deadline.unwrap_or(Time::NEVER)),
                }
            }
        })
    }

    fn check_drain(&mut self, waker: &Waker) -> Option<Drained<K>> {
        let shared: &Arc<Shared<K>> = &self.queue.shared;
        let over = self.deadline.is_some_and(|deadline| shared.clock.now() >= deadline);
        // The `clone` of a waker is user code, so it runs before the lock is acquired.
        let waker_copy = waker.clone();
        let Ok(mut state) = shared.lock() else {
            return Some(self.report_drained(false, [0; 2], DroppedKeys::new()));
        };
        let finished =
            state.drainers.has_finished(self.number) || self.until.is_reached(&state.core);
        if finished || over || state.shut_downs > self.shut_downs {
            let left = [state.core.len(), state.core.in_flight()];
            let dropped = std::mem::replace(&mut state.dropped, DroppedKeys::new());
            drop(state);
            drop_quietly(waker_copy);
            return Some(self.report_drained(finished, left, dropped));
        }
        let old = state.drainers.list_drain(&mut self.number, self.until, waker_copy);
        drop(state);
        drop_quietly(old);
        // Each poll arms a new alarm: an alarm may be early, and it wakes only the waker with which
        // it was armed.
        if let Some(deadline) = self.deadline {
            self.alarm = quietly(|| shared.clock.arm(deadline, waker));
        }
        None
    }

    fn report_drained(
        &mut self,
        finished: bool,
        left: [usize; 2],
        late: DroppedKeys<K>,
    ) -> Drained<K> {
        let mut dropped = std::mem::take(&mut self.dropped.keys);
        dropped.extend(late.into_keys());
        let [ready, in_flight] = left;
        Drained { finished, ready, in_flight, dropped }
    }
}

impl<K: Key> Shared<K> {
    /// Removes a drain from the list of drains, if it is there.
    pub(super) fn stop_draining(&self, number: Option<u64>) {
        let Some(number) = number else { return };
        let Ok(mut state) = self.lock() else { return };
        let waker = state.drainers.remove_drain(number);
        drop(state);
        // Dropping the waker is user code, so the lock is released first.
        drop_quietly(waker);
    }
}

/// The future does not pin any of its fields: the keys are in a vector.
impl<K: Key, S: BuildHasher> Unpin for Drain<'_, K, S> {}

impl<K: Key, S: BuildHasher> Future for Drain<'_, K, S> {
    type Output = Drained<K>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Drained<K>> {
        match self.check_drain(cx.waker()) {
            Some(drained) => Poll::Ready(drained),
            None => Poll::Pending,
        }
    }
}

impl<K: Key, S: BuildHasher> Drop for Drain<'_, K, S> {
    fn drop(&mut self) {
        self.queue.shared.stop_draining(self.number);
    }
}

impl<K: Key, S: BuildHasher> std::fmt::Debug for Drain<'_, K, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
