//! The interface between workers and queues.

use std::fmt;
use std::future::{Future, pending, ready};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use crate::clock::Clock;
use crate::sync::drop_quietly;
use crate::{CancelReason, Completion, Drained, Item, Key, Queue};

/// A queue from which [`Workers`](super::Workers) take keys: a queue of this crate, or one that
/// keeps its keys elsewhere.
pub trait WorkQueue: Clone + Send + Sync + 'static {
    /// The type of the keys.
    type Key: Key + fmt::Debug;
    /// A key in flight.
    type Item: WorkItem<Key = Self::Key>;

    /// Waits for the next key. Returns `None` when no more keys will come.
    fn next(&self) -> impl Future<Output = Option<Self::Item>> + Send;

    /// Returns the clock that measures timeouts.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Shuts the queue down: it delivers no more keys, except those that it must still deliver.
    fn shut_down(&self);

    /// Waits until all completions of the workers were recorded, and the keys that they did not
    /// take were returned.
    ///
    /// It is called after the workers have stopped. The default is ready immediately, for queues
    /// without I/O.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Returns the keys that are left, and those that were dropped.
    fn left(&self) -> Drained<Self::Key>;

    /// Counts a panic of a handler.
    fn note_panic(&self) {}
}

/// A key in flight. If it is dropped before its completion, the run has failed.
pub trait WorkItem: Send + Sized + 'static {
    /// The type of the key.
    type Key;

    /// Returns the key.
    fn key(&self) -> &Self::Key;

    /// Returns the attempt of this run: 1, plus the number of failures in a row before it.
    fn attempt(&self) -> u32;

    /// Returns the number of adds that this run serves.
    fn adds(&self) -> u32;

    /// Returns the reasons of those adds, combined by bitwise or.
    fn reasons(&self) -> u32;

    /// Returns the highest priority of those adds.
    fn priority(&self) -> i32;

    /// Returns how long the key was ready before this delivery.
    ///
    /// The default is `None`, for queues that do not keep this time.
    fn queued(&self) -> Option<Duration> {
        None
    }

    /// Sets the priority of the key's next run, if the completion causes one.
    fn set_priority(&mut self, priority: i32);

    /// Returns the fencing token of this delivery.
    fn fencing_token(&self) -> u64;

    /// Waits until the key no longer belongs to this worker. This can happen before the run has
    /// completed.
    ///
    /// The default never becomes ready.
    fn lost(&self) -> impl Future<Output = ()> + Send + use<Self> {
        pending()
    }

    /// Waits until the queue cancels this run, and returns the reason.
    ///
    /// Workers then cancel the handler's context with this reason. If the handler does not return
    /// within the grace period, they drop its future and complete the delivery with
    /// [`Completion::Cancelled`]. The default never becomes ready, for queues that cancel no runs.
    fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<Self> {
        pending()
    }

    /// Records the error of a failed run, before its completion.
    ///
    /// A queue that keeps errors overrides this method.
    fn note_error(&mut self, error: &Error) {
        let _ = error;
    }

    /// Completes the delivery with `completion`.
    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send;
}

impl<K: Key + fmt::Debug, S: BuildHasher + Send + Sync + 'static> WorkQueue for Queue<K, S> {
    type Key = K;
    type Item = Item<'static, K>;

    async fn next(&self) -> Option<Self::Item> {
        self.get().until_final().await.map(Item::into_owned)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared().clock)
    }

    fn shut_down(&self) {
        // The drain holds the dropped keys, and leaves them to `take_dropped` when it is dropped.
        drop_quietly(self.shut_down_with_drain());
    }

    fn left(&self) -> Drained<K> {
        let dropped = self.take_dropped();
        Drained::new(self.len(), self.in_flight(), dropped)
    }

    fn note_panic(&self) {
        self.shared().panics.fetch_add(1, Ordering::Relaxed);
    }
}

impl<K: Key> WorkItem for Item<'static, K> {
    type Key = K;

    fn key(&self) -> &K {
        Self::key(self)
    }

    fn attempt(&self) -> u32 {
        Self::attempt(self)
    }

    fn adds(&self) -> u32 {
        Self::adds(self)
    }

    fn reasons(&self) -> u32 {
        Self::reasons(self)
    }

    fn priority(&self) -> i32 {
        Self::priority(self)
    }

    fn queued(&self) -> Option<Duration> {
        Self::queued(self)
    }

    fn set_priority(&mut self, priority: i32) {
        Self::set_priority(self, priority);
    }

    fn fencing_token(&self) -> u64 {
        Self::fencing_token(self)
    }

    fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<K> {
        Self::cancelled(self)
    }

    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send {
        Self::complete(self, completion);
        ready(())
    }
}
