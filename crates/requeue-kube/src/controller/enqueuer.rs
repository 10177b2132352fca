//! The enqueuer of a controller: the only code that adds keys to the controller's queue. Watches, triggers, retries and
//! the start of the controller call it.

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

/// Looks an object up in the controller's store. If the store contains the object, the function calls its second
/// argument with the object's metadata.
type LookUp = Box<dyn Fn(&ObjectKey, &mut dyn FnMut(&ObjectMeta)) + Send + Sync>;

/// Reads the metadata of objects in the controller's store. The enqueuer does not know the type of these objects.
pub(super) struct OwnStore(LookUp);

impl OwnStore {
    pub(super) fn new<K: ObjectKind>(store: Store<K>, dyntype: K::DynamicType) -> Self {
        Self(Box::new(move |key, use_meta| {
            if let Some(object) = store.get(&key.to_ref(dyntype.clone())) {
                use_meta(object.meta());
            }
        }))
    }

    /// Returns the value that `read` reads from the metadata of the object, or `None` if the object is not in the
    /// store.
    fn read_meta<T>(&self, key: &ObjectKey, read: impl Fn(&ObjectMeta) -> T) -> Option<T> {
        let mut found = None;
        (self.0)(key, &mut |meta| found = Some(read(meta)));
        found
    }
}

/// The settings of an enqueuer that are not in the controller's [`Config`].
pub(super) struct Rules {
    pub(super) ownership: Arc<dyn Ownership>,
    pub(super) scope: Scope,
    /// True if the reconciler is also called for objects that have been deleted.
    pub(super) runs_gone: bool,
    /// True if the enqueuer adds no key to the queue until [`Enqueuer::end_standby`] is called.
    pub(super) in_standby: bool,
}

pub(super) struct Enqueuer {
    pub(super) queue: ObjectQueue,
    pub(super) ownership: Arc<dyn Ownership>,
    pub(super) details: Details,
    pub(super) scope: Scope,
    /// The template of every add. It is a debounced add, or an immediate add if the configured debounce is zero.
    change: Add,
    /// True if the reconciler is also called for objects that have been deleted.
    pub(super) runs_gone: bool,
    /// True if an object is also reconciled when a later list reports it unchanged.
    runs_unchanged: bool,
    pub(super) failures: Failures,
    pub(super) writes: Writes,
    store: OwnStore,
    /// True if a new generation of an object ends the object's backoff.
    generations: bool,
    /// `Some` while the controller is in standby and adds no key to the queue. The set contains the keys of deleted
    /// objects that need a run. At the end of the standby, the enqueuer adds these keys and the keys of all objects in
    /// the store.
    standby: Mutex<Option<BTreeSet<ObjectKey>>>,
}

/// A guard for the time in which a watch handles an event or a list. While a guard exists, the enqueuer does not forget
/// the shard of any object.
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

    /// Registers the queue and two callbacks of this enqueuer with the shards that the controller holds.
    fn attach_keys(self: &Arc<Self>) {
        // The callbacks have weak references, because the handle of the shards outlives the controller. A strong
        // reference in the handle would keep the enqueuer alive.
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

    /// Ends the standby: the enqueuer adds the keys of all objects in `store`, and from now on adds each key that an
    /// event names.
    pub(super) fn end_standby<K: ObjectKind>(&self, store: &Store<K>) {
        // The standby ends before the store is read. If an object arrives between the two steps, its key is added
        // twice. In the other order, the key could be missed.
        let gone = self.standby.lock().take();
        self.add_all(store);
        for key in gone.into_iter().flatten() {
            self.add(key, LOW_PRIORITY, Reason::Bulk, None);
        }
    }

    /// Adds the keys of all objects in `store` that this controller reconciles, with low priority.
    pub(super) fn add_all<K: ObjectKind>(&self, store: &Store<K>) {
        let mut keys: Vec<_> =
            store.state().iter().map(|object| ObjectKey::from_object(&**object)).collect();
        // A store returns its objects in random order. The keys are sorted so that the order of runs is repeatable.
        keys.sort_unstable();
        // A store that the user maintains may contain objects of shards that this process does not hold.
        for key in keys.into_iter().filter(|key| self.is_ours(key)) {
            self.add(key, LOW_PRIORITY, Reason::Bulk, None);
        }
    }

    /// Adds the key of an object of the controller's own kind after the object has changed.
    pub(super) fn own_changed(&self, change: Change, event: Origin<'_>) {
        let Change { key, kind, .. } = change;
        // A new generation always causes a run, even if its version is that of an own write. A patch that changes
        // nothing returns the version that another client wrote.
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

    /// Updates the state of `key` after a run. The queue must have recorded the completion of the run before this call.
    pub(super) fn run_finished(&self, key: ObjectKey) {
        // This call comes first, because a new version can end only a backoff that has already begun.
        self.failures.begin_backoff(&key);
        if self.release_if_overtaken(&key) {
            let reason = Reason::Object(intern_reason("new version after a failure"), None);
            self.add(key.clone(), ChangeKind::NewGeneration.priority(), reason, None);
        }
        // The run has ended, so it records no more own writes. An event that was held back during the run, and that
        // matches no recorded write, is therefore a change by another client. Its key is added now.
        for held in self.writes.end_run(&key) {
            self.add(key.clone(), held.priority, held.reason, None);
        }
        self.regroup(&key);
        self.ownership.forget_shard_of(&key, &|key| self.is_gone(key));
    }

    /// Moves a key into the queue group of the shard that now contains its object, if the key is still in the group of
    /// another shard. A key in flight is moved after its run.
    pub(super) fn regroup(&self, key: &ObjectKey) {
        let cause = Cell::new(None);
        let has_moved = self.ownership.regroup(key, &|| {
            cause.set(cause_of(&self.queue.reasons(key)));
            // A key in flight cannot be cancelled, so it stays in its group until its run has completed. `run_finished`
            // then calls this method again.
            self.queue.cancel(key);
            self.queue.look_up(key).is_none()
        });
        if has_moved && self.ownership.is_held(key) {
            // The key needs a run for one of two reasons: it had a pending run, or its name now belongs to a new
            // object.
            let reason = Reason::Object(intern_reason("moved to another shard"), cause.take());
            self.add(key.clone(), ChangeKind::Created.priority(), reason, None);
        } else if has_moved {
            self.forget_key(key);
        }
    }

    /// Returns true if the store contains no object with this key, and the key is not in the queue.
    fn is_gone(&self, key: &ObjectKey) -> bool {
        self.stored_version(key).is_none() && self.queue.look_up(key).is_none()
    }

    /// Records that a watch has handled `event`. Makes the keys ready whose runs waited until a watch showed an own
    /// write, and for which this was the last missing event.
    pub(super) fn watch_progressed(&self, event: Origin<'_>, watch: usize) {
        for key in self.writes.apply_progress(event, watch) {
            self.make_ready(key, "own write seen");
        }
    }

    /// Makes a key ready that waits in the queue. The key keeps its priority.
    fn make_ready(&self, key: ObjectKey, reason: &str) {
        // The queue keeps the higher of the key's priority and the add's priority. The lowest priority therefore leaves
        // the key's priority unchanged.
        self.add_if_held(key, Add::now().priority(i32::MIN).reason(intern_reason(reason)), None);
    }

    /// Adds a key to the queue. Does nothing if this process does not hold the key's shard.
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

    /// Forgets the state of the keys for which `is_gone` returns true: their own writes, failures and details. The
    /// queue is not changed. The objects of these keys still exist, and another replica reconciles them.
    pub(super) fn forget_all(&self, is_gone: &dyn Fn(&ObjectKey) -> bool) {
        self.writes.forget_all(is_gone);
        self.failures.forget_all(is_gone);
        self.details.forget_all(is_gone);
        if let Some(gone) = &mut *self.standby.lock() {
            gone.retain(|key| !is_gone(key));
        }
    }

    /// Ends the backoff of `key` if the object in the store has another version than the object whose run failed.
    fn release_if_overtaken(&self, key: &ObjectKey) -> bool {
        let release = || self.queue.forget(key);
        self.failures.end_wait_if_changed(key, || self.stored_version(key), release)
    }

    /// Returns the version of the object with this key in the store, or `None` if the store does not contain the
    /// object.
    pub(super) fn stored_version(&self, key: &ObjectKey) -> Option<Version> {
        self.store.read_meta(key, |meta| Version::from_meta(meta, self.generations))
    }

    /// Adds the objects that the changed objects of `watch` concern. All changes are from one event. A target that
    /// several changes name is added once, with the highest of its priorities. If the target were added several times,
    /// a worker could run it between two of these adds.
    ///
    /// An object that a list reports unchanged adds none of its targets. If unchanged objects must run, the watch of
    /// the controller's own kind adds each of them once.
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
        // The adds are sorted by descending priority, so that the first add of each target has the target's highest
        // priority. Later adds of the same target are skipped.
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

    /// Returns true if this controller reconciles the object `key`, which a mapper or a trigger has named.
    pub(super) fn is_ours(&self, key: &ObjectKey) -> bool {
        self.ownership.owns_target(&|is_owned| {
            let key = self.scope.normalize(key.clone());
            self.store.read_meta(&key, |meta| is_owned(&key, meta)).unwrap_or(false)
        })
    }

    /// Adds `key` to the queue. If `event` may be the result of a write of the run in flight, the add is held back
    /// until that run has ended.
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
        // While `_held` exists, this process cannot begin to release the key's shard.
        let Some(_held) = self.ownership.hold(&key) else { return };
        let (why, cause) = reason.in_queue();
        let add = self.change.priority(priority).flags(reason.flag()).reason(why);
        // The details of the reason are stored before the add, because a worker may take the key immediately after the
        // add.
        self.details.note_detail(&key, reason);
        self.queue_add(key, add, cause);
    }

    /// Returns true if the controller is in standby, so that `key` must not be added yet. Stores the key for the end of
    /// the standby if its object has been deleted.
    fn waits_for_start(&self, key: &ObjectKey) -> bool {
        // The lock is held until the key is in the set. Otherwise, the standby could end in between, and the key would
        // be lost.
        let mut standby = self.standby.lock();
        let Some(gone) = &mut *standby else { return false };
        // Only deleted objects must be stored. At the end of the standby, the keys of all existing objects are read
        // from the store.
        if self.runs_gone && self.ownership.is_held(key) && self.stored_version(key).is_none() {
            gone.insert(key.clone());
        }
        true
    }

    /// Makes all keys ready that wait for the end of their debounce or for an event of an own write. The controller
    /// calls this method at its shutdown, because no event follows.
    pub(super) fn end_waits(&self) {
        let (held, mut keys) = self.writes.stop_waits();
        for (key, held) in held {
            self.add(key, held.priority, held.reason, None);
        }
        // The keys come from a hash map, whose order is random. They are sorted so that the order of runs is
        // repeatable.
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

    /// Forgets the own writes, the failures and the details of a key. The queue and the shards keep their state of the
    /// key.
    fn forget_key(&self, key: &ObjectKey) {
        self.writes.forget_writes(key);
        self.failures.forget_failures(key);
        self.details.forget_detail(key);
    }
}
