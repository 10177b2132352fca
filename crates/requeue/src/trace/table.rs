//! The trace contexts of the keys of a queue in memory. They are outside of the records, because
//! few keys have a context.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::SystemTime;

use super::context::{MAX_LINKS, Origin, Origins};
use super::{Cause, Waited};
use crate::ranked_mutex::{Rank, RankedMutex};
use crate::sync::{drop_quietly, quietly};

/// The maximum number of contexts of a key, for its pending run and the run after the pending run.
const MAX_KEPT: usize = 2 * (1 + MAX_LINKS);

/// The contexts of adds that no run has served yet.
pub(crate) struct Traces<K> {
    keys: RankedMutex<HashMap<K, Vec<Kept>>>,
}

struct Kept {
    origin: Origin,
    /// The number of the queue's last delivery before the add. Only a later delivery serves the add, because an add of
    /// a key in flight belongs to the next run.
    after: u64,
    /// The beginning of the wait.
    since: SystemTime,
}

/// The contexts of a run, and the beginning of its wait.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) origins: Origins,
    pub(crate) waited: Waited,
}

impl<K: Hash + Eq> Traces<K> {
    pub(crate) fn new() -> Self {
        Self { keys: RankedMutex::new(HashMap::new()) }
    }

    /// Keeps the context of an add that came after the queue's delivery `after`. Returns the key if it is not needed.
    pub(crate) fn keep(&self, key: K, origin: Origin, after: u64) -> Option<K> {
        let since = origin.at;
        self.update(key, |all| {
            if all.len() < MAX_KEPT {
                all.push(Kept { origin, after, since });
            }
        })
    }

    /// Keeps the contexts of the delivery `number` for the next run, as the contexts of the first
    /// adds of that run.
    pub(crate) fn pass_on(&self, key: K, taken: Taken, number: u64, cause: Option<Cause>) {
        let (since, after) = (SystemTime::now(), number);
        let unused = self.update(key, |all| {
            let passed = taken.origins.iter().cloned();
            let passed = passed.map(|origin| origin.with_cause(cause));
            let passed = passed.map(|origin| Kept { origin, after, since });
            all.splice(..0, passed);
            all.truncate(MAX_KEPT);
        });
        drop_quietly(unused);
    }

    /// Takes the contexts of the delivery `number` of `key`.
    pub(crate) fn take(&self, key: &K, number: u64) -> Option<Taken> {
        let mut gone = None;
        let mut keys = self.keys.lock(Some(Rank::Traces)).ok()?;
        // The hash and the comparison of a key are user code.
        let served: Vec<Kept> = quietly(|| {
            let all = keys.get_mut(key)?;
            let served = all.extract_if(.., |kept| kept.after < number).collect();
            if all.is_empty() {
                gone = keys.remove_entry(key);
            }
            Some(served)
        })
        .flatten()?;
        drop(keys);
        drop_quietly(gone);
        let (since, cause) = served.first().map(|kept| (kept.since, kept.origin.cause))?;
        let origins = Origins::new(served.into_iter().map(|kept| kept.origin).collect())?;
        Some(Taken { origins, waited: Waited { since, cause } })
    }

    /// Forgets the contexts of `key`, whose pending runs were cancelled.
    pub(crate) fn forget<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Ok(mut keys) = self.keys.lock(Some(Rank::Traces)) else { return };
        let gone = quietly(|| keys.remove_entry(key));
        drop(keys);
        drop_quietly(gone);
    }

    fn update(&self, key: K, change: impl FnOnce(&mut Vec<Kept>)) -> Option<K> {
        let Ok(mut keys) = self.keys.lock(Some(Rank::Traces)) else { return Some(key) };
        quietly(|| match keys.get_mut(&key) {
            Some(all) => {
                change(all);
                Some(key)
            }
            None => {
                let mut all = Vec::new();
                change(&mut all);
                keys.insert(key, all);
                None
            }
        })
        .flatten()
    }
}
