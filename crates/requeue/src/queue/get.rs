//! Taking keys: without waiting, in a task, or on a thread, and after a completion under the same lock.
//!
//! These are the calls and futures of the public API. The algorithm is in `getter.rs`.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use requeue_core::Delivery;

use super::Queue;
use super::getter::Getter;
use super::item::Item;
use super::shared::Shared;
use super::waiters::Kind;
use crate::Key;
use crate::sync::quietly;

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes the next ready key, or returns `None` if no key is ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// assert!(queue.try_get().is_none());
    /// queue.add(1);
    /// assert_eq!(queue.try_get().as_deref(), Some(&1));
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline(always)]
    pub fn try_get(&self) -> Option<Item<'_, K>> {
        match self.shared.take_fast() {
            Some(taken) => Some(Item::borrowed(&self.shared, taken?)),
            None => self.try_get_any(),
        }
    }

    #[inline(never)]
    fn try_get_any(&self) -> Option<Item<'_, K>> {
        Some(Item::borrowed(&self.shared, self.take_now()?))
    }

    /// Takes up to `max` ready keys, without waiting.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn try_get_many(&self, max: usize) -> Vec<Item<'_, K>> {
        self.take_more(Vec::new(), max)
    }

    /// Waits for a key. Returns `None` when the queue was closed or shut down and has no more keys.
    ///
    /// Each key uses a unit of tokio's cooperative budget, so a loop over a full queue lets other
    /// tasks run.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped has taken no key, and passes on its wake. A future that is woken
    /// and not polled takes no key either. Every two such futures delay a task that waits behind
    /// them by 5 to 10 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue::Queue;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add("a");
    /// queue.close();
    /// while let Some(item) = queue.get().await {
    ///     assert_eq!(*item, "a");
    ///     item.succeed();
    /// }
    /// # });
    /// ```
    pub fn get(&self) -> Get<'_, K, S> {
        Get { inner: Getter::new(self, Kind::Task, false) }
    }

    /// Waits for a key, then takes up to `max` ready keys in all.
    ///
    /// The result is empty if the queue was closed or shut down and has no more keys, or if `max`
    /// is 0.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`get`](Self::get).
    pub fn get_many(&self, max: usize) -> GetMany<'_, K, S> {
        GetMany { inner: Getter::new(self, Kind::Task, false), max }
    }

    /// Blocks this thread until there is a key.
    ///
    /// Returns `None` when the queue was closed or shut down and has no more keys.
    ///
    /// It needs no runtime. This call, like every other one whose name ends with `_blocking`,
    /// blocks the thread while it waits. In async code use [`get`](Self::get), or call it in
    /// `tokio::task::spawn_blocking`: on a runtime with one thread, nothing else runs meanwhile,
    /// not even the task that would add a key. To find such calls in tests, wrap them in
    /// `tokio::task::block_in_place`, which panics on a runtime with one thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue: Queue<&str> = Queue::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         while let Some(item) = queue.get_blocking() {
    ///             item.succeed();
    ///         }
    ///     });
    ///     queue.add("a");
    ///     queue.close();
    /// });
    /// assert_eq!(queue.len(), 0);
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline(always)]
    pub fn get_blocking(&self) -> Option<Item<'_, K>> {
        if let Some(Some(taken)) = self.shared.take_fast() {
            return Some(Item::borrowed(&self.shared, taken));
        }
        self.get_after_waiting()
    }

    #[inline(never)]
    fn get_after_waiting(&self) -> Option<Item<'_, K>> {
        Some(Item::borrowed(&self.shared, self.block()?))
    }

    /// Waits as [`get_many`](Self::get_many) does, and blocks this thread.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn get_many_blocking(&self, max: usize) -> Vec<Item<'_, K>> {
        let Some(first) = (max > 0).then(|| self.block()).flatten() else {
            return Vec::new();
        };
        self.take_more(vec![Item::borrowed(&self.shared, first)], max)
    }

    /// Calls [`Item::succeed`] and then [`try_get`](Self::try_get), in most cases under one hold of
    /// the lock and with one reading of the clock.
    ///
    /// An item of another queue succeeds in that queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add_all(["a", "b"]);
    /// let mut keys = Vec::new();
    /// let mut next = queue.try_get();
    /// while let Some(item) = next {
    ///     keys.push(*item);
    ///     next = queue.succeed_and_try_get(item);
    /// }
    /// assert_eq!((keys, queue.in_flight()), (vec!["a", "b"], 0));
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline]
    pub fn succeed_and_try_get(&self, item: Item<'_, K>) -> Option<Item<'_, K>> {
        match self.shared.succeed_and_take(item) {
            Some(taken) => Some(Item::borrowed(&self.shared, taken)),
            None => self.try_get(),
        }
    }

    /// Calls [`Item::succeed`] and then [`get`](Self::get), in most cases under one hold of the
    /// lock and with one reading of the clock.
    ///
    /// The delivery is completed when the future is first polled, or dropped.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped has completed the delivery with success, and has taken no key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue::Queue;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add_all(["a", "b"]);
    /// queue.close();
    /// let mut next = queue.get().await;
    /// while let Some(item) = next {
    ///     println!("{}", *item);
    ///     next = queue.succeed_and_get(item).await;
    /// }
    /// assert_eq!(queue.totals().deliveries, 2);
    /// # });
    /// ```
    pub fn succeed_and_get<'q>(&'q self, item: Item<'q, K>) -> SucceedAndGet<'q, K, S> {
        SucceedAndGet { item: Some(item), get: self.get() }
    }

    /// Calls [`Item::succeed`] and then [`get_blocking`](Self::get_blocking), in most cases under
    /// one hold of the lock and with one reading of the clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue: Queue<&str> = Queue::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut next = queue.get_blocking();
    ///         while let Some(item) = next {
    ///             next = queue.succeed_and_get_blocking(item);
    ///         }
    ///     });
    ///     queue.add_all(["a", "b"]);
    ///     queue.close();
    /// });
    /// assert_eq!(queue.len(), 0);
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline]
    pub fn succeed_and_get_blocking(&self, item: Item<'_, K>) -> Option<Item<'_, K>> {
        match self.shared.succeed_and_take(item) {
            Some(taken) => Some(Item::borrowed(&self.shared, taken)),
            None => self.get_blocking(),
        }
    }

    fn take_now(&self) -> Option<Delivery<K>> {
        let (state, taken) = self.take().ok()?;
        self.shared.release(state);
        taken
    }

    fn block(&self) -> Option<Delivery<K>> {
        Getter::new(self, Kind::Thread, false).block()
    }
}

/// Waits for a key: see [`Queue::get`].
///
/// The methods set how it waits. [`Item::into_owned`] gives an item that can be sent to other tasks
/// and threads.
///
/// # Examples
///
/// ```
/// # use requeue::{Item, Queue};
/// use std::time::Duration;
///
/// let queue: Queue<&str> = Queue::new();
/// queue.add("a");
/// let item = queue.get().timeout(Duration::from_secs(1)).blocking().map(Item::into_owned);
/// assert_eq!(item.as_deref(), Some(&"a"));
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct Get<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    inner: Getter<'q, K, S>,
}

impl<'q, K: Key, S: BuildHasher> Future for Get<'q, K, S> {
    type Output = Option<Item<'q, K>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared();
        if self.inner.is_waiting() {
            return self.poll_again(cx);
        }
        #[cfg(feature = "tokio")]
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        if let Some(Some(delivery)) = shared.take_fast() {
            #[cfg(feature = "tokio")]
            budget.made_progress();
            return Poll::Ready(Some(Item::borrowed(shared, delivery)));
        }
        #[cfg(feature = "tokio")]
        drop(budget);
        self.poll_again(cx)
    }
}

impl<'q, K: Key, S: BuildHasher> Get<'q, K, S> {
    /// Sets the longest time to wait, from this call on, by the queue's clock. The result is `None` if
    /// it has passed.
    pub fn timeout(self, timeout: Duration) -> Self {
        let mut inner = self.restarted(Kind::Task, self.inner.until_final);
        inner.deadline = Some(inner.queue.now() + timeout);
        Self { inner }
    }

    /// Makes `None` final: no key is ready, and no key in flight will become ready again.
    ///
    /// After `shut_down`, `get` returns `None` as soon as no key is ready, as client-go's does. A later
    /// call may return a key that was dirty while in flight. A loop that must also process those keys
    /// calls this method, as `Workers` do.
    pub fn until_final(self) -> Self {
        Self { inner: self.restarted(Kind::Task, true) }
    }

    /// Waits for the key, and blocks this thread, as [`Queue::get_blocking`] does.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn blocking(self) -> Option<Item<'q, K>> {
        let shared = self.shared();
        let getter = self.restarted(Kind::Thread, self.inner.until_final);
        // A future that has begun to wait leaves the list of waiters first.
        drop(self);
        Some(Item::borrowed(shared, getter.block()?))
    }

    /// Returns a getter that waits in the same way, and has not begun to wait.
    fn restarted(&self, kind: Kind, until_final: bool) -> Getter<'q, K, S> {
        let mut getter = Getter::new(self.inner.queue, kind, until_final);
        getter.deadline = self.inner.deadline;
        getter
    }

    fn shared(&self) -> &'q Shared<K> {
        &self.inner.queue.shared
    }

    #[inline(never)]
    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<'q, K>>> {
        let shared = self.shared();
        let delivery = ready!(Pin::new(&mut self.inner).poll(cx));
        Poll::Ready(delivery.map(|delivery| Item::borrowed(shared, delivery)))
    }
}

/// Waits for keys: see [`Queue::get_many`].
#[must_use = "a future does nothing unless it is polled"]
pub struct GetMany<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    inner: Getter<'q, K, S>,
    max: usize,
}

impl<'q, K: Key, S: BuildHasher> Future for GetMany<'q, K, S> {
    type Output = Vec<Item<'q, K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.max == 0 {
            return Poll::Ready(Vec::new());
        }
        let delivery = ready!(Pin::new(&mut self.inner).poll(cx));
        let queue: &'q Queue<K, S> = self.inner.queue;
        let first = delivery.map(|delivery| Item::borrowed(&queue.shared, delivery));
        Poll::Ready(first.map_or_else(Vec::new, |first| queue.take_more(vec![first], self.max)))
    }
}

/// Completes a delivery and waits for the next key: see [`Queue::succeed_and_get`].
#[must_use = "the delivery is completed when this is polled or dropped"]
pub struct SucceedAndGet<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    item: Option<Item<'q, K>>,
    get: Get<'q, K, S>,
}

/// Nothing in it is pinned.
impl<K: Key, S: BuildHasher> Unpin for SucceedAndGet<'_, K, S> {}

impl<'q, K: Key, S: BuildHasher> Future for SucceedAndGet<'q, K, S> {
    type Output = Option<Item<'q, K>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(item) = self.item.take() {
            let shared: &'q Shared<K> = self.get.shared();
            // A task without budget takes no key, but its delivery is completed.
            #[cfg(feature = "tokio")]
            let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) else {
                item.succeed();
                return Poll::Pending;
            };
            if let Some(taken) = shared.succeed_and_take(item) {
                #[cfg(feature = "tokio")]
                budget.made_progress();
                return Poll::Ready(Some(Item::borrowed(shared, taken)));
            }
        }
        Pin::new(&mut self.get).poll(cx)
    }
}

impl<K: Key, S: BuildHasher> Drop for SucceedAndGet<'_, K, S> {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            // This may run while unwinding. If `succeed` panics, the item's drop counts as a
            // failure.
            quietly(|| item.succeed());
        }
    }
}

macro_rules! debug {
    ($($name:ident),*) => {$(
        impl<K: Key, S: BuildHasher> std::fmt::Debug for $name<'_, K, S> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

debug!(Get, GetMany, SucceedAndGet);
