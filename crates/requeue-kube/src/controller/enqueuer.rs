//! The only place that adds keys to a controller's queue: for watches, triggers, retries and the
//! first list.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use kube::core::ObjectMeta;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use requeue::{Add, intern_reason};

use super::config::Config;
use super::error::RunnerError;
use super::failures::{Failures, Version};
use super::ownership::{Attached, Ownership};
use super::reason::{Details, Reason, RelatedWatch, cause_of};
use super::scope::Scope;
use super::writes::{Origin, Writes};
use crate::key::ObjectKind;
use crate::watch::{Change, ChangeKind, LOW_PRIORITY};
use crate::{ObjectKey, ObjectQueue};

/// Calls a function with the metadata of an object in the controller's store, if the object is
/// there.
type LookUp = Box<dyn Fn(&ObjectKey, &mut dyn FnMut(&ObjectMeta)) + Send + Sync>;

/// The metadata of the objects in the controller's store.
pub(super) struct OwnStore(LookUp);

impl OwnStore {
    pub(super) fn new<K: ObjectKind>(store: Store<K>, dyntype: K::DynamicType) -> Self {
        Self(Box::new(move |key, use_meta| {
            if let Some(object) = store.get(&key.to_ref(dyntype.clone())) {
                use_meta(object.meta());
            }
        }))
    }

    /// Returns a part of the metadata of an object, or `None` if it is not in the store.
    fn read_meta<T>(&self, key: &ObjectKey, read: impl Fn(&ObjectMeta) -> T) -> Option<T> {
        let mut found = None;
        (self.0)(key, &mut |meta| found = Some(read(meta)));
        found
    }
}

/// The rules that do not follow from the configuration.
pub(super) struct Rules {
    pub(super) ownership: Arc<dyn Ownership>,
    pub(super) scope: Scope,
    /// True if deleted objects are also reconciled.
    pub(super) runs_gone: bool,
    /// No key is added before [`Enqueuer::end_standby`].
    pub(super) in_standby: bool,
}

pub(super) struct Enqueuer {
    pub(super) queue: ObjectQueue,
    pub(super) ownership: Arc<dyn Ownership>,
    pub(super) details: Details,
    pub(super) scope: Scope,
    /// The add for a change. The add is debounced, or immediate if the debounce is zero.
    change: Add,
    /// True if deleted objects are also reconciled.
    pub(super) runs_gone: bool,
    /// True if objects that were seen again unchanged are reconciled.
    runs_unchanged: bool,
    pub(super) failures: Failures,
    pub(super) writes: Writes,
    store: OwnStore,
    /// True if new generations end a backoff.
    generations: bool,
    /// `Some` in standby, in which no key is added to the queue. At the end of the standby, the keys of the store and
    /// the keys of this set are added.
    standby: Mutex<Option<BTreeSet<ObjectKey>>>,
}

/// An event or a list that is being handled. While this value exists, the shard of no object is
/// forgotten.
pub(super) struct Handling(Arc<Enqueuer>);

impl Handling {
    pub(super) fn begin_event(enqueuer: &Arc<Enqueuer>) -> Self {
        enqueuer.ownership.begin_event();
        Self(Arc::clone(enqueuer))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.0.ownership.end_event(&|key| self.0.is_gone(key));
    }
}

impl Enqueuer {
    pub(super) fn new(
        config: &Config,
        name: &str,
        rules: Rules,
        store: OwnStore,
        writes: Writes,
    ) -> Result<Arc<Self>, RunnerError> {
        let most = config.debounce_max.unwrap_or(config.debounce.saturating_mul(10));
        let shards = rules.ownership.changing_shards().map(|shards| Arc::clone(shards.places()));
        let queue = config.queue_builder(shards)?.name(name).track_times().build();
        let enqueuer = Arc::new(Self {
            queue: queue.map_err(|error| RunnerError::Config(error.to_string()))?,
            ownership: rules.ownership,
            details: Details::default(),
            scope: rules.scope,
            change: Add::debounce(config.debounce).at_most(most),
            runs_gone: rules.runs_gone,
            runs_unchanged: config.reconcile_unchanged,
            failures: Failures::new((config.rate_limiter)()),
            writes,
            store,
            generations: config.clear_on_new_generation,
            standby: Mutex::new(rules.in_standby.then(BTreeSet::new)),
        });
        enqueuer.attach_keys();
        Ok(enqueuer)
    }

    /// Connects the queue with the keys that the controller owns.
    fn attach_keys(self: &Arc<Self>) {
        // The references are weak, because the handle of the shards outlives the controller and
        // must not keep it alive.
        let (forget, regroup) = (Arc::downgrade(self), Arc::downgrade(self));
        self.ownership.attach_controller(Attached {
            queue: self.queue.clone(),
            forget: Box::new(move |is_gone| {
                forget.upgrade().iter().for_each(|enqueuer| enqueuer.forget_all(is_gone));
            }),
            regroup: Box::new(move |key| {
                regroup.upgrade().iter().for_each(|enqueuer| enqueuer.regroup(key));
            }),
        });
    }

    /// Ends the standby, so that keys are added from now on. Objects that were seen before are in
    /// `store`.
    pub(super) fn end_standby<K: ObjectKind>(&self, store: &Store<K>) {
        // The standby ends before the store is read. An object that is seen between the two steps
        // is then added twice, but never missed.
        let gone = self.standby.lock().take();
        self.add_all(store);
        for key in gone.into_iter().flatten() {
            self.add(key, LOW_PRIORITY, Reason::Bulk, None);
        }
    }

    /// Adds all objects in `store` that this controller reconciles, with low priority.
    pub(super) fn add_all<K: ObjectKind>(&self, store: &Store<K>) {
        let mut keys: Vec<_> =
            store.state().iter().map(|object| ObjectKey::from_object(&**object)).collect();
        // The order of a store's objects is random.
        keys.sort_unstable();
        // A store that the user maintains may contain objects of other shards.
        for key in keys.into_iter().filter(|key| self.is_ours(key)) {
            self.add(key, LOW_PRIORITY, Reason::Bulk, None);
        }
    }

    /// Handles a change of an object of the controller's own kind.
    pub(super) fn own_changed(&self, change: Change, event: Origin<'_>) {
        let Change { key, kind, .. } = change;
        // A new generation is never suppressed, because a patch that changed nothing returns the
        // version of another client's change.
        if kind != ChangeKind::NewGeneration && self.writes.is_own(event, &key) {
            return;
        }
        if kind == ChangeKind::Unchanged && !self.runs_unchanged {
            return;
        }
        if kind == ChangeKind::Deleted && !self.runs_gone {
            return self.cancel_key(&key);
        }
        self.release_if_overtaken(&key);
        self.add(key, kind.priority(), Reason::of_change(event.kind(), kind), Some(event));
    }

    /// Handles the completion of a run of `key`, after the queue has recorded it.
    pub(super) fn run_finished(&self, key: ObjectKey) {
        // This call comes first, because a key must count as backing off before a new version can
        // end its backoff.
        self.failures.begin_backoff(&key);
        if self.release_if_overtaken(&key) {
            let reason = Reason::Object(intern_reason("new version after a failure"), None);
            self.add(key.clone(), ChangeKind::NewGeneration.priority(), reason, None);
        }
        // The run can record no more writes. An event that matches no recorded write therefore shows a change of
        // another client.
        for held in self.writes.end_run(&key) {
            self.add(key.clone(), held.priority, held.reason, None);
        }
        self.regroup(&key);
        self.ownership.forget_shard_of(&key, &|key| self.is_gone(key));
    }

    /// Moves a key from the group of its former shard to the group of its present shard, if its
    /// object has moved. A key in flight moves after its run.
    pub(super) fn regroup(&self, key: &ObjectKey) {
        let cause = Cell::new(None);
        let has_moved = self.ownership.regroup(key, &|| {
            cause.set(cause_of(&self.queue.reasons(key)));
            // A key in flight stays in its group until its run has completed. `run_finished` then calls this method
            // again.
            self.queue.cancel(key);
            self.queue.look_up(key).is_none()
        });
        if has_moved && self.ownership.is_held(key) {
            // The key had a pending run, or its name now belongs to a new object that needs its first run.
            let reason = Reason::Object(intern_reason("moved to another shard"), cause.take());
            self.add(key.clone(), ChangeKind::Created.priority(), reason, None);
        } else if has_moved {
            self.forget_key(key);
        }
    }

    /// Returns true if the key has no object and is not in the queue.
    fn is_gone(&self, key: &ObjectKey) -> bool {
        self.stored_version(key).is_none() && self.queue.look_up(key).is_none()
    }

    /// Handles the progress of a watch. Objects whose runs waited for this event run now.
    pub(super) fn watch_progressed(&self, event: Origin<'_>, watch: usize) {
        for key in self.writes.apply_progress(event, watch) {
            self.make_ready(key, "own write seen");
        }
    }

    /// Makes a waiting key ready now.
    fn make_ready(&self, key: ObjectKey, reason: &str) {
        // The add has the lowest priority, so that the key keeps its priority.
        self.add_if_held(key, Add::now().priority(i32::MIN).reason(intern_reason(reason)), None);
    }

    /// Adds a key to the queue, unless its shard is not held.
    pub(super) fn add_if_held(&self, key: ObjectKey, add: Add, cause: Option<Arc<str>>) {
        if let Some(_held) = self.ownership.hold(&key) {
            self.queue_add(key, add, cause);
        }
    }

    fn queue_add(&self, key: ObjectKey, add: Add, cause: Option<Arc<str>>) {
        match cause {
            Some(cause) => self.queue.add_caused_by(key, add, cause),
            None => self.queue.add_with(key, add),
        };
    }

    /// Forgets the controller's state of the keys for which `is_gone` returns true, except for the state in the queue.
    /// The objects of these keys are not deleted, because another replica reconciles them.
    pub(super) fn forget_all(&self, is_gone: &dyn Fn(&ObjectKey) -> bool) {
        self.writes.forget_all(is_gone);
        self.failures.forget_all(is_gone);
        self.details.forget_all(is_gone);
        if let Some(gone) = &mut *self.standby.lock() {
            gone.retain(|key| !is_gone(key));
        }
    }

    /// Ends the backoff of `key` if the version of the object in the store differs from the version that failed.
    fn release_if_overtaken(&self, key: &ObjectKey) -> bool {
        let release = || self.queue.forget(key);
        self.failures.end_wait_if_changed(key, || self.stored_version(key), release)
    }

    /// Returns the version of the object of `key` in the store.
    pub(super) fn stored_version(&self, key: &ObjectKey) -> Option<Version> {
        self.store.read_meta(key, |meta| Version::from_meta(meta, self.generations))
    }

    /// Handles changes of objects of `watch` that concern other objects. All changes are from one event. A target is
    /// added once per event, with its highest priority, because a worker may take the target while other objects of a
    /// list are still being added.
    ///
    /// An unchanged object never causes a run of the objects that it concerns. If unchanged objects
    /// must run, the watch of the controller's own kind adds each unchanged object once.
    pub(super) fn related_changed(
        &self,
        changes: &[Change],
        watch: &Arc<RelatedWatch>,
        event: Origin<'_>,
    ) {
        let mut adds = Vec::new();
        for change in changes.iter().filter(|change| change.kind != ChangeKind::Unchanged) {
            let targets = change.targets.iter();
            adds.extend(targets.map(|target| (change.priority_of(target), target, change)));
        }
        // A target that several changes name is added once. The first of its adds has the highest
        // priority.
        adds.sort_by_key(|(priority, ..)| Reverse(*priority));
        let (is_list, mut added) = (changes.len() > 1, HashSet::new());
        for (priority, target, change) in adds {
            let is_known = is_list && !added.insert(target);
            if is_known || self.writes.is_own(event, target) {
                continue;
            }
            let reason = Reason::Related(Arc::clone(watch), change.key.clone(), change.kind);
            self.add(target.clone(), priority, reason, Some(event));
        }
    }

    /// Returns true if this controller reconciles an object that a mapper or a trigger names.
    pub(super) fn is_ours(&self, key: &ObjectKey) -> bool {
        self.ownership.owns_target(&|is_owned| {
            let key = self.scope.normalize(key.clone());
            self.store.read_meta(&key, |meta| is_owned(&key, meta)).unwrap_or(false)
        })
    }

    /// Adds `key` to the queue. If `event` may show a write of the run in flight, the add waits for the
    /// end of that run.
    pub(super) fn add(
        &self,
        key: ObjectKey,
        priority: i32,
        mut reason: Reason,
        event: Option<Origin<'_>>,
    ) {
        let key = self.scope.normalize(key);
        if let Some(event) = event {
            let Some(kept) = self.writes.hold_add(&key, event, priority, reason) else { return };
            reason = kept;
        }
        if self.waits_for_start(&key) {
            return;
        }
        // While `_held` exists, no release of the key's shard begins.
        let Some(_held) = self.ownership.hold(&key) else { return };
        let (why, cause) = reason.in_queue();
        let add = self.change.priority(priority).flags(reason.flag()).reason(why);
        // The details are noted first, because a worker may take the key immediately.
        self.details.note_detail(&key, reason);
        self.queue_add(key, add, cause);
    }

    /// Returns true in standby. A key that is not in the store is then remembered.
    fn waits_for_start(&self, key: &ObjectKey) -> bool {
        // The lock is held until the key is stored in `standby`. Otherwise, the end of the standby could miss the key.
        let mut standby = self.standby.lock();
        let Some(gone) = &mut *standby else { return false };
        // Keys of all other objects are in the store.
        if self.runs_gone && self.ownership.is_held(key) && self.stored_version(key).is_none() {
            gone.insert(key.clone());
        }
        true
    }

    /// Immediately makes all keys ready that wait for further changes or for events of own writes, because no event
    /// will follow.
    pub(super) fn end_waits(&self) {
        let (held, mut keys) = self.writes.stop_waits();
        for (key, held) in held {
            self.add(key, held.priority, held.reason, None);
        }
        // The runs must not have the random order of a hash map.
        keys.sort_unstable();
        for key in keys {
            self.make_ready(key, "shutdown");
        }
        self.queue.flush_debounced();
    }

    fn cancel_key(&self, key: &ObjectKey) {
        self.queue.cancel(key);
        self.forget_key(key);
        self.ownership.forget_shard_of(key, &|key| self.is_gone(key));
    }

    /// Forgets the controller's state of a key, except for the state in the queue and in the
    /// shards.
    fn forget_key(&self, key: &ObjectKey) {
        self.writes.forget_writes(key);
        self.failures.forget_failures(key);
        self.details.forget_detail(key);
    }
}
