//! Where everything that asks for a reconciliation comes together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Resource;
use kube::core::ApiResource;
use kube::runtime::reflector::Store;
use requeue::{Add, Queue};

use super::debounce::Debounce;
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
    clear_on_new_generation: bool,
    /// In standby nothing is added.
    open: AtomicBool,
}

impl Hub {
    pub(super) fn new<K: Resource + 'static>(
        config: &Config,
        name: &str,
        runs_gone: bool,
        open: bool,
    ) -> Result<Self, RunnerError> {
        let most = config.debounce_max.unwrap_or(config.debounce.saturating_mul(10));
        let debounce = (!config.debounce.is_zero()).then(|| Debounce::new(config.debounce, most));
        Ok(Self {
            queue: config.queue().name(name).track_times().build()?,
            details: Details::default(),
            scope: Scope::of::<K>(),
            debounce: debounce.transpose()?,
            runs_gone,
            clear_on_new_generation: config.clear_on_new_generation,
            open: AtomicBool::new(open),
        })
    }

    /// From now on keys are added. What was seen before is in `store`.
    pub(super) fn open<K>(&self, store: &Store<K>)
    where
        K: Resource + Clone + 'static,
        K::DynamicType: Eq + std::hash::Hash + Clone,
    {
        // First: what is seen between the two is added twice rather than not at all.
        self.open.store(true, Ordering::SeqCst);
        self.add_all(store);
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
        match what {
            What::Deleted if !self.runs_gone => return self.cancel(&key),
            What::NewGeneration if self.clear_on_new_generation => self.queue.forget(&key),
            What::Created | What::Deleted => self.queue.forget(&key),
            What::Listed | What::Unchanged | What::Updated | What::NewGeneration => {}
        }
        self.add(key, what.priority(), Reason::Object);
    }

    /// An object of `kind` has changed, which concerns others.
    pub(super) fn related(&self, change: Change, kind: &Arc<ApiResource>) {
        for target in change.targets {
            let reason = Reason::Related(Arc::clone(kind), change.key.clone());
            self.add(target, change.what.priority(), reason);
        }
    }

    pub(super) fn add(&self, key: ObjectKey, priority: i32, reason: Reason) {
        if !self.open.load(Ordering::SeqCst) {
            return;
        }
        let key = self.scope.normal(key);
        let bit = reason.bit();
        self.details.note(&key, reason);
        match &self.debounce {
            Some(debounce) => debounce.add(key, priority, bit),
            None => {
                self.queue.add_with(key, Add::now().priority(priority).reason(bit));
            }
        }
    }

    fn cancel(&self, key: &ObjectKey) {
        if let Some(debounce) = &self.debounce {
            debounce.cancel(key);
        }
        self.queue.cancel(key);
        self.details.forget(key);
    }
}
