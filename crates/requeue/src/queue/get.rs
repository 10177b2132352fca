//! Taking keys: without waiting, in a task, or on a thread, and after a completion under the same lock.
//!
//! This file contains the calls and futures of the public API. The algorithm is in `getter.rs`.

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
            Some(taken) => Some(Item::new_borrowed(&self.shared, taken?)),
            None => self.try_get_any(),
        }
    }

    #[inline(never)]
    fn try_get_any(&self) -> Option<Item<'_, K>> {
        let (state, taken) = self.lock_and_take().ok()?;
        self.shared.release_lock(state);
        Some(Item::new_borrowed(&self.shared, taken?))
    }

    /// Waits for a key. Returns `None` when the queue was closed or shut down and has no more keys.
    ///
    /// The result is a future. [`Get::blocking`] waits on a thread instead, without a runtime.
    ///
    /// Each key uses a unit of tokio's cooperative budget, so a loop over a full queue lets other
    /// tasks run.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped has taken no key, and passes its wake to the next getter. A future that is woken but
    /// not polled also takes no key. Every two such futures delay the next waiting task by 5 to 10 ms.
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
    #[inline]
    pub fn get(&self) -> Get<'_, K, S> {
        Get { inner: Getter::new(self) }
    }

    /// Waits for a key, then takes further ready keys, up to `max` keys in total.
    ///
    /// The result is empty if the queue was closed or shut down and has no more keys, or if `max`
    /// is 0. [`GetMany::now`] takes keys without waiting.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`get`](Self::get).
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Item, Queue};
    ///
    /// let queue = Queue::new();
    /// queue.add_all(0..3);
    /// let items = queue.get_many(2).now();
    /// assert_eq!(items.len(), 2);
    /// Item::succeed_all(items);
    /// ```
    pub fn get_many(&self, max: usize) -> GetMany<'_, K, S> {
        GetMany { inner: Getter::new(self), max }
    }

    /// Calls [`Item::succeed`] and then [`get`](Self::get), in most cases under one hold of the
    /// lock and with one reading of the clock.
    ///
    /// The delivery is completed when the future is first polled, or dropped. The delivery of another queue's item is
    /// completed in that queue. [`succeed_and_try_get`](Self::succeed_and_try_get) takes the next key without a task.
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
    #[inline]
    pub fn succeed_and_get<'q>(&'q self, item: Item<'q, K>) -> SucceedAndGet<'q, K, S> {
        SucceedAndGet { item: Some(item), get: self.get() }
    }

    /// Completes a delivery with [`succeed`](Item::succeed), and takes the next ready key without waiting, in most cases
    /// under one hold of the lock.
    ///
    /// On a thread, `queue.succeed_and_try_get(item).or_else(|| queue.get().blocking())` waits for the next key.
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
    /// assert_eq!((keys, queue.states().total()), (vec!["a", "b"], 0));
    /// ```
    // This function is not a method of `SucceedAndGet`, because the future would copy the item twice.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline]
    pub fn succeed_and_try_get(&self, item: Item<'_, K>) -> Option<Item<'_, K>> {
        match self.shared.succeed_and_take(item) {
            Some(taken) => Some(Item::new_borrowed(&self.shared, taken)),
            None => self.try_get(),
        }
    }
}

/// Waits for a key: see [`Queue::get`].
///
/// The methods set the way in which the call waits. [`Item::into_owned`] gives an item that can be sent to other tasks
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
        let shared = self.shared_state();
        // A getter that was woken holds a wake, which the slow path returns.
        if self.inner.is_waiting() {
            return self.poll_again(cx);
        }
        #[cfg(feature = "tokio")]
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        if let Some(Some(delivery)) = shared.take_fast() {
            #[cfg(feature = "tokio")]
            budget.made_progress();
            return Poll::Ready(Some(Item::new_borrowed(shared, delivery)));
        }
        #[cfg(feature = "tokio")]
        // The slow path itself asks for this unit of the budget.
        drop(budget);
        self.poll_again(cx)
    }
}

impl<'q, K: Key, S: BuildHasher> Get<'q, K, S> {
    /// Sets the longest time to wait, from this call on, by the queue's clock. The result is `None` if no key comes in
    /// this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.deadline = Some(self.inner.queue.now() + timeout);
        self
    }

    /// Makes `None` final. It then means that no key is ready, and that no key in flight will
    /// become ready again.
    ///
    /// After `shut_down`, `get` returns `None` as soon as no key is ready, as in client-go. A later call may return a
    /// key that was dirty while in flight. A loop that must also process such keys calls this method, as `Workers` do.
    pub fn until_final(mut self) -> Self {
        self.inner.wait_until_final();
        self
    }

    /// Waits for the key, and blocks this thread. The call needs no runtime.
    ///
    /// Like every method named `blocking`, this method blocks the thread while it waits. In async code, await the
    /// future, or call this method in `tokio::task::spawn_blocking`. On a runtime with one thread, this method blocks
    /// all tasks, including the task that would add a key. To find such calls in tests, wrap them in
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
    ///         while let Some(item) = queue.get().blocking() {
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
    pub fn blocking(self) -> Option<Item<'q, K>> {
        let shared = self.shared_state();
        // A future that has begun to wait may hold a wake, which only the slow path returns.
        if !self.inner.is_waiting()
            && let Some(Some(taken)) = shared.take_fast()
        {
            return Some(Item::new_borrowed(shared, taken));
        }
        self.wait_on_thread()
    }

    #[inline(never)]
    fn wait_on_thread(self) -> Option<Item<'q, K>> {
        let shared = self.shared_state();
        Some(Item::new_borrowed(shared, self.inner.block_thread()?))
    }

    fn shared_state(&self) -> &'q Shared<K> {
        &self.inner.queue.shared
    }

    #[inline(never)]
    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<'q, K>>> {
        let shared = self.shared_state();
        let delivery = ready!(Pin::new(&mut self.inner).poll(cx));
        Poll::Ready(delivery.map(|delivery| Item::new_borrowed(shared, delivery)))
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
        Poll::Ready(take_rest(self.inner.queue, delivery, self.max))
    }
}

impl<'q, K: Key, S: BuildHasher> GetMany<'q, K, S> {
    /// Takes up to `max` ready keys, without waiting.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn now(self) -> Vec<Item<'q, K>> {
        self.inner.queue.take_more(Vec::new(), self.max)
    }

    /// Waits for the first key, and blocks this thread, as [`Get::blocking`] does.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn blocking(self) -> Vec<Item<'q, K>> {
        if self.max == 0 {
            return Vec::new();
        }
        let (queue, max) = (self.inner.queue, self.max);
        take_rest(queue, self.inner.block_thread(), max)
    }
}

/// Takes more keys after `first`, up to `max` keys in total.
fn take_rest<K: Key, S: BuildHasher>(
    queue: &Queue<K, S>,
    first: Option<Delivery<K>>,
    max: usize,
) -> Vec<Item<'_, K>> {
    let first = first.map(|delivery| Item::new_borrowed(&queue.shared, delivery));
    first.map_or_else(Vec::new, |first| queue.take_more(vec![first], max))
}

/// Completes a delivery and waits for the next key: see [`Queue::succeed_and_get`].
#[must_use = "the delivery is completed when this is polled or dropped"]
pub struct SucceedAndGet<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    item: Option<Item<'q, K>>,
    get: Get<'q, K, S>,
}

/// No field is pinned.
impl<K: Key, S: BuildHasher> Unpin for SucceedAndGet<'_, K, S> {}

impl<'q, K: Key, S: BuildHasher> Future for SucceedAndGet<'q, K, S> {
    type Output = Option<Item<'q, K>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(item) = self.item.take() {
            let shared: &'q Shared<K> = self.get.shared_state();
            // A task without budget takes no key, but completes its delivery.
            #[cfg(feature = "tokio")]
            let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) else {
                item.succeed();
                return Poll::Pending;
            };
            if let Some(taken) = shared.succeed_and_take(item) {
                #[cfg(feature = "tokio")]
                budget.made_progress();
                return Poll::Ready(Some(Item::new_borrowed(shared, taken)));
            }
        }
        Pin::new(&mut self.get).poll(cx)
    }
}

impl<K: Key, S: BuildHasher> Drop for SucceedAndGet<'_, K, S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            // This code may run while unwinding. If `succeed` panics, the drop of the item counts
            // as a failure.
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
