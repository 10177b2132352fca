//! What waits for keys that somebody has locked, out of the way of the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::client::batcher::{MOST, Tried, Wish};
use crate::engine::retry_delay::RetryDelay;
use crate::engine::{Engine, Place};
use crate::types::key::Key;

/// How long a key that is locked is left alone, at most.
pub(crate) const LAST: Duration = Duration::from_millis(250);

/// By key, so that what comes later waits here as well: with the others it would hold them up. A
/// task tries them all again and again, as long as there are some.
#[derive(Debug)]
pub(crate) struct LockedKeys<T> {
    engine: Arc<dyn Engine>,
    place: Arc<Place>,
    waiting: Mutex<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    by_key: BTreeMap<Key, Vec<T>>,
    /// There is the task.
    is_served: bool,
}

impl<T: Wish> LockedKeys<T> {
    pub(crate) fn new(engine: Arc<dyn Engine>, place: Arc<Place>) -> Self {
        let waiting = Mutex::new(Waiting { by_key: BTreeMap::new(), is_served: false });
        Self { engine, place, waiting }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it, if its key is locked as far as is known.
    pub(crate) fn join(&self, what: T) -> Option<T> {
        match self.lock().by_key.get_mut(what.key()) {
            Some(waiting) => {
                waiting.push(what);
                None
            }
            None => Some(what),
        }
    }

    /// Needs a runtime.
    pub(crate) fn put(self: Arc<Self>, left: Vec<T>) {
        if left.is_empty() {
            return;
        }
        let mut all = self.lock();
        for what in left {
            all.by_key.entry(what.key().clone()).or_default().push(what);
        }
        let was_served = std::mem::replace(&mut all.is_served, true);
        drop(all);
        if !was_served {
            tokio::spawn(self.serve());
        }
    }

    async fn serve(self: Arc<Self>) {
        let mut delay = RetryDelay::up_to(LAST);
        loop {
            sleep(delay.wait()).await;
            let keys: Vec<Key> = self.lock().by_key.keys().cloned().collect();
            let mut freed = false;
            for keys in keys.chunks(MOST) {
                let batch = self.take(keys);
                let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
                let left = T::submit(engine, place, batch, Tried::InVain).await;
                freed |= self.return_keys(keys, left);
            }
            let mut all = self.lock();
            if all.by_key.is_empty() {
                all.is_served = false;
                return;
            }
            drop(all);
            if freed {
                delay = RetryDelay::up_to(LAST);
            }
        }
    }

    /// What waits for these keys. They stay: what comes meanwhile is not to go first.
    fn take(&self, keys: &[Key]) -> Vec<T> {
        let mut all = self.lock();
        let waiting = keys.iter().filter_map(|key| all.by_key.get_mut(key).map(std::mem::take));
        waiting.flatten().collect()
    }

    /// Whether some key is not locked any more.
    fn return_keys(&self, keys: &[Key], left: Vec<T>) -> bool {
        let all = &mut self.lock().by_key;
        let come: Vec<T> = keys.iter().filter_map(|key| all.remove(key)).flatten().collect();
        let others = all.len();
        let mut put = |what: T| all.entry(what.key().clone()).or_default().push(what);
        left.into_iter().for_each(&mut put);
        come.into_iter().for_each(&mut put);
        all.len() - others < keys.len()
    }
}
