//! The interface between workers and queues, which a queue in memory and a queue in a store
//! implement.

use std::fmt;
use std::future::{Future, pending, ready};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Error;
use crate::clock::Clock;
use crate::sync::drop_quietly;
use crate::{CancelReason, Completion, Drained, Item, Key, Queue, Reasons};

/// A queue from which [`Workers`](super::Workers) take keys. It is a queue of this crate or of
/// requeue-store.
// The trait is hidden, because it follows the needs of the workers and of the store.
#[doc(hidden)]
pub trait WorkQueue: Clone + Send + Sync + 'static {
    /// The type of the keys.
    type Key: Key + fmt::Debug;
    /// A key in flight.
    type Item: WorkItem<Key = Self::Key>;

    /// Waits for the next key. Returns `None` if no more keys will come.
    fn next_item(&self) -> impl Future<Output = Option<Self::Item>> + Send;

    /// Returns the clock by which workers measure timeouts.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Shuts the queue down. It then delivers only its ready keys, and dirty keys once more.
    fn shut_down(&self);

    /// Waits until the queue has recorded all completions of the workers, and has returned the
    /// claimed keys that no worker took.
    ///
    /// This method is called after the workers have stopped. The default implementation does not
    /// wait, for queues without I/O.
    fn wait_settled(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Returns the numbers of the remaining keys, and the dropped keys.
    fn take_left(&self) -> Drained<Self::Key>;

    /// Counts that a handler has panicked.
    fn note_panic(&self) {}
}

/// A delivered key. If it is dropped before its completion, the run has failed.
// The trait is hidden, because it is a part of `WorkQueue`.
#[doc(hidden)]
pub trait WorkItem: Send + Sized + 'static {
    /// The type of the key.
    type Key;

    /// Returns the key.
    fn key(&self) -> &Self::Key;

    /// Returns the attempt, the adds and other data of the delivery.
    fn delivery(&self) -> Delivery;

    /// Returns the reasons of the adds that this run serves. The default implementation is for
    /// queues that store no reasons.
    fn reasons(&self) -> Reasons {
        Reasons::default()
    }

    /// Sets the priority of the next run of the key, if the completion causes a run.
    fn set_priority(&mut self, priority: i32);

    /// Waits until the queue cancels this run, or until the key no longer belongs to this worker.
    /// Returns the reason.
    ///
    /// Workers then cancel the context of the handler for this reason. If the handler does not
    /// return within the grace period, they drop its future, and complete the delivery with
    /// [`Completion::Cancelled`]. The default implementation never becomes ready, for queues that
    /// cancel no runs.
    fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<Self> {
        pending()
    }

    /// Starts the span of the run. The default implementation is for queues that create no spans.
    #[cfg(feature = "opentelemetry")]
    fn start_span(&self) -> Option<crate::trace::RunSpan> {
        None
    }

    /// Stores the error of a failed run. Workers call this method before the completion.
    ///
    /// The default implementation is for queues that store no errors.
    fn note_error(&mut self, _error: &Error) {}

    /// Completes the delivery with `completion`.
    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send;
}

/// The data of a delivery that a handler gets in its [`Context`](super::Context).
// The struct is hidden, because it is a part of `WorkItem`.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The number of this attempt: one more than the number of consecutive failures before this
    /// run.
    pub attempt: u32,
    /// The number of adds that this run serves.
    pub adds: u32,
    /// The flags of all adds that this run serves, or-ed.
    pub flags: u32,
    /// The highest priority of the adds that this run serves.
    pub priority: i32,
    /// The time for which the key was ready before this delivery, or `None` if the queue does not
    /// measure it.
    pub queued: Option<Duration>,
    /// The fencing token: a number that grows with each delivery of the key.
    pub fencing_token: u64,
}

impl<K: Key + fmt::Debug, S: BuildHasher + Send + Sync + 'static> WorkQueue for Queue<K, S> {
    type Key = K;
    type Item = Item<'static, K>;

    async fn next_item(&self) -> Option<Self::Item> {
        self.get().until_final().await.map(Item::into_owned)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    fn shut_down(&self) {
        // The drain owns the dropped keys. Dropping it passes these keys to `take_dropped`.
        drop_quietly(self.shut_down_with_drain());
    }

    fn take_left(&self) -> Drained<K> {
        let dropped = self.take_dropped();
        Drained::new(self.len(), self.states().in_flight, dropped)
    }

    fn note_panic(&self) {
        self.shared.tally.panics.fetch_add(1, Ordering::Relaxed);
    }
}

impl<K: Key> WorkItem for Item<'static, K> {
    type Key = K;

    fn key(&self) -> &K {
        Self::key(self)
    }

    fn delivery(&self) -> Delivery {
        Delivery {
            attempt: self.attempt(),
            adds: self.adds(),
            flags: self.flags(),
            priority: self.priority(),
            queued: self.queued(),
            fencing_token: self.fencing_token(),
        }
    }

    fn reasons(&self) -> Reasons {
        Self::reasons(self)
    }

    fn set_priority(&mut self, priority: i32) {
        Self::set_priority(self, priority);
    }

    fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<K> {
        Self::cancelled(self)
    }

    #[cfg(feature = "opentelemetry")]
    fn start_span(&self) -> Option<crate::trace::RunSpan> {
        Self::start_span(self)
    }

    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send {
        Self::complete(self, completion);
        ready(())
    }
}
