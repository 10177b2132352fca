//! The runs in flight, and the shards for which each run is counted.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::ObjectKey;

/// The runs in flight, by key. There are at most as many as the controller has workers.
#[derive(Default)]
pub(super) struct Runs {
    /// The shards for which each run is counted. A run has several shards if its object was deleted and created again
    /// during the run.
    shards: Mutex<HashMap<ObjectKey, Vec<u32>>>,
    /// Notifies the waiting releases of the end of each run.
    ended: Notify,
}

impl Runs {
    pub(super) fn begin_run(&self, key: &ObjectKey, shard: u32) {
        self.shards.lock().insert(key.clone(), vec![shard]);
    }

    pub(super) fn end_run(&self, key: &ObjectKey) {
        self.shards.lock().remove(key);
        // The run is removed before the notification, because a waiter checks the runs when it wakes.
        self.ended.notify_waiters();
    }

    /// Counts the run of `key` for a further shard. Does nothing if no run of `key` is in flight.
    pub(super) fn count_for(&self, key: &ObjectKey, shard: u32) {
        if let Some(shards) = self.shards.lock().get_mut(key)
            && !shards.contains(&shard)
        {
            shards.push(shard);
        }
    }

    /// Returns the keys of the runs that are counted for at least one of these shards.
    pub(super) fn keys_of(&self, shards: &[u32]) -> Vec<ObjectKey> {
        let runs = self.shards.lock();
        let counts = |counted: &[u32]| counted.iter().any(|shard| shards.contains(shard));
        runs.iter().filter(|(_, counted)| counts(counted)).map(|(key, _)| key.clone()).collect()
    }

    /// Waits until no run is counted for any of these shards.
    pub(super) async fn wait_for_none(&self, shards: &[u32]) {
        loop {
            // The future is created before the check, so it also notices a run that ends between the check and the
            // wait.
            let ended = self.ended.notified();
            if self.keys_of(shards).is_empty() {
                return;
            }
            ended.await;
        }
    }
}
