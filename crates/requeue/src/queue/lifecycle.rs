//! Pausing, closing, shutting down and draining a queue.
//!
//! A dropped key is reported exactly once: by the call that dropped it, by a drain, or by
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

/// The report of a drain.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Drained<K> {
    /// True if the drain completed: no key was in flight and none was ready. A drain with
    /// [`in_flight_only`](Drain::in_flight_only) completes as soon as no key is in flight.
    pub finished: bool,
    /// The number of keys that are still ready. These keys are delivered to getters that ask for them.
    pub ready: usize,
    /// The number of keys that are still in flight.
    pub in_flight: usize,
    /// The keys whose pending run was dropped: keys that waited when the queue was shut down, and
    /// keys that failed later.
    pub dropped: Vec<K>,
}

impl<K> Drained<K> {
    /// Creates a report. The report is `finished` if no key is ready or in flight.
    // Only requeue-store needs this function, so it is hidden.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(ready: usize, in_flight: usize, dropped: Vec<K>) -> Self {
        Self { finished: ready == 0 && in_flight == 0, ready, in_flight, dropped }
    }
}

/// Dropped keys that have not reached a caller yet. If this value is dropped, `take_dropped`
/// returns the keys.
struct Unreported<'q, K: Key> {
    shared: &'q Shared<K>,
    keys: Vec<K>,
}

impl<K: Key> Drop for Unreported<'_, K> {
    fn drop(&mut self) {
        // If a drain is dropped, or a call panics, `take_dropped` returns its keys.
        if !self.keys.is_empty()
            && let Ok(mut state) = self.shared.lock()
        {
            state.dropped.append_keys(std::mem::take(&mut self.keys));
        }
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Refuses new keys from now on. Known keys run until no key is left.
    ///
    /// Waiting keys are still delivered when they are due, and known keys are retried. `get`
    /// returns `None` when no key is ready, waiting or in flight.
    ///
    /// Call this method at the end of the input. It may be called several times, and from any
    /// thread.
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

    /// Ends the waits for further debounced adds. Returns the number of keys that have waited.
    ///
    /// The pending runs of these keys are due now, or as soon as a backoff and the [pace](crate::Pace) permit them. The
    /// runs serve the adds so far. The waits of other delayed adds do not change. Later
    /// [debounced](crate::Add::debounce) adds wait again.
    ///
    /// Call this method when no more adds are expected: at the end of the input, or before a graceful shutdown, which
    /// would drop the waiting keys. The keys become due in no particular order.
    ///
    /// If a key was ever debounced, the call examines every key of the queue, 256 under one hold of the lock, so its
    /// cost grows with the size of the queue.
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
    /// Ready keys are still delivered. After the last ready key, `get` returns `None`. This is client-go's `ShutDown`.
    /// The queue and the limiter forget the failures of a dropped key. As in client-go, `None` is not final while a
    /// dirty key is in flight. If the queue is paused, ready keys are also dropped. If a [group](Self::group) is
    /// paused, the ready keys of the group are also dropped.
    ///
    /// The method may be called several times, and from any thread. Every earlier drain stops waiting.
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
        // Due keys count as ready, even if no operation has made them ready yet.
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
                // The `clone` of a key has panicked. All waiting getters and drains have already
                // been woken.
                Err(panic) => resume_unwind(panic),
                Ok(more) if !more && !full => return dropped,
                Ok(_) => {}
            }
        }
    }

    /// Makes the limiter forget a key whose record forgot its failures, because its run was dropped.
    /// A key in flight keeps its failures until its completion.
    fn forget_dropped(&self, key: &K) {
        if self.shared.limiter.may_forget() && quietly(|| self.failures(key)) == Some(0) {
            self.shared.limiter.forget_key(key);
        }
    }

    /// Shuts the queue down as [`shut_down`](Self::shut_down) does, and returns a [`Drain`] that
    /// waits until no key is ready or in flight.
    ///
    /// A later `shut_down` ends the wait.
    ///
    /// Await the drain in a task, or call [`blocking`](Drain::blocking) on a thread. By default the drain waits without
    /// a limit; [`timeout`](Drain::timeout) sets a limit. With [`in_flight_only`](Drain::in_flight_only), the drain
    /// waits only for keys in flight, as client-go's `ShutDownWithDrain` does.
    ///
    /// # Cancel safety
    ///
    /// The queue is shut down by the call, before the future is polled. A future that is dropped
    /// stops waiting, and leaves its report to [`take_dropped`](Self::take_dropped).
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

    /// Returns true if the queue was shut down, as client-go's `ShuttingDown` does.
    #[must_use]
    pub fn shutting_down(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.ending() == Ending::ShutDown)
    }

    /// Returns true if new keys are refused, because the queue was [closed](Self::close) or shut
    /// down.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.ending() != Ending::Open)
    }

    /// Returns the keys that were dropped since the queue was shut down: keys that failed or were requeued since then.
    ///
    /// Each key is returned once. The report of a drain already contains these keys.
    #[must_use = "each dropped key is returned only once"]
    pub fn take_dropped(&self) -> Vec<K> {
        let dropped = self
            .shared
            .lock()
            .map(|mut state| std::mem::replace(&mut state.dropped, DroppedKeys::new()));
        dropped.map(|dropped| dropped.into_keys().collect()).unwrap_or_default()
    }

    /// Stops deliveries. All other operations continue: keys are added, become ready, and are completed.
    ///
    /// The call has no effect once the queue is shut down.
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

    /// Starts deliveries again.
    pub fn resume(&self) {
        let Ok(mut state) = self.shared.lock_to_change() else { return };
        state.core.resume();
        self.shared.release_lock(state);
    }

    /// Returns true if deliveries are stopped.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.shared.lock().is_ok_and(|state| state.core.is_paused())
    }
}

/// Waits until a queue is drained: see [`Queue::shut_down_with_drain`].
#[must_use = "a future does nothing unless it is polled, but the queue is shut down already"]
pub struct Drain<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    queue: &'q Queue<K, S>,
    dropped: Unreported<'q, K>,
    deadline: Option<Time>,
    alarm: Option<Alarm>,
    /// The number of calls of `shut_down` before this drain.
    shut_downs: u64,
    /// The drain's number in the list of waiting drains.
    number: Option<u64>,
    until: Until,
}

impl<'q, K: Key, S: BuildHasher> Drain<'q, K, S> {
    fn new(queue: &'q Queue<K, S>) -> Self {
        // The count is read before the shutdown, so that a `shut_down` of another thread during the
        // shutdown ends this drain.
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

    /// Limits the wait to `timeout` from now, by the queue's clock.
    ///
    /// After the timeout, the report contains the numbers of the keys that are still ready or in
    /// flight.
    #[must_use = "a future does nothing unless it is polled, but the queue is shut down already"]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Some(self.queue.now() + timeout);
        self
    }

    /// Waits only for the keys in flight, as client-go's `ShutDownWithDrain` does.
    ///
    /// Ready keys are still delivered to getters that ask for them, but the drain does not wait for
    /// them.
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

    /// Blocks this thread until the drain completes or its timeout has passed.
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
        // A waker's `clone` is user code, which runs without the lock.
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
        // Each poll arms the alarm again, because an alarm may go off early, and because it wakes
        // only the waker with which it was armed.
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
    /// Removes a drain from the list, if it is listed.
    pub(super) fn stop_draining(&self, number: Option<u64>) {
        let Some(number) = number else { return };
        let Ok(mut state) = self.lock() else { return };
        let waker = state.drainers.remove_drain(number);
        drop(state);
        // The waker is dropped without the lock, because its drop is user code.
        drop_quietly(waker);
    }
}

/// No field is pinned: the keys are in a vector.
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
