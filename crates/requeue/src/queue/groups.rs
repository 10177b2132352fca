//! Operations on one group: pause, cancel and count its keys, and wait for its runs.

use std::fmt;
use std::future::Future;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use requeue_core::{GroupId, StateCounts};

use super::Queue;
use super::drainers::Until;
use super::shared::{LOCK_BATCH, Shared};
use super::waiters::Wakes;
use crate::Key;
use crate::sync::{Arc, drop_quietly};

/// The queue has no groups, because it was built without
/// [`Builder::group_by`](crate::Builder::group_by).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoGroups;

impl fmt::Display for NoGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the queue has no groups; call `Builder::group_by` to give its keys groups")
    }
}

impl std::error::Error for NoGroups {}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Returns a handle with the operations on one group: pause, cancel, count, and wait for its
    /// runs.
    ///
    /// The group need not have keys. The weight of `group` has no effect.
    ///
    /// # Errors
    ///
    /// Returns [`NoGroups`] if the queue was built without
    /// [`Builder::group_by`](crate::Builder::group_by).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, NoGroups, Queue};
    ///
    /// let queue: Queue<(&str, &str)> =
    ///     Queue::builder().group_by(|(tenant, _)| GroupId::of(tenant)).build()?;
    /// queue.add_all([("a", "x"), ("a", "y"), ("b", "z")]);
    ///
    /// let a = queue.group(GroupId::of("a"))?;
    /// a.pause();
    /// let delivered: Vec<_> = queue.get_many(3).now().iter().map(|item| **item).collect();
    /// assert_eq!(delivered, [("b", "z")]);
    /// assert_eq!(a.states().ready, 2);
    ///
    /// assert_eq!(Queue::<u32>::new().group(GroupId::default()).err(), Some(NoGroups));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self, group: GroupId) -> Result<GroupHandle<'_, K, S>, NoGroups> {
        self.group_of.as_ref().ok_or(NoGroups)?;
        Ok(GroupHandle { queue: self, group })
    }

    /// Cancels the pending runs of all keys of several groups, as [`GroupHandle::cancel`] does for
    /// one group. Returns the number of keys that had a pending run.
    ///
    /// The call examines every key of the queue once, however many groups there are.
    ///
    /// # Errors
    ///
    /// Returns [`NoGroups`] if the queue was built without
    /// [`Builder::group_by`](crate::Builder::group_by).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue = Queue::builder().group_by(|n: &u64| GroupId::new(n % 3)).build()?;
    /// queue.add_all([1, 2, 3, 4]);
    /// assert_eq!(queue.cancel_groups([GroupId::new(1), GroupId::new(2)])?, 3);
    /// assert_eq!(queue.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // This method is hidden, because only requeue-kube needs it: its shards are groups.
    #[doc(hidden)]
    pub fn cancel_groups(
        &self,
        groups: impl IntoIterator<Item = GroupId>,
    ) -> Result<usize, NoGroups> {
        self.group_of.as_ref().ok_or(NoGroups)?;
        let mut ids: Vec<_> = groups.into_iter().map(GroupId::id).collect();
        ids.sort_unstable();
        Ok(self.cancel_of_groups(|group| ids.binary_search(&group.id()).is_ok()))
    }

    fn cancel_of_groups(&self, is_cancelled: impl Fn(GroupId) -> bool) -> usize {
        self.walk_records(|mut state, walk| {
            let mut keys = Vec::new();
            let cancel_some =
                || state.core.cancel_groups(&is_cancelled, walk, LOCK_BATCH, &mut keys);
            let cancelled = catch_unwind(AssertUnwindSafe(cancel_some));
            let unordered = state.core.drain_order(LOCK_BATCH);
            self.shared.release_lock(state);
            unordered.into_iter().for_each(drop_quietly);
            for key in keys {
                self.shared.limiter.forget_key(&key);
                #[cfg(feature = "opentelemetry")]
                self.shared.forget_traces(&key, self.hash_key(&key));
                drop_quietly(key);
            }
            // The `clone` of a key may have panicked.
            cancelled.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

/// A handle with the operations on one group: see [`Queue::group`].
#[must_use = "a handle does nothing until one of its methods is called"]
pub struct GroupHandle<'q, K: Key, S = foldhash::fast::RandomState> {
    queue: &'q Queue<K, S>,
    group: GroupId,
}

impl<K: Key, S: BuildHasher> GroupHandle<'_, K, S> {
    /// Pauses the group: no key of the group is delivered. All other operations continue: keys of
    /// the group are added, coalesce, become ready, and are completed.
    ///
    /// The queue remembers the pause even while the group has no keys. This takes about 200 bytes
    /// until [`resume`](Self::resume). The time of the call does not depend on the number of keys.
    ///
    /// After a shutdown, the call has no effect. A shutdown drops the ready keys of paused groups.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue = Queue::builder().group_by(|n: &u64| GroupId::new(n % 2)).build()?;
    /// let odd = queue.group(GroupId::new(1))?;
    /// odd.pause();
    /// queue.add_all([1, 2]);
    /// let even = queue.try_get().unwrap();
    /// assert_eq!(*even, 2);
    /// assert!(queue.try_get().is_none());
    /// even.succeed();
    ///
    /// odd.resume();
    /// assert_eq!(queue.try_get().as_deref(), Some(&1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause(&self) {
        let Ok(mut state) = self.queue.shared.lock_to_change() else { return };
        state.core.pause_group(self.group);
        self.queue.shared.release_lock(state);
    }

    /// Resumes the group: its keys are delivered again.
    ///
    /// The keys of the group keep their age. In a fair order, the group takes its turn after the
    /// other groups. The keys that a custom order returned while the group was paused are pushed to
    /// that order again.
    pub fn resume(&self) {
        // Due keys become ready first, because their groups are ahead of this group in the turns.
        let Some((mut state, _)) = self.queue.shared.lock_settled() else { return };
        state.core.resume_group(self.group);
        loop {
            let return_some = || state.core.return_skipped(self.group, LOCK_BATCH);
            let more = catch_unwind(AssertUnwindSafe(return_some));
            self.queue.shared.release_lock(state);
            match more {
                Ok(true) => {}
                Ok(false) => return,
                // The `clone` of a key has panicked. The queue delivers that key by age.
                Err(panic) => resume_unwind(panic),
            }
            let Ok(next) = self.queue.shared.lock() else { return };
            state = next;
        }
    }

    /// Returns true if the group is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.queue.shared.lock().is_ok_and(|state| state.core.is_group_paused(self.group))
    }

    /// Cancels the pending runs of all keys of the group and forgets their failures, as
    /// [`Queue::cancel`] does for one key. Returns the number of keys that had a pending run.
    ///
    /// Runs in flight continue. [`cancel_running`](Self::cancel_running) cancels them. If a key is
    /// added during the call, its run may stay pending.
    ///
    /// The call examines every key of the queue, up to 256 under one acquisition of the lock. Its
    /// cost therefore grows with the size of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue = Queue::builder().group_by(|n: &u64| GroupId::new(n % 2)).build()?;
    /// queue.add_all([1, 2, 3]);
    /// assert_eq!(queue.group(GroupId::new(1))?.cancel(), 2);
    /// assert_eq!(queue.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self) -> usize {
        self.queue.cancel_of_groups(|group| group.id() == self.group.id())
    }

    /// Cancels the runs in flight of all keys of the group, as [`Queue::cancel_running`] does for
    /// one key. Returns the number of runs that this call has cancelled.
    ///
    /// The keys stay in flight until their workers complete the deliveries.
    /// [`none_in_flight`](Self::none_in_flight) waits for these completions. If a run starts during
    /// the call, it may continue, unless the group is [paused](Self::pause). The call takes as long
    /// as [`cancel`](Self::cancel).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue = Queue::builder().group_by(|n: &u64| GroupId::new(n % 2)).build()?;
    /// queue.add_all([1, 2]);
    /// let items = queue.get_many(2).now();
    /// assert_eq!(queue.group(GroupId::new(1))?.cancel_running(), 1);
    /// assert_eq!([items[0].cancel_reason().is_some(), items[1].cancel_reason().is_some()], [true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_running(&self) -> usize {
        self.queue.walk_records(|mut state, walk| {
            let (mut epochs, mut wakes) = (Vec::new(), Wakes::new());
            state.core.cancel_running_group(self.group, walk, LOCK_BATCH, &mut epochs);
            for &epoch in &epochs {
                state.watchers.take_wakers(epoch, &mut wakes);
            }
            self.queue.shared.release_lock(state);
            wakes.wake_each();
            epochs.len()
        })
    }

    /// Returns the number of keys of the group in each state, all read at the same moment.
    ///
    /// The time of the call does not depend on the number of keys in the group.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::builder()
    ///     .clock(FakeClock::new())
    ///     .group_by(|n: &u64| GroupId::new(n % 2))
    ///     .build()?;
    /// queue.add_all([1, 2, 3]);
    /// queue.add_after(5, Duration::from_secs(60));
    /// let item = queue.try_get();
    /// let states = queue.group(GroupId::new(1))?.states();
    /// assert_eq!((states.in_flight, states.ready, states.waiting), (1, 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn states(&self) -> StateCounts {
        self.queue.shared.read_settled(|core| core.group_states(self.group))
    }

    /// Waits until no key of the group is in flight.
    ///
    /// The future is ready at the first such moment, even if another key of the group is delivered
    /// directly afterwards. To prevent later deliveries, [pause](Self::pause) the group first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no other effect than to stop waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue = Queue::builder().group_by(|n: &u64| GroupId::new(n % 2)).build()?;
    /// queue.add_all([1, 2]);
    /// let items = queue.get_many(2).now();
    /// let odd = queue.group(GroupId::new(1))?;
    /// odd.pause();
    /// let stopped = odd.none_in_flight();
    /// items.into_iter().next().expect("two are ready").succeed();
    /// stopped.await;
    /// assert_eq!(odd.states().in_flight, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn none_in_flight(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<K, S> {
        NoneInFlight { shared: Arc::clone(&self.queue.shared), group: self.group, number: None }
    }
}

impl<K: Key, S> Clone for GroupHandle<'_, K, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: Key, S> Copy for GroupHandle<'_, K, S> {}

impl<K: Key, S> fmt::Debug for GroupHandle<'_, K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle").field("group", &self.group).finish_non_exhaustive()
    }
}

/// A future that waits until no key of a group is in flight: see [`GroupHandle::none_in_flight`].
#[must_use = "a future does nothing unless it is polled"]
struct NoneInFlight<K: Key> {
    shared: Arc<Shared<K>>,
    group: GroupId,
    /// The number of the future in the list of drains, while it waits.
    number: Option<u64>,
}

/// The future does not pin any of its fields.
impl<K: Key> Unpin for NoneInFlight<K> {}

impl<K: Key> Future for NoneInFlight<K> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let waker = cx.waker().clone();
        let Ok(mut state) = this.shared.lock() else {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        let until = Until::NoneInFlight(this.group);
        if state.drainers.has_finished(this.number) || until.is_reached(&state.core) {
            drop(state);
            drop_quietly(waker);
            return Poll::Ready(());
        }
        let old = state.drainers.list_drain(&mut this.number, until, waker);
        drop(state);
        drop_quietly(old);
        Poll::Pending
    }
}

impl<K: Key> Drop for NoneInFlight<K> {
    fn drop(&mut self) {
        self.shared.stop_draining(self.number);
    }
}
