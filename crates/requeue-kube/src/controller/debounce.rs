//! Debouncing: a change waits until no other change has followed it for some time.
//!
//! The wait has an upper bound, so an object that never stops changing is still reconciled.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::clock::TokioClock;
use requeue::{Add, Item, Merge, Queue, ReAdd, Time};

use super::RunnerError;
use crate::{ObjectKey, ObjectQueue};

/// A separate queue in front of the controller's queue. There, a key may already wait for another
/// reason, such as an hourly run, and a change must not wait for that.
pub(super) struct Debounce {
    waiting: ObjectQueue,
    /// The time at which each key began to wait here.
    since: Mutex<HashMap<ObjectKey, Time>>,
    wait: Duration,
    most: Duration,
}

impl Debounce {
    pub(super) fn new(wait: Duration, most: Duration) -> Result<Self, RunnerError> {
        let waiting = Queue::builder().clock(TokioClock::current()).re_add(ReAdd::Replace);
        let waiting = waiting.hasher(RandomState::new()).build()?;
        Ok(Self { waiting, since: Mutex::default(), wait, most: most.max(wait) })
    }

    fn since(&self) -> MutexGuard<'_, HashMap<ObjectKey, Time>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, key: ObjectKey, priority: i32, reasons: u32) {
        let mut since = self.since();
        let now = self.waiting.now();
        let first = *since.entry(key.clone()).or_insert(now);
        let due = (now + self.wait).min(first + self.most);
        let add = Add::at(due).merge(Merge::Latest).priority(priority).reason(reasons);
        self.waiting.add_with(key, add);
    }

    pub(super) fn cancel(&self, key: &ObjectKey) {
        self.since().remove(key);
        self.waiting.cancel(key);
    }

    /// Adds each key to `queue` when its wait is over.
    pub(super) async fn hand_over(&self, queue: &ObjectQueue) {
        while let Some(item) = self.waiting.get().await {
            self.pass(item, queue);
        }
    }

    /// Adds all waiting keys to `queue` now: no further change will follow.
    pub(super) async fn hand_over_all(&self, queue: &ObjectQueue) {
        let mut keys: Vec<_> = self.since().keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            // The lowest priority, so that the key keeps the one it has.
            self.waiting.add_with(key, Add::now().priority(i32::MIN));
        }
        while let Some(item) = self.waiting.try_get() {
            self.pass(item, queue);
        }
        // Waits for the keys that `hand_over` has in flight.
        while self.waiting.processing() > 0 {
            tokio::task::yield_now().await;
        }
    }

    fn pass(&self, item: Item<'_, ObjectKey>, queue: &ObjectQueue) {
        let add = Add::now().priority(item.priority()).reason(item.reasons());
        let mut since = self.since();
        since.remove(item.key());
        queue.add_with(item.key().clone(), add);
        item.succeed();
    }
}
