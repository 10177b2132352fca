//! Completing a delivery and taking the next key under one hold of the lock, for loops of workers.
//!
//! The result is the same as that of the two separate calls.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll};

use requeue_core::{Delivery, Finish, Operation};

use super::item::Ended;
use super::{Get, Item, Queue, Shared};
use crate::Key;
use crate::sync::quietly;

impl<K: Key, S: BuildHasher> Queue<K, S> {
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
    /// assert_eq!((keys, queue.processing()), (vec!["a", "b"], 0));
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline]
    pub fn succeed_and_try_get(&self, item: Item<'_, K>) -> Option<Item<'_, K>> {
        match self.shared.succeed_and_take(item) {
            Some(taken) => Some(Item::lent(&self.shared, taken)),
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
    /// assert_eq!(queue.counts().hand_outs, 2);
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
            Some(taken) => Some(Item::lent(&self.shared, taken)),
            None => self.get_blocking(),
        }
    }
}

impl<K: Key> Shared<K> {
    /// Completes the delivery as `succeed` does, and takes the next key if both have a fast path.
    /// `None` means that the caller must check for a key.
    #[inline(always)]
    fn succeed_and_take(&self, mut item: Item<'_, K>) -> Option<Delivery<K>> {
        if !item.is_of(self) || self.has_order {
            item.succeed();
            return None;
        }
        self.limiter.forget(&item);
        // Dropped after the lock is released, even if a key's `clone` panics under it.
        let mut ended = Ended::new();
        let how = Finish::Succeed;
        let locked = self.lock_for(Operation::Finish(item.ticket(), &how), None);
        let (mut state, now) = locked.ok()?;
        let Some(finished) = state.core.finish(item.ticket(), how, now) else {
            self.release(state);
            item.free();
            return None;
        };
        let (unused, worked) = state.keep_dropped(finished);
        ended.set(&mut item, unused);
        // If times are not kept, the clock was read for the completion at most, not for the get. A
        // drain must see the moment in which no key is in flight.
        let takes =
            (self.tracks || !state.core.needs_now(Operation::Get)) && state.drainers.is_empty();
        let taken = if takes { state.core.get(now) } else { None };
        self.release(state);
        if worked.is_some() {
            self.tell_worked(ended.key(), worked);
        }
        drop(ended);
        taken
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
                return Poll::Ready(Some(Item::lent(shared, taken)));
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
