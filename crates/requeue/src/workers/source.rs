//! What workers take keys from.

use std::fmt;
use std::future::{Future, pending, ready};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Error;
use crate::clock::Clock;
use crate::sync::drop_quietly;
use crate::{Completion, Drained, Item, Key, Queue};

/// A queue that [`Workers`](super::Workers) can work on: that of this crate, or one that keeps its
/// keys elsewhere.
pub trait WorkQueue: Clone + Send + Sync + 'static {
    /// What is handed out.
    type Key: Key + fmt::Debug;
    /// A key with a worker.
    type Item: WorkItem<Key = Self::Key>;

    /// The next key, when there is one; `None` when there will be none any more.
    fn next(&self) -> impl Future<Output = Option<Self::Item>> + Send;

    /// By what time-outs go.
    fn clock(&self) -> Arc<dyn Clock>;

    /// No more keys are to be handed out, but for those that have to be.
    fn shut_down(&self);

    /// Until all that its workers have said has arrived, and what they did not take is back; asked
    /// once they have ended. At once where nothing travels.
    fn settled(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// What has become of the keys.
    fn left(&self) -> Drained<Self::Key>;

    /// A handler has panicked.
    fn note_panic(&self) {}
}

/// A key with a worker. Dropped unfinished, it has failed.
pub trait WorkItem: Send + Sized + 'static {
    /// What was handed out.
    type Key;

    /// The key.
    fn key(&self) -> &Self::Key;

    /// 1, and one more for each failure in a row before.
    fn attempt(&self) -> u32;

    /// How many adds this run stands for.
    fn adds(&self) -> u32;

    /// The reasons of those adds, or-ed.
    fn reasons(&self) -> u32;

    /// The highest priority of those adds.
    fn priority(&self) -> i32;

    /// The priority with which it comes back, if it does.
    fn set_priority(&mut self, priority: i32);

    /// The number of this hand-out.
    fn epoch(&self) -> u64;

    /// Until the key is this worker's no more, though the run has not ended; mostly for ever.
    fn lost(&self) -> impl Future<Output = ()> + Send + use<Self> {
        pending()
    }

    /// Notes the error of a run that failed, before its completion. A queue that keeps errors overrides
    /// this.
    fn note_error(&mut self, error: &Error) {
        let _ = error;
    }

    /// Completes the delivery.
    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send;
}

impl<K: Key + fmt::Debug, S: BuildHasher + Send + Sync + 'static> WorkQueue for Queue<K, S> {
    type Key = K;
    type Item = Item<'static, K>;

    fn next(&self) -> impl Future<Output = Option<Self::Item>> + Send {
        self.get_to_the_end()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared().clock)
    }

    fn shut_down(&self) {
        // It has what is dropped now, and leaves it to `take_dropped` when it goes.
        drop_quietly(self.shut_down_with_drain());
    }

    fn left(&self) -> Drained<K> {
        let dropped = self.take_dropped();
        Drained::new(self.len(), self.processing(), dropped)
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

    fn set_priority(&mut self, priority: i32) {
        Self::set_priority(self, priority);
    }

    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }

    fn complete(self, completion: Completion) -> impl Future<Output = ()> + Send {
        Self::complete(self, completion);
        ready(())
    }
}
