//! Changes that wait until they are the last.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::{Add, EarlyAdd, Item, Merge, Queue, Time};

use super::RunnerError;
use crate::ObjectKey;

/// A queue before the queue: in that one a key may be waiting for something else, such as an hourly
/// run, which is no reason for a change to wait as long.
pub(super) struct Debounce {
    waiting: Queue<ObjectKey>,
    /// Since when keys wait here.
    since: Mutex<HashMap<ObjectKey, Time>>,
    wait: Duration,
    most: Duration,
}

impl Debounce {
    pub(super) fn new(wait: Duration, most: Duration) -> Result<Self, RunnerError> {
        let waiting = Queue::builder().early_add(EarlyAdd::Replace).build()?;
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

    /// Adds to `queue` what has waited.
    pub(super) async fn hand_over(&self, queue: &Queue<ObjectKey>) {
        while let Some(item) = self.waiting.get().await {
            self.pass(item, queue);
        }
    }

    /// Adds to `queue` what waits still: nothing will follow it.
    pub(super) async fn hand_over_all(&self, queue: &Queue<ObjectKey>) {
        let mut keys: Vec<_> = self.since().keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            // The lowest, so that it keeps the one it has.
            self.waiting.add_with(key, Add::now().priority(i32::MIN));
        }
        while let Some(item) = self.waiting.try_get() {
            self.pass(item, queue);
        }
        // What the other has taken is on its way.
        while self.waiting.processing() > 0 {
            tokio::task::yield_now().await;
        }
    }

    fn pass(&self, item: Item<'_, ObjectKey>, queue: &Queue<ObjectKey>) {
        let add = Add::now().priority(item.priority()).reason(item.reasons());
        let mut since = self.since();
        since.remove(item.key());
        queue.add_with(item.key().clone(), add);
        item.succeed();
    }
}
