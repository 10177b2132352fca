//! The calls and futures that take keys: without waiting, in a task, on a thread, or together with
//! a completion.
//!
//! This file contains the public API. The algorithm is in `getter.rs`.

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

    /// Waits for a key. Returns `None` if the queue is closed or shut down and has no more keys.
    ///
    /// The result is a future. [`Get::blocking`] blocks the thread instead, and needs no runtime.
    ///
    /// In a task of tokio, each key uses one unit of the cooperative budget, so a loop over a full
    /// queue lets other tasks run.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it has taken no key. If it was woken, it wakes the next getter
    /// instead. A future that was woken and is not polled takes no key either. Each pair of such
    /// futures delays the next waiting task by 5 to 10 ms.
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

    /// Waits for a key, and then takes further ready keys, up to `max` keys in total.
    ///
    /// The result is empty if `max` is 0, or if the queue is closed or shut down and has no more
    /// keys. [`GetMany::now`] takes keys without waiting.
    ///
    /// # Cancel safety
    ///
    /// As for [`get`](Self::get).
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

    /// Completes a delivery with [`Item::succeed`], and then waits for a key like
    /// [`get`](Self::get). In most cases, both happen under one acquisition of the lock and with
    /// one reading of the clock.
    ///
    /// The delivery is completed when the future is first polled, or when it is dropped. If the
    /// item belongs to another queue, its delivery is completed in that queue.
    /// [`succeed_and_try_get`](Self::succeed_and_try_get) does not wait.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it has completed the delivery as a success, and has taken no key.
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

    /// Completes a delivery with [`succeed`](Item::succeed), and takes the next key if one is
    /// ready. In most cases, both happen under one acquisition of the lock.
    ///
    /// On a thread, `queue.succeed_and_try_get(item).or_else(|| queue.get().blocking())` waits for
    /// the next key.
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
    // This is not a method of `SucceedAndGet`, because that future would copy the item twice.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline]
    pub fn succeed_and_try_get(&self, item: Item<'_, K>) -> Option<Item<'_, K>> {
        match self.shared.succeed_and_take(item) {
            Some(taken) => Some(Item::new_borrowed(&self.shared, taken)),
            None => self.try_get(),
        }
    }
}

/// A future that waits for a key. [`Queue::get`] creates it.
///
/// Its methods change how it waits. [`Item::into_owned`] converts the item so that it can be sent
/// to other tasks and threads.
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
        // A getter that has waited may have been woken. Only the slow path hands this wake back.
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
        // The slow path itself takes this unit of the budget.
        drop(budget);
        self.poll_again(cx)
    }
}

impl<'q, K: Key, S: BuildHasher> Get<'q, K, S> {
    /// Sets the longest time to wait, measured from this call by the clock of the queue. If no key
    /// comes in this time, the result is `None`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.deadline = Some(self.inner.queue.now() + timeout);
        self
    }

    /// Makes the result `None` final. It then means that no key is ready, and that no key in flight
    /// will become ready again.
    ///
    /// Without this method, `get` returns `None` after `shut_down` as soon as no key is ready, as
    /// in client-go. A later call may still return a key that was dirty while it was in flight. A
    /// loop that must process such keys calls this method, as `Workers` do.
    pub fn until_final(mut self) -> Self {
        self.inner.wait_until_final();
        self
    }

    /// Blocks this thread until there is a key. The call needs no runtime.
    ///
    /// In async code, await the future instead, or call this method in
    /// `tokio::task::spawn_blocking`. On a runtime with one thread, this method blocks all tasks,
    /// even the task that would add a key. To find such calls in tests, wrap them in
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
        // A future that has waited may have been woken. Only the slow path hands this wake back.
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

/// A future that waits for several keys. [`Queue::get_many`] creates it.
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
    /// Takes up to `max` ready keys without waiting.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn now(self) -> Vec<Item<'q, K>> {
        self.inner.queue.take_more(Vec::new(), self.max)
    }

    /// Blocks this thread until there is a key, like [`Get::blocking`], and then takes further
    /// ready keys.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn blocking(self) -> Vec<Item<'q, K>> {
        if self.max == 0 {
            return Vec::new();
        }
        let (queue, max) = (self.inner.queue, self.max);
        take_rest(queue, self.inner.block_thread(), max)
    }
}

/// Takes further ready keys after `first`, up to `max` keys in total.
fn take_rest<K: Key, S: BuildHasher>(
    queue: &Queue<K, S>,
    first: Option<Delivery<K>>,
    max: usize,
) -> Vec<Item<'_, K>> {
    let first = first.map(|delivery| Item::new_borrowed(&queue.shared, delivery));
    first.map_or_else(Vec::new, |first| queue.take_more(vec![first], max))
}

/// A future that completes a delivery and then waits for the next key. [`Queue::succeed_and_get`]
/// creates it.
#[must_use = "the delivery is completed when this is polled or dropped"]
pub struct SucceedAndGet<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    item: Option<Item<'q, K>>,
    get: Get<'q, K, S>,
}

/// The future does not pin any of its fields.
impl<K: Key, S: BuildHasher> Unpin for SucceedAndGet<'_, K, S> {}

impl<'q, K: Key, S: BuildHasher> Future for SucceedAndGet<'q, K, S> {
    type Output = Option<Item<'q, K>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(item) = self.item.take() {
            let shared: &'q Shared<K> = self.get.shared_state();
            // A task that has used up its budget takes no key, but still completes its delivery.
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
            // This code may run during a panic. If `succeed` panics, the drop of the item completes
            // the delivery as a failure.
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
