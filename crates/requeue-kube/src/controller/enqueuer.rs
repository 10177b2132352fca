//! Where everything that asks for a reconciliation comes together.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Resource;
use kube::core::ApiResource;
use kube::runtime::reflector::Store;
use requeue::{Add, Queue};

use super::debounce::Debounce;
use super::failures::{Failures, Version, Versions};
use super::reason::{Details, Reason};
use super::scope::Scope;
use super::{Config, RunnerError};
use crate::ObjectKey;
use crate::watch::{Change, LOW_PRIORITY, What};

pub(super) struct Hub {
    pub(super) queue: Queue<ObjectKey>,
    pub(super) details: Details,
    pub(super) scope: Scope,
    pub(super) debounce: Option<Debounce>,
    /// Whether objects that are gone are reconciled, too.
    pub(super) runs_gone: bool,
    /// Whether an object that was seen again unchanged is reconciled.
    runs_unchanged: bool,
    pub(super) failures: Failures,
    versions: Versions,
    /// In standby nothing is added. Of what is not in the store, the keys to be added then.
    standby: Mutex<Option<BTreeSet<ObjectKey>>>,
}

impl Hub {
    pub(super) fn new<K: Resource + 'static>(
        config: &Config,
        name: &str,
        runs_gone: bool,
        open: bool,
        versions: Versions,
    ) -> Result<Self, RunnerError> {
        let most = config.debounce_max.unwrap_or(config.debounce.saturating_mul(10));
        let debounce = (!config.debounce.is_zero()).then(|| Debounce::new(config.debounce, most));
        Ok(Self {
            queue: config.queue().name(name).track_times().build()?,
            details: Details::default(),
            scope: Scope::of::<K>(),
            debounce: debounce.transpose()?,
            runs_gone,
            runs_unchanged: config.reconcile_unchanged,
            failures: Failures::new(config.limiter()),
            versions,
            standby: Mutex::new((!open).then(BTreeSet::new)),
        })
    }

    /// From now on keys are added. What was seen before is in `store`.
    pub(super) fn open<K>(&self, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + std::hash::Hash + Clone,
    {
        // First: what is seen between the two is added twice rather than not at all.
        let gone = self.standby().take();
        self.add_all(store);
        for key in gone.into_iter().flatten() {
            self.add(key, LOW_PRIORITY, Reason::Bulk);
        }
    }

    /// Adds everything in `store`, for whenever there is time.
    pub(super) fn add_all<K>(&self, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + std::hash::Hash + Clone,
    {
        let mut keys: Vec<_> =
            store.state().iter().map(|object| ObjectKey::of(&**object)).collect();
        // A store's order is another each time.
        keys.sort_unstable();
        for key in keys {
            self.add(key, LOW_PRIORITY, Reason::Bulk);
        }
    }

    /// An object of the controller's own kind has changed.
    pub(super) fn changed(&self, change: Change) {
        let Change { key, what, .. } = change;
        if what == What::Unchanged && !self.runs_unchanged {
            return;
        }
        if what == What::Deleted && !self.runs_gone {
            return self.cancel(&key);
        }
        self.release_if_overtaken(&key);
        self.add(key, what.priority(), Reason::Object);
    }

    /// A worker has ended a run of `key`, and the queue knows.
    pub(super) fn finished(&self, key: ObjectKey) {
        self.failures.entered(&key);
        if self.release_if_overtaken(&key) {
            self.add(key, What::NewGeneration.priority(), Reason::Object);
        }
    }

    /// Ends the backoff of `key` if what has failed is not what there is now.
    fn release_if_overtaken(&self, key: &ObjectKey) -> bool {
        let release = || self.queue.forget(key);
        self.failures.compare(key, || self.version(key), release)
    }

    /// What is in the store under `key`.
    pub(super) fn version(&self, key: &ObjectKey) -> Option<Version> {
        (self.versions)(key)
    }

    /// Objects of `kind` have changed, all by one event, and concern others. A target is added once
    /// per event: a worker may take it while the rest of a list is still being added here.
    ///
    /// An unchanged object is never a reason to reconcile those that it concerns. Where unchanged
    /// objects are to run, the watch of the controller's own kind adds each of them once.
    pub(super) fn related(&self, changes: Vec<Change>, kind: &Arc<ApiResource>) {
        let is_list = changes.len() > 1;
        let mut added = HashSet::new();
        for change in changes.into_iter().filter(|change| change.what != What::Unchanged) {
            for target in change.targets {
                if is_list && !added.insert(target.clone()) {
                    continue;
                }
                let reason = Reason::Related(Arc::clone(kind), change.key.clone());
                self.add(target, change.what.priority(), reason);
            }
        }
    }

    pub(super) fn add(&self, key: ObjectKey, priority: i32, reason: Reason) {
        let key = self.scope.normal(key);
        if let Some(gone) = &mut *self.standby() {
            // The others are in the store.
            if self.runs_gone && self.version(&key).is_none() {
                gone.insert(key);
            }
            return;
        }
        let bit = reason.bit();
        self.details.note(&key, reason);
        match &self.debounce {
            Some(debounce) => debounce.add(key, priority, bit),
            None => {
                self.queue.add_with(key, Add::now().priority(priority).reason(bit));
            }
        }
    }

    fn standby(&self) -> MutexGuard<'_, Option<BTreeSet<ObjectKey>>> {
        self.standby.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, key: &ObjectKey) {
        if let Some(debounce) = &self.debounce {
            debounce.cancel(key);
        }
        self.queue.cancel(key);
        self.failures.forget(key);
        self.details.forget(key);
    }
}
