//! The shards that a controller holds, and their changes while it runs.
//!
//! The protocol that assigns shards to replicas uses a [`ChangingShards`] as its handle. The
//! controller uses the same value as its [`Ownership`]: it asks before it adds a key to its queue,
//! and before it reconciles an object.
//!
//! # The invariant
//!
//! **A key runs only while its replica holds the shard of the object that the run sees. A shard is
//! released only when none of its objects has a run in flight.** Two functions ensure this:
//!
//! - [`begin_run`](Ownership::begin_run) permits a run only if the shard is held and listed, and if the known shard is
//!   that of the object in the store. `begin_run` counts the run for this shard. `begin_run` holds the lock under which
//!   the states of shards change. If an object in another shard replaces the object during the run, the run counts for
//!   both shards.
//! - [`release`](ChangingShards::release) permits no further run of the shard, and then waits until no run counts for
//!   the shard.
//!
//! With [`run_refs`](crate::Controller::run_refs), a run may have no object. Such a run counts for the shard that the
//! object had when it was last seen, or that an owner reference names.
//!
//! The invariant does not depend on the groups of the queue. Each key is in the group of its shard. The group of a
//! shard is paused while the shard is not listed, or is being released, so that its keys are not delivered. If an
//! object is deleted and created again under the same name in another shard, its key is removed from the former group
//! and added again, immediately or after its run in flight.
//!
//! # The states of a shard
//!
//! | from | to | when |
//! |---|---|---|
//! | free | gained | `gain`. Keys are added, but do not run. |
//! | gained | held | The watch has listed the shard. Keys run. |
//! | gained, held | leaving | `release` or `lose`. No key is added, and no run begins. |
//! | leaving | left | No run is in flight. The shard can be handed over. |
//! | left | dropping | One walk drops the keys of all left shards. Their objects are not deleted. |
//! | dropping | free | The walk has ended. |
//! | leaving, left | gained | `gain`. The shard is listed again. |
//! | dropping | gained | `gain`, after the walk, which could otherwise drop new keys. |
//!
//! # Locks
//!
//! The order is: the shards to forget, the states of the shards, a part of the known shards, the keys that have moved
//! or the runs, the queue. The store is read under one of these locks only if the first lock is also held. The queue
//! determines the group of a key before it locks itself. The lock of the requested shards is never held together with
//! another lock.

use std::collections::BTreeSet;
use std::future::Future;
use std::hash::RandomState;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use kube::core::ObjectMeta;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use requeue::{GroupHandle, GroupId};
use tokio::sync::watch;

use super::super::error::RunnerError;
use super::places::{Access, Learned, Places, Rule};
use super::ranges;
use super::runs::Runs;
use super::{InStore, Ownership};
use crate::range::{ShardBy, index_of};
use crate::{ObjectKey, ObjectQueue};

/// The shards of a kind that this process holds. All clones share one state.
#[derive(Clone)]
pub(crate) struct ChangingShards(Arc<Inner>);

struct Inner {
    places: Arc<Places>,
    /// An add to the queue and the start of a run hold this lock, so that neither comes after a
    /// release.
    shards: RwLock<Shards>,
    runs: Runs,
    /// The number of gains, each of which requires a list.
    gains: watch::Sender<u64>,
    /// The number of walks that have dropped keys.
    drops: watch::Sender<u64>,
    /// The shards that the watch requested from the API server.
    requested: Mutex<Requested>,
    /// Notifies the watch that its selector should be narrower.
    narrowed: watch::Sender<()>,
    controller: OnceLock<Attached>,
}

/// The shards in the selector of the last request of a watch.
#[derive(Default)]
struct Requested {
    shards: BTreeSet<u32>,
    /// The ranges of the selector, which may include other shards.
    ranges: Vec<(u32, u32)>,
}

impl Requested {
    fn new(shards: BTreeSet<u32>) -> Self {
        Self { ranges: ranges::ranges_of(&shards), shards }
    }
}

struct Shards {
    states: Vec<State>,
    /// True while a task drops the keys of shards that have left.
    is_dropping: bool,
}

/// The parts of the controller that the handle changes.
pub(crate) struct Attached {
    pub(crate) queue: ObjectQueue,
    pub(crate) forget: Forget,
    /// Moves a key from the group of its former shard to the group of its present shard.
    pub(crate) regroup: Box<dyn Fn(&ObjectKey) + Send + Sync>,
}

/// Forgets the controller's state of the keys for which a function returns true, except for the state in the queue.
type Forget = Box<dyn Fn(&dyn Fn(&ObjectKey) -> bool) + Send + Sync>;

/// The state of a shard: see the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// The shard was gained by the gain with this number, and its objects have not been listed
    /// since.
    Gained(u64),
    Held,
    Leaving,
    Left,
    Dropping {
        gained: bool,
    },
}

impl State {
    /// Returns true if keys of the shard are added to the queue.
    const fn admits_keys(self) -> bool {
        matches!(self, Self::Gained(_) | Self::Held)
    }
}

/// Returns the shards whose states satisfy `is`.
fn shards_in(states: &[State], is: impl Fn(State) -> bool) -> BTreeSet<u32> {
    (0..).zip(states).filter(|(_, state)| is(**state)).map(|(shard, _)| shard).collect()
}

/// While this guard exists, no release of a shard begins.
#[derive(Default)]
pub(crate) struct Hold<'a> {
    _shards: Option<RwLockReadGuard<'a, Shards>>,
}

/// A run in flight. The run counts for a shard if the shards change.
#[derive(Default)]
pub(crate) struct InFlight(Option<CountedRun>);

impl InFlight {
    /// Returns false if the run has begun for an object with another uid.
    pub(crate) fn is_for(&self, uid: impl FnOnce() -> Option<String>) -> bool {
        self.0.as_ref().is_none_or(|run| run.uid == uid())
    }
}

/// A run that counts for its shard until this value is dropped.
struct CountedRun {
    inner: Arc<Inner>,
    key: ObjectKey,
    /// The uid of the object, or `None` if the run has no object.
    uid: Option<String>,
}

impl Drop for CountedRun {
    fn drop(&mut self) {
        self.inner.runs.end_run(&self.key);
    }
}

// --- The protocol's side ------------------------------------------------------------------------

impl ChangingShards {
    /// Creates a handle that holds none of `count` shards, which is a power of two.
    pub(crate) fn new(count: u32, rule: Rule) -> Self {
        let states = vec![State::Free; count as usize];
        Self(Arc::new(Inner {
            places: Arc::new(Places::new(count, rule)),
            shards: RwLock::new(Shards { states, is_dropping: false }),
            runs: Runs::default(),
            gains: watch::Sender::new(0),
            drops: watch::Sender::new(0),
            requested: Mutex::default(),
            narrowed: watch::Sender::default(),
            controller: OnceLock::new(),
        }))
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> u32 {
        self.0.places.count
    }

    /// Returns true if no run of the shard is in flight.
    pub(crate) fn is_idle(&self, shard: u32) -> bool {
        // A key is in flight in the queue before its run is counted here, and after the run is no longer counted. Both
        // counts are therefore needed.
        self.0.runs.keys_of(&[shard]).is_empty()
            && self.group_of_shard(shard).is_none_or(|group| group.states().in_flight == 0)
    }

    /// Returns the shards that are held, whether their objects were listed or not.
    pub(crate) fn held(&self) -> BTreeSet<u32> {
        shards_in(&self.0.shards.read().states, State::admits_keys)
    }

    /// Takes shards over. The objects of these shards are listed, and then reconciled with low priority, as after a
    /// start. The call does not change shards that are already held.
    pub(crate) fn gain(&self, gained: impl IntoIterator<Item = u32>) {
        self.gain_locked(&mut self.0.shards.write(), gained);
    }

    fn gain_locked(&self, shards: &mut Shards, gained: impl IntoIterator<Item = u32>) {
        let gain = *self.0.gains.borrow() + 1;
        let mut changes = false;
        for shard in gained.into_iter().filter(|&shard| shard < self.count()) {
            match &mut shards.states[shard as usize] {
                State::Gained(_) | State::Held => {}
                State::Dropping { gained } => *gained = true,
                state => {
                    *state = State::Gained(gain);
                    // The states are locked, so that no key of the shard is delivered between the gain and the list of
                    // the shard.
                    self.pause_group(shard);
                    changes = true;
                }
            }
        }
        if changes {
            // The number is sent after the states have changed, because a watch that receives the
            // number must find the gained shards.
            self.0.gains.send_replace(gain);
        }
    }

    /// Releases shards, so that no run of their objects starts from now on. The future completes
    /// when no such run is in flight. A task then drops the keys of the shards. Other shards
    /// continue.
    ///
    /// # Panics
    ///
    /// The future panics outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the shards stay paused, and their keys stay in the queue. A second
    /// call continues the release.
    pub(crate) fn release(
        &self,
        released: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut left = Vec::new();
        let mut shards = self.0.shards.write();
        // The release begins here. `hold` and `begin_run` take the same lock, so no add and no
        // start of a run comes later.
        for shard in released.into_iter().filter(|&shard| shard < self.count()) {
            match &mut shards.states[shard as usize] {
                State::Free | State::Left => {}
                State::Dropping { gained } => *gained = false,
                state => {
                    *state = State::Leaving;
                    self.pause_group(shard);
                    left.push(shard);
                }
            }
        }
        drop(shards);
        // The groups are read after the pause, so no further key of these groups is delivered.
        let groups = left.iter().filter_map(|&shard| self.group_of_shard(shard));
        let completed: Vec<_> = groups.map(|group| group.none_in_flight()).collect();
        // The future owns a handle, so it can be awaited after the controller has ended.
        let this = self.clone();
        async move {
            this.0.runs.wait_for_none(&left).await;
            // The queue has recorded the completions, so no retry adds a key of the shard later.
            join_all(completed).await;
            this.mark_left(&left);
        }
    }

    /// Like [`release`](Self::release), but immediately cancels the runs in flight. Each run is dropped at an `await`.
    pub(crate) fn lose(
        &self,
        lost: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let lost: Vec<u32> = lost.into_iter().collect();
        // The release comes first, so that a key that was delivered, but does not run yet, does not
        // start.
        let released = self.release(lost.clone());
        if let Some(controller) = self.0.controller.get() {
            let runs = self.0.runs.keys_of(&lost);
            runs.iter().for_each(|key| _ = controller.queue.cancel_running(key));
        }
        released
    }

    /// Marks shards without runs as left, and starts the task that drops their keys.
    fn mark_left(&self, left: &[u32]) {
        let mut shards = self.0.shards.write();
        for &shard in left {
            // The shard may have been gained and released again since then, with new runs.
            if shards.states[shard as usize] == State::Leaving && self.is_idle(shard) {
                shards.states[shard as usize] = State::Left;
            }
        }
        let any_left = shards.states.contains(&State::Left);
        if any_left && !std::mem::replace(&mut shards.is_dropping, true) {
            let this = self.clone();
            // The walk examines each key of the queue, and would block the other tasks of the
            // runtime.
            tokio::task::spawn_blocking(move || this.drop_left());
        }
    }

    /// Drops the keys of all left shards, until there are no left shards.
    fn drop_left(&self) {
        loop {
            let mut shards = self.0.shards.write();
            let left = shards_in(&shards.states, |state| state == State::Left);
            if left.is_empty() {
                shards.is_dropping = false;
                return;
            }
            for &shard in &left {
                shards.states[shard as usize] = State::Dropping { gained: false };
            }
            // The walk runs without the lock. If the shard is gained during the walk, `Dropping` stores the gain, which
            // takes effect after the walk.
            drop(shards);
            // The rate limiter may be user code, which may panic.
            if catch_unwind(AssertUnwindSafe(|| self.drop_keys(&left))).is_err() {
                tracing::error!("a panic while the keys of shards without runs were dropped");
            }
            let mut shards = self.0.shards.write();
            let gained = shards_in(&shards.states, |it| it == State::Dropping { gained: true });
            for &shard in &left {
                shards.states[shard as usize] = State::Free;
            }
            // Gains that arrived during the walk take effect now, under the same lock.
            self.gain_locked(&mut shards, gained);
            drop(shards);
            self.0.drops.send_modify(|drops| *drops += 1);
        }
    }

    /// Drops the keys of these shards. None of these keys is added or runs.
    fn drop_keys(&self, left: &BTreeSet<u32>) {
        let Some(controller) = self.0.controller.get() else {
            return self.0.places.forget_shards(left);
        };
        // The call fails only in a queue without groups.
        _ = controller.queue.cancel_groups(left.iter().map(|&shard| GroupId::new(shard.into())));
        (controller.forget)(&|key| {
            self.0.places.shard_of(key).is_some_and(|shard| left.contains(&shard))
        });
        self.0.places.forget_shards(left);
        // These keys may have been in the cancelled groups, or may belong to these shards.
        self.0.places.moved_keys().iter().for_each(&controller.regroup);
    }

    /// Pauses the keys of a shard, if the controller runs.
    fn pause_group(&self, shard: u32) {
        if let Some(group) = self.group_of_shard(shard) {
            group.pause();
        }
    }

    /// Returns the keys of a shard in the queue, if the controller runs.
    fn group_of_shard(&self, shard: u32) -> Option<GroupHandle<'_, ObjectKey, RandomState>> {
        self.0.controller.get()?.queue.group(GroupId::new(shard.into())).ok()
    }
}

// --- The controller's side ----------------------------------------------------------------------

impl Ownership for ChangingShards {
    /// # Panics
    ///
    /// Panics if another controller has used the handle.
    fn attach_controller(&self, controller: Attached) {
        let shards = self.0.shards.write();
        let attached = self.0.controller.set(controller);
        // A release waits only for the runs of one controller.
        assert!(attached.is_ok(), "two controllers have one handle of their shards");
        // The states are locked, so no gain or release comes between the attachment and these
        // pauses.
        for (shard, state) in (0..).zip(&shards.states) {
            if *state != State::Free {
                self.pause_group(shard);
            }
        }
    }

    fn changing_shards(&self) -> Option<&ChangingShards> {
        Some(self)
    }

    fn begin_event(&self) {
        self.0.places.begin_event();
    }

    fn end_event(&self, is_gone: &dyn Fn(&ObjectKey) -> bool) {
        self.0.places.end_event(is_gone);
    }

    fn learn_object(&self, meta: &ObjectMeta) -> Learned {
        self.learn_shard(&ObjectKey::from_meta(meta), meta.uid.as_deref().unwrap_or_default())
    }

    /// Remembers the shard of the owner, if the shard is held. The shards may change during the call, so every owner
    /// counts as owned. [`hold`](Ownership::hold) excludes owners in other shards.
    fn learn_owner(&self, owner: &ObjectKey, uid: &str, _owned: &ObjectMeta) -> bool {
        self.learn_with(&self.0.shards.read(), owner, uid, Access::Reference);
        true
    }

    fn is_selected(&self, meta: &ObjectMeta) -> bool {
        let field = match self.selectable_field() {
            Some(ShardBy::Uid) => &meta.uid,
            Some(ShardBy::Namespace) => &meta.namespace,
            // Without a selector, the watch requested all objects.
            None => return true,
        };
        let shard = index_of(field.as_deref().unwrap_or_default(), self.count());
        let requested = self.0.requested.lock();
        requested.ranges.iter().any(|(from, to)| (*from..*to).contains(&shard))
    }

    fn narrow_selector(&self) {
        if self.selectable_field().is_none() {
            return;
        }
        let held = self.held();
        let is_outdated = {
            let Requested { shards, .. } = &*self.0.requested.lock();
            // A watch whose shards were all released is not narrowed, because another watch
            // replaces it.
            !shards.is_disjoint(&held) && !shards.is_subset(&held)
        };
        if is_outdated {
            // The lock of `requested` has been released, because the watch acquires it for its next request.
            self.0.narrowed.send_replace(());
        }
    }

    fn owns_target(&self, in_store: InStore<'_>) -> bool {
        in_store(&|key, _| self.is_held(key))
    }

    fn hold(&self, key: &ObjectKey) -> Option<Hold<'_>> {
        let shards = self.0.shards.read();
        let shard = self.0.places.shard_of(key)?;
        shards.states[shard as usize].admits_keys().then_some(Hold { _shards: Some(shards) })
    }

    fn is_listed(&self, key: &ObjectKey) -> bool {
        self.state_of(key) == Some(State::Held)
    }

    fn is_gained(&self, key: &ObjectKey) -> bool {
        self.state_of(key).is_some_and(|state| matches!(state, State::Gained(_)))
    }

    fn awaits_list(&self) -> bool {
        self.0.shards.read().states.iter().any(|state| matches!(state, State::Gained(_)))
    }

    fn begin_run(&self, key: &ObjectKey, uid: &dyn Fn() -> Option<String>) -> Option<InFlight> {
        let uid = uid();
        // `release` acquires this lock, so no run begins after a release.
        let shards = self.0.shards.read();
        let places = &self.0.places;
        let shard = places.with_shard_of(key, uid.as_deref(), |shard| {
            let is_held = shards.states[shard as usize] == State::Held;
            if is_held {
                self.0.runs.begin_run(key, shard);
            }
            (shard, is_held)
        });
        let (shard, is_held) = shard?;
        if matches!(shards.states[shard as usize], State::Gained(_)) {
            // The group of a gained shard is paused. The key was delivered because it is still in the group of its
            // former shard, or because it was taken before the pause.
            places.mark_moved(key);
        }
        let counted = || CountedRun { inner: Arc::clone(&self.0), key: key.clone(), uid };
        is_held.then(|| InFlight(Some(counted())))
    }

    fn regroup(&self, key: &ObjectKey, remove: &dyn Fn() -> bool) -> bool {
        self.0.places.regroup(key, remove)
    }

    fn forget_shard_of(&self, key: &ObjectKey, is_gone: &dyn Fn(&ObjectKey) -> bool) {
        self.0.places.forget_shard_of(key, is_gone);
    }

    fn function_error(&self) -> Option<RunnerError> {
        self.0.places.function_error()
    }
}

impl ChangingShards {
    /// Returns the shards of the objects.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.0.places
    }

    /// Remembers the shard of the object with this uid, if this process holds the shard.
    pub(super) fn learn_shard(&self, key: &ObjectKey, uid: &str) -> Learned {
        let learned = self.learn_with(&self.0.shards.read(), key, uid, Access::Shared);
        if let Some(learned) = learned {
            return learned;
        }
        // While this lock is held, no add to the group of the former shard is in progress.
        let learned = self.learn_with(&self.0.shards.write(), key, uid, Access::Exclusive);
        learned.unwrap_or(Learned::NotHeld)
    }

    fn learn_with(
        &self,
        shards: &Shards,
        key: &ObjectKey,
        uid: &str,
        access: Access,
    ) -> Option<Learned> {
        let is_held = |shard: u32| shards.states[shard as usize].admits_keys();
        // A run in flight may be for a former object of the same name.
        let new = |shard| self.0.runs.count_for(key, shard);
        self.0.places.learn_shard(key, uid, is_held, new, access)
    }

    /// Returns the number of gains.
    pub(crate) fn gains(&self) -> watch::Receiver<u64> {
        self.0.gains.subscribe()
    }

    /// Returns the number of walks that have dropped keys.
    pub(crate) fn drops(&self) -> watch::Receiver<u64> {
        self.0.drops.subscribe()
    }

    /// Returns the field by which the API server can select the shards, or `None` if a function of
    /// the user determines them.
    pub(crate) fn selectable_field(&self) -> Option<ShardBy> {
        match self.0.places.rule {
            Rule::Hash(by) => Some(by),
            Rule::Function(_) => None,
        }
    }

    /// Returns the selection for a watch that starts: the shards that are held, or `None` if no shards are held.
    pub(crate) fn select_held(&self) -> Option<Selection> {
        let shards = self.held();
        (!shards.is_empty()).then(|| Selection { holder: self.clone(), shards })
    }

    /// Returns the reason why an object waits, if its shard is being gained or released.
    pub(crate) fn wait_of(&self, key: &ObjectKey) -> Option<String> {
        let shard = self.0.places.shard_of(key)?;
        match self.state_of(key)? {
            State::Leaving => {
                Some(format!("shard {shard} is being handed over to another replica"))
            }
            State::Gained(_) => Some(format!("waits for the list of shard {shard}")),
            _ => None,
        }
    }

    /// Returns the state of the object's shard, if it is known.
    fn state_of(&self, key: &ObjectKey) -> Option<State> {
        let shard = self.0.places.shard_of(key)?;
        Some(self.0.shards.read().states[shard as usize])
    }

    /// Permits runs in the shards of the first `gains` gains, whose objects were listed.
    pub(crate) fn mark_listed(&self, gains: u64) {
        let mut shards = self.0.shards.write();
        for (shard, state) in (0..).zip(&mut shards.states) {
            if matches!(state, State::Gained(gain) if *gain <= gains) {
                *state = State::Held;
                if let Some(group) = self.group_of_shard(shard) {
                    // The states are still locked, so a later release pauses the group after this
                    // call.
                    group.resume();
                }
            }
        }
    }
}

/// The shards that a watch selects: the shards that were held when it started.
pub(crate) struct Selection {
    holder: ChangingShards,
    shards: BTreeSet<u32>,
}

impl Selection {
    /// Like [`ChangingShards::selectable_field`].
    pub(crate) fn selectable_field(&self) -> Option<ShardBy> {
        self.holder.selectable_field()
    }

    /// Returns the selector for the next request of the watch, and a future that completes when the watch should
    /// continue with another selector. The selector omits the shards that were released since the start of the watch,
    /// so that a release requires no list.
    ///
    /// The selector contains no shard that was gained after the start of the watch, because the watch has not listed
    /// the objects of such a shard. A gain starts another watch.
    pub(crate) fn next_selector(&self, by: ShardBy) -> (String, BoxFuture<'static, ()>) {
        // The future is created first, so that it notices each narrowing after the choice of the shards.
        let mut narrowed = self.holder.0.narrowed.subscribe();
        let held: BTreeSet<_> = self.shards.intersection(&self.holder.held()).copied().collect();
        let requested = Requested::new(if held.is_empty() { self.shards.clone() } else { held });
        let selector = ranges::selector_of_ranges(by, self.holder.count(), &requested.ranges);
        *self.holder.0.requested.lock() = requested;
        // The wait fails when the controller has ended.
        let is_outdated = async move { drop(narrowed.changed().await) };
        (selector, is_outdated.boxed())
    }
}
