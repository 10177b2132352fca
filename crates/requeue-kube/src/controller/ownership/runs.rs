//! The runs in flight, and the shards for which each run counts.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ObjectKey;

/// The keys whose runs are in flight. The number of runs is at most the number of the controller's workers.
#[derive(Default)]
pub(super) struct Runs {
    /// The shards for which each run counts. There is more than one shard if the object was deleted and created again
    /// during the run.
    shards: Mutex<HashMap<ObjectKey, Vec<u32>>>,
    /// Notifies about the end of each run.
    ended: Notify,
}

impl Runs {
    pub(super) fn begin_run(&self, key: &ObjectKey, shard: u32) {
        self.shards.lock().insert(key.clone(), vec![shard]);
    }

    pub(super) fn end_run(&self, key: &ObjectKey) {
        self.shards.lock().remove(key);
        // The run is removed before the notification, because a woken waiter must not find the run.
        self.ended.notify_waiters();
    }

    /// Counts the run of `key`, if any, for one more shard.
    pub(super) fn count_for(&self, key: &ObjectKey, shard: u32) {
        if let Some(shards) = self.shards.lock().get_mut(key)
            && !shards.contains(&shard)
        {
            shards.push(shard);
        }
    }

    /// Returns the keys of the runs that count for one of these shards.
    pub(super) fn keys_of(&self, shards: &[u32]) -> Vec<ObjectKey> {
        let runs = self.shards.lock();
        let counts = |counted: &[u32]| counted.iter().any(|shard| shards.contains(shard));
        runs.iter().filter(|(_, counted)| counts(counted)).map(|(key, _)| key.clone()).collect()
    }

    /// Waits until no run counts for one of these shards.
    pub(super) async fn wait_for_none(&self, shards: &[u32]) {
        loop {
            // The future is created before the check, so that it notices each end after the check.
            let ended = self.ended.notified();
            if self.keys_of(shards).is_empty() {
                return;
            }
            ended.await;
        }
    }
}
