//! The shards that this process holds for a controller, and the changes of these shards while the controller runs.
//!
//! A [`ChangingShards`] has two users. The protocol that assigns shards to replicas gains and releases shards through
//! it. The controller uses it as its [`Ownership`], before it adds a key and before it begins a run.
//!
//! # The invariant
//!
//! **A key runs only while this process holds the shard of the object that the run sees. A shard is released only when
//! no run of its objects is in flight.** Two functions ensure this:
//!
//! - [`begin_run`](Ownership::begin_run) permits a run only if the shard is held and listed, and the object in the
//!   store is in the known shard. It counts the run for this shard, under the lock that protects the states of the
//!   shards. If an object in another shard replaces the object during the run, the run is counted for both shards.
//! - [`release`](ChangingShards::release) first permits no further run in the shard. It then waits until no run is
//!   counted for the shard.
//!
//! With [`run_refs`](crate::Controller::run_refs), a run may have no object. Such a run is counted for the last known
//! shard of the key, which comes from the last object or from an owner reference.
//!
//! The invariant does not depend on the groups of the queue. The groups only avoid useless deliveries: each key is in
//! the group of its shard, and the group is paused while the shard is not listed or is being released. If an object is
//! deleted, and created again in another shard under the same name, its key must change groups. The key is removed from
//! its group and added again, immediately or after its run in flight.
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
//! A thread acquires locks in this order: the shards to forget, the states of the shards, a part of the known shards,
//! the moved keys or the runs, the queue. A thread that holds one of these locks may read the store only if it also
//! holds the first one. The queue determines the group of a key before it acquires its own lock. The lock of
//! `requested` is never held together with another lock.

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

/// The shards that this process holds, for the objects of one kind. All clones share one state.
#[derive(Clone)]
pub(crate) struct ChangingShards(Arc<Inner>);

struct Inner {
    places: Arc<Places>,
    /// The states of the shards. An add to the queue and the start of a run hold this lock for reading, so that neither
    /// can happen after a release has begun.
    shards: RwLock<Shards>,
    runs: Runs,
    /// The number of gains so far. After each gain, the watch must list the new shards.
    gains: watch::Sender<u64>,
    /// The number of walks so far that have dropped the keys of released shards.
    drops: watch::Sender<u64>,
    /// The shards that the last request of the watch selected.
    requested: Mutex<Requested>,
    /// Notifies the watch when its last request selects shards that this process has released.
    narrowed: watch::Sender<()>,
    controller: OnceLock<Attached>,
}

/// The selection of the last request of the watch.
#[derive(Default)]
struct Requested {
    shards: BTreeSet<u32>,
    /// The ranges in the selector. They may include shards that are not in `shards`.
    ranges: Vec<(u32, u32)>,
}

impl Requested {
    fn new(shards: BTreeSet<u32>) -> Self {
        Self { ranges: ranges::ranges_of(&shards), shards }
    }
}

struct Shards {
    states: Vec<State>,
    /// True while a task drops the keys of released shards.
    is_dropping: bool,
}

/// The queue and the functions of the controller that a change of shards needs.
pub(crate) struct Attached {
    pub(crate) queue: ObjectQueue,
    pub(crate) forget: Forget,
    /// Moves a key into the queue group of the shard that now contains its object.
    pub(crate) regroup: Box<dyn Fn(&ObjectKey) + Send + Sync>,
}

/// Forgets the state of the keys for which the function returns true: their own writes, failures and details. The queue
/// is not changed.
type Forget = Box<dyn Fn(&dyn Fn(&ObjectKey) -> bool) + Send + Sync>;

/// The state of a shard. The table of the [module](self) defines the states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// The gain with this number included the shard, and the watch has not listed the shard's objects since then.
    Gained(u64),
    Held,
    Leaving,
    Left,
    Dropping {
        gained: bool,
    },
}

impl State {
    /// Returns true if the enqueuer adds keys of a shard in this state.
    const fn admits_keys(self) -> bool {
        matches!(self, Self::Gained(_) | Self::Held)
    }
}

/// Returns the shards for whose states `is` returns true.
fn shards_in(states: &[State], is: impl Fn(State) -> bool) -> BTreeSet<u32> {
    (0..).zip(states).filter(|(_, state)| is(**state)).map(|(shard, _)| shard).collect()
}

/// A guard under which no release of a shard can begin.
#[derive(Default)]
pub(crate) struct Hold<'a> {
    _shards: Option<RwLockReadGuard<'a, Shards>>,
}

/// A run in flight. The run is counted for its shard until this value is dropped.
#[derive(Default)]
pub(crate) struct InFlight(Option<CountedRun>);

impl InFlight {
    /// Returns true if `uid` is the uid with which the run began. It differs if the store has received another object
    /// of the same name since then.
    pub(crate) fn is_for(&self, uid: impl FnOnce() -> Option<String>) -> bool {
        self.0.as_ref().is_none_or(|run| run.uid == uid())
    }
}

/// The record of a run in flight. `Inner::runs` contains its key until this value is dropped.
struct CountedRun {
    inner: Arc<Inner>,
    key: ObjectKey,
    /// The uid of the object at the start of the run, or `None` if the object did not exist.
    uid: Option<String>,
}

impl Drop for CountedRun {
    fn drop(&mut self) {
        self.inner.runs.end_run(&self.key);
    }
}

// --- Methods for the protocol ---------------------------------------------------------------------

impl ChangingShards {
    /// Creates the handle of a process that holds none of the `count` shards. `count` must be a power of two.
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

    /// Returns the number of shards of the group.
    pub(crate) fn count(&self) -> u32 {
        self.0.places.count
    }

    /// Returns true if no run in the shard is in flight.
    pub(crate) fn is_idle(&self, shard: u32) -> bool {
        // The queue marks a key as in flight before `begin_run` counts its run, and still does so after the run is no
        // longer counted. Both must therefore be checked.
        self.0.runs.keys_of(&[shard]).is_empty()
            && self.group_of_shard(shard).is_none_or(|group| group.states().in_flight == 0)
    }

    /// Returns the shards that this process holds, including those that the watch has not listed yet.
    pub(crate) fn held(&self) -> BTreeSet<u32> {
        shards_in(&self.0.shards.read().states, State::admits_keys)
    }

    /// Takes over the shards in `gained`. The watch lists their objects, and the controller then reconciles these
    /// objects with low priority, as after a start. Shards that this process already holds are not changed.
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
                    // The group is paused under the lock of the states. Otherwise, a key of the shard could be
                    // delivered before the watch has listed the shard.
                    self.pause_group(shard);
                    changes = true;
                }
            }
        }
        if changes {
            // The number is sent after the states have changed. A watch that receives the number therefore sees the
            // gained shards.
            self.0.gains.send_replace(gain);
        }
    }

    /// Releases shards: from now on, no run of their objects begins. The future completes when no such run is in
    /// flight. A task then drops the keys of the shards from the queue. Other shards are not affected.
    ///
    /// # Panics
    ///
    /// The future panics if it is polled outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the shards stay paused, and their keys stay in the queue. A second call continues the
    /// release.
    pub(crate) fn release(
        &self,
        released: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut left = Vec::new();
        let mut shards = self.0.shards.write();
        // The release takes effect here. `hold` and `begin_run` acquire the same lock, so an add or the start of a run
        // comes either before this line or not at all.
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
        // The groups are counted after their pause, so no further key of these groups is delivered.
        let groups = left.iter().filter_map(|&shard| self.group_of_shard(shard));
        let completed: Vec<_> = groups.map(|group| group.none_in_flight()).collect();
        // The future has a clone of the handle, so it can be awaited after the controller has ended.
        let this = self.clone();
        async move {
            this.0.runs.wait_for_none(&left).await;
            // This wait ends when the queue has recorded the completions. Later, no retry can add a key of the shard.
            join_all(completed).await;
            this.mark_left(&left);
        }
    }

    /// Like [`release`](Self::release), but also cancels the runs in flight immediately. Each run is dropped at an
    /// `await`.
    pub(crate) fn lose(
        &self,
        lost: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let lost: Vec<u32> = lost.into_iter().collect();
        // The release comes before the cancellation. A key that was delivered, but whose run has not begun, then does
        // not start a run.
        let released = self.release(lost.clone());
        if let Some(controller) = self.0.controller.get() {
            let runs = self.0.runs.keys_of(&lost);
            runs.iter().for_each(|key| _ = controller.queue.cancel_running(key));
        }
        released
    }

    /// Marks the shards in `left` that have no runs as left. Starts the task that drops their keys.
    fn mark_left(&self, left: &[u32]) {
        let mut shards = self.0.shards.write();
        for &shard in left {
            // In the meantime, the shard may have been gained and released again, and have new runs.
            if shards.states[shard as usize] == State::Leaving && self.is_idle(shard) {
                shards.states[shard as usize] = State::Left;
            }
        }
        let any_left = shards.states.contains(&State::Left);
        if any_left && !std::mem::replace(&mut shards.is_dropping, true) {
            let this = self.clone();
            // The task runs on a separate thread, because it walks through all keys of the queue. This walk would block
            // the other tasks of the runtime.
            tokio::task::spawn_blocking(move || this.drop_left());
        }
    }

    /// Drops the keys of all left shards, and repeats this until no shard is left.
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
            // The lock is not held during the walk. A gain during the walk is stored in `Dropping`, and takes effect
            // after the walk.
            drop(shards);
            // The walk calls the rate limiter, which may be the user's code and may panic.
            if catch_unwind(AssertUnwindSafe(|| self.drop_keys(&left))).is_err() {
                tracing::error!("a panic while the keys of shards without runs were dropped");
            }
            let mut shards = self.0.shards.write();
            let gained = shards_in(&shards.states, |it| it == State::Dropping { gained: true });
            for &shard in &left {
                shards.states[shard as usize] = State::Free;
            }
            // The gains that arrived during the walk take effect now, under the same lock.
            self.gain_locked(&mut shards, gained);
            drop(shards);
            self.0.drops.send_modify(|drops| *drops += 1);
        }
    }

    /// Drops the keys of these shards from the queue. The shards are in a state in which no key is added and no run
    /// begins.
    fn drop_keys(&self, left: &BTreeSet<u32>) {
        let Some(controller) = self.0.controller.get() else {
            return self.0.places.forget_shards(left);
        };
        // This call fails only for a queue without groups, and this queue has groups.
        _ = controller.queue.cancel_groups(left.iter().map(|&shard| GroupId::new(shard.into())));
        (controller.forget)(&|key| {
            self.0.places.shard_of(key).is_some_and(|shard| left.contains(&shard))
        });
        self.0.places.forget_shards(left);
        // A moved key may have been in a cancelled group, or its object may be in one of these shards. `regroup`
        // corrects its group.
        self.0.places.moved_keys().iter().for_each(&controller.regroup);
    }

    /// Pauses the queue group of a shard. Does nothing before the controller has started.
    fn pause_group(&self, shard: u32) {
        if let Some(group) = self.group_of_shard(shard) {
            group.pause();
        }
    }

    /// Returns the queue group of a shard, or `None` before the controller has started.
    fn group_of_shard(&self, shard: u32) -> Option<GroupHandle<'_, ObjectKey, RandomState>> {
        self.0.controller.get()?.queue.group(GroupId::new(shard.into())).ok()
    }
}

// --- Methods for the controller -------------------------------------------------------------------

impl Ownership for ChangingShards {
    /// # Panics
    ///
    /// Panics if a second controller is attached to the handle.
    fn attach_controller(&self, controller: Attached) {
        let shards = self.0.shards.write();
        let attached = self.0.controller.set(controller);
        // A release waits for the runs of one controller only. A second controller would break the invariant.
        assert!(attached.is_ok(), "two controllers have one handle of their shards");
        // The lock of the states is held, so no shard is gained or released between the attachment and these pauses.
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

    /// Stores the shard of the owner, if this process holds the shard. The result is always true, because the shards
    /// may change during the call. [`hold`](Ownership::hold) later refuses owners in shards that are not held.
    fn learn_owner(&self, owner: &ObjectKey, uid: &str, _owned: &ObjectMeta) -> bool {
        self.learn_with(&self.0.shards.read(), owner, uid, Access::Reference);
        true
    }

    fn is_selected(&self, meta: &ObjectMeta) -> bool {
        let field = match self.selectable_field() {
            Some(ShardBy::Uid) => &meta.uid,
            Some(ShardBy::Namespace) => &meta.namespace,
            // The last request had no selector, so it requested all objects.
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
            // If all requested shards were released, the selector is not changed, because a later gain starts another
            // watch.
            !shards.is_disjoint(&held) && !shards.is_subset(&held)
        };
        if is_outdated {
            // The lock of `requested` is released before the notification, because the watch acquires it for its next
            // request.
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
        // `release` acquires this lock for writing, so no run begins after a release.
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
            // The watch has not listed the shard. The key was delivered although the shard's group is paused, either
            // from the group of its former shard or just before the pause.
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
    /// Returns the known shards of objects.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.0.places
    }

    /// Stores the shard of the object with this uid, if this process holds the shard.
    pub(super) fn learn_shard(&self, key: &ObjectKey, uid: &str) -> Learned {
        let learned = self.learn_with(&self.0.shards.read(), key, uid, Access::Shared);
        if let Some(learned) = learned {
            return learned;
        }
        // The exclusive lock ensures that no add to the group of the former shard is in progress.
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
        // If a run of the key is in flight, it may be for a former object of the same name. It is counted for both
        // shards.
        let new = |shard| self.0.runs.count_for(key, shard);
        self.0.places.learn_shard(key, uid, is_held, new, access)
    }

    /// Returns a receiver of the number of gains so far.
    pub(crate) fn gains(&self) -> watch::Receiver<u64> {
        self.0.gains.subscribe()
    }

    /// Returns a receiver of the number of walks so far that have dropped keys.
    pub(crate) fn drops(&self) -> watch::Receiver<u64> {
        self.0.drops.subscribe()
    }

    /// Returns the field by which the API server can select the shards. Returns `None` if the user's function
    /// determines the shard of an object.
    pub(crate) fn selectable_field(&self) -> Option<ShardBy> {
        match self.0.places.rule {
            Rule::Hash(by) => Some(by),
            Rule::Function(_) => None,
        }
    }

    /// Returns the selection for a watch that starts, with all shards that this process holds. Returns `None` if it
    /// holds no shard.
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

    /// Returns the state of the object's shard, or `None` if the shard is not known.
    fn state_of(&self, key: &ObjectKey) -> Option<State> {
        let shard = self.0.places.shard_of(key)?;
        Some(self.0.shards.read().states[shard as usize])
    }

    /// Permits runs in the shards of the first `gains` gains, because the watch has listed their objects.
    pub(crate) fn mark_listed(&self, gains: u64) {
        let mut shards = self.0.shards.write();
        for (shard, state) in (0..).zip(&mut shards.states) {
            if matches!(state, State::Gained(gain) if *gain <= gains) {
                *state = State::Held;
                if let Some(group) = self.group_of_shard(shard) {
                    // The group is resumed under the lock of the states. A later release therefore pauses the group
                    // after this call.
                    group.resume();
                }
            }
        }
    }
}

/// The selection of a watch: the shards that this process held when the watch started.
pub(crate) struct Selection {
    holder: ChangingShards,
    shards: BTreeSet<u32>,
}

impl Selection {
    /// Returns the result of [`ChangingShards::selectable_field`].
    pub(crate) fn selectable_field(&self) -> Option<ShardBy> {
        self.holder.selectable_field()
    }

    /// Returns the selector for the next request of the watch. Also returns a future that completes when the watch
    /// should send a request with another selector. The selector omits the shards that were released since the watch
    /// started, so a release requires no list.
    ///
    /// The selector never contains a shard that was gained after the watch started, because the watch has not listed
    /// the objects of that shard. After a gain, the controller starts another watch.
    pub(crate) fn next_selector(&self, by: ShardBy) -> (String, BoxFuture<'static, ()>) {
        // The subscription comes before the shards are read. A release after this line is therefore noticed.
        let mut narrowed = self.holder.0.narrowed.subscribe();
        let held: BTreeSet<_> = self.shards.intersection(&self.holder.held()).copied().collect();
        let requested = Requested::new(if held.is_empty() { self.shards.clone() } else { held });
        let selector = ranges::selector_of_ranges(by, self.holder.count(), &requested.ranges);
        *self.holder.0.requested.lock() = requested;
        // `changed` fails when the controller has ended. The error is ignored.
        let is_outdated = async move { drop(narrowed.changed().await) };
        (selector, is_outdated.boxed())
    }
}
