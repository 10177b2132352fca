//! Retries requests for locked keys without delaying requests for other keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use crate::client::batcher::Wish;
use crate::engine::defaults::MAX_BATCH;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::{Engine, Place, Tried, lock};
use crate::types::key::Key;

/// The maximum delay between two attempts to change a locked key.
pub(crate) const LAST: Duration = Duration::from_millis(250);

/// The requests whose keys are locked, by key.
///
/// A later request for one of these keys also waits in this table. In a batch, it would delay the other requests. While
/// any request waits, one task retries all requests of the table.
#[derive(Debug)]
pub(crate) struct LockedKeys<T> {
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
    waiting: Mutex<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    by_key: BTreeMap<Key, Vec<T>>,
    /// True if the retrying task is running.
    is_served: bool,
}

impl<T: Wish> LockedKeys<T> {
    pub(crate) fn new(engine: Arc<dyn Engine>, place: Arc<Place>) -> Self {
        let waiting = Mutex::new(Waiting { by_key: BTreeMap::new(), is_served: false });
        Self { engine, place, waiting }
    }

    /// Takes the request if other requests for its key are waiting. Returns the request if it was not taken.
    pub(crate) fn join_locked(&self, what: T) -> Option<T> {
        match lock(&self.waiting).by_key.get_mut(what.key()) {
            Some(waiting) => {
                waiting.push(what);
                None
            }
            None => Some(what),
        }
    }

    /// Adds requests, and starts the retrying task if it is not running.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) fn put_locked(self: Arc<Self>, left: Vec<T>) {
        if left.is_empty() {
            return;
        }
        let mut all = lock(&self.waiting);
        for what in left {
            all.by_key.entry(what.key().clone()).or_default().push(what);
        }
        // The lock that protects the requests also protects the flag. Therefore, exactly one task retries the requests.
        let was_served = std::mem::replace(&mut all.is_served, true);
        drop(all);
        if !was_served {
            tokio::spawn(self.retry_locked());
        }
    }

    async fn retry_locked(self: Arc<Self>) {
        let mut delay = RetryDelay::up_to(LAST);
        loop {
            sleep(delay.wait()).await;
            // The lock is not held while the requests are sent, because the answers can take long.
            let keys: Vec<Key> = lock(&self.waiting).by_key.keys().cloned().collect();
            let mut freed = false;
            for keys in keys.chunks(MAX_BATCH) {
                let batch = self.take_requests(keys);
                let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
                let left = T::submit_batch(engine, place, batch, Tried::InVain).await;
                freed |= self.return_keys(keys, left);
            }
            let mut all = lock(&self.waiting);
            if all.by_key.is_empty() {
                // The lock is still held. A request that is added later finds the flag unset, and starts another task.
                all.is_served = false;
                return;
            }
            drop(all);
            // If one key is unlocked, the transaction that locked it has ended. It may have locked several of the keys,
            // so the next attempt follows soon.
            if freed {
                delay = RetryDelay::up_to(LAST);
            }
        }
    }

    /// Takes the requests for `keys`. The keys stay in the table, so that later requests do not overtake these
    /// requests.
    fn take_requests(&self, keys: &[Key]) -> Vec<T> {
        let mut all = lock(&self.waiting);
        let waiting = keys.iter().filter_map(|key| all.by_key.get_mut(key).map(std::mem::take));
        waiting.flatten().collect()
    }

    /// Puts the requests in `left` back, before later requests of the same keys. Returns true if a key is no longer
    /// locked.
    fn return_keys(&self, keys: &[Key], left: Vec<T>) -> bool {
        let all = &mut lock(&self.waiting).by_key;
        // Requests that arrived during the attempt are placed after the requests in `left`.
        let come: Vec<T> = keys.iter().filter_map(|key| all.remove(key)).flatten().collect();
        let others = all.len();
        let mut put = |what: T| all.entry(what.key().clone()).or_default().push(what);
        left.into_iter().for_each(&mut put);
        come.into_iter().for_each(&mut put);
        all.len() - others < keys.len()
    }
}
