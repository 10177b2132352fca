//! The shards that a controller holds, and their changes while it runs.
//!
//! An [`Ownership`] is the handle of the protocol that assigns shards to replicas. The controller
//! asks it before it adds a key to its queue, and each key carries its shard as its group. To release
//! a shard is to pause the group, wait for its runs, and drop its keys. That is no deletion of its
//! objects.
//!
//! A shard that was gained is listed before its keys run: its group stays paused until the end of
//! the list.

mod places;
mod ranges;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::hash::RandomState;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::future::join_all;
use requeue::{Group, GroupHandle};
use tokio::sync::watch;

pub(crate) use self::places::{Places, Rule};
use crate::{ObjectKey, ObjectQueue};

/// The greatest number of shards of a kind.
const MAX_SHARDS: u32 = 1024;

/// The shards of a kind that this process holds. All clones share one state.
#[derive(Clone)]
pub(crate) struct Ownership(Arc<Inner>);

struct Inner {
    places: Arc<Places>,
    /// An add to the queue holds this lock, so that none follows a release.
    shards: RwLock<Vec<State>>,
    /// The number of changes of the set of shards.
    version: watch::Sender<u64>,
    controller: OnceLock<Attached>,
}

/// The parts of the controller that the handle changes.
struct Attached {
    queue: ObjectQueue,
    forget: Forget,
    /// Adds a key with low priority.
    add: Box<dyn Fn(ObjectKey) + Send + Sync>,
}

/// Forgets everything about the keys for which a function returns true, except for the queue's part.
pub(super) type Forget = Box<dyn Fn(&dyn Fn(&ObjectKey) -> bool) + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    /// Gained with this version of the set, and not listed since.
    Gained(u64),
    Held,
    /// The release with this number is in progress. A later gain ends it.
    Leaving(u64),
}

impl State {
    /// Returns true if keys of the shard are added to the queue.
    const fn admits(self) -> bool {
        matches!(self, Self::Gained(_) | Self::Held)
    }
}

/// The number of shards is not a power of two up to [`MAX_SHARDS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardCountError(u32);

impl fmt::Display for ShardCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shards: use a power of two from 1 to {MAX_SHARDS}", self.0)
    }
}

impl Error for ShardCountError {}

// --- The protocol's side ------------------------------------------------------------------------

impl Ownership {
    /// Creates a handle that holds none of `count` shards.
    ///
    /// # Errors
    ///
    /// `count` is not a power of two from 1 to 1,024.
    pub(crate) fn new(count: u32, rule: Rule) -> Result<Self, ShardCountError> {
        if !count.is_power_of_two() || count > MAX_SHARDS {
            return Err(ShardCountError(count));
        }
        Ok(Self(Arc::new(Inner {
            places: Arc::new(Places::new(count, rule)),
            shards: RwLock::new(vec![State::Free; count as usize]),
            version: watch::Sender::new(0),
            controller: OnceLock::new(),
        })))
    }

    /// Returns the number of shards.
    pub(crate) fn count(&self) -> u32 {
        self.0.places.count()
    }

    /// Returns true if no run of the shard is in flight.
    pub(super) fn is_idle(&self, shard: u32) -> bool {
        self.group(shard).is_none_or(|group| group.states().in_flight == 0)
    }

    /// Returns the shards that are held, whether they were listed or not.
    pub(crate) fn held(&self) -> BTreeSet<u32> {
        let shards = self.shards();
        (0..).zip(shards.iter()).filter(|(_, state)| state.admits()).map(|(n, _)| n).collect()
    }

    /// Takes shards over. Their objects are listed, and then reconciled with low priority, as after a
    /// start. Shards that are held already do not change.
    pub(crate) fn gain(&self, gained: impl IntoIterator<Item = u32>) {
        let mut shards = self.shards_mut();
        let version = *self.0.version.borrow() + 1;
        let mut changes = false;
        for shard in gained.into_iter().filter(|&shard| shard < self.count()) {
            let state = &mut shards[shard as usize];
            if !state.admits() {
                *state = State::Gained(version);
                self.pause(shard, true);
                changes = true;
            }
        }
        if changes {
            self.0.version.send_replace(version);
        }
    }

    /// Releases shards: no run of them starts from now on. The future completes when none is in
    /// flight and their keys are dropped. Other shards go on.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the shards stay paused, and their keys stay in the queue. A second
    /// call continues.
    pub(crate) fn release(
        &self,
        released: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        self.leave(released, false)
    }

    /// As [`release`](Self::release), but cancels the runs in flight at once: each is dropped at an
    /// `await`.
    pub(crate) fn lose(
        &self,
        lost: impl IntoIterator<Item = u32>,
    ) -> impl Future<Output = ()> + Send + 'static {
        self.leave(lost, true)
    }

    /// As [`lose`](Self::lose), for all shards.
    pub(crate) fn lose_all(&self) -> impl Future<Output = ()> + Send + 'static {
        self.lose(0..self.count())
    }

    fn leave(
        &self,
        leaving: impl IntoIterator<Item = u32>,
        cancels: bool,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut left = Vec::new();
        let release = {
            let mut shards = self.shards_mut();
            // Each release changes the set at its end. Two that overlap have different shards.
            let release = self.version();
            for shard in leaving.into_iter().filter(|&shard| shard < self.count()) {
                let state = &mut shards[shard as usize];
                if *state != State::Free {
                    *state = State::Leaving(release);
                    self.pause(shard, true);
                    left.push(shard);
                }
            }
            release
        };
        let groups = left.iter().filter_map(|&shard| self.group(shard));
        if cancels {
            groups.clone().for_each(|group| _ = group.cancel_running());
        }
        let stopped: Vec<_> = groups.map(|group| group.none_in_flight()).collect();
        let this = self.clone();
        async move {
            join_all(stopped).await;
            this.drop_keys(&left, release);
        }
    }

    /// Drops the keys of shards that this release has emptied, and marks the shards as free.
    fn drop_keys(&self, left: &[u32], release: u64) {
        let mut shards = self.shards_mut();
        let is_left = |shard: &u32| shards[*shard as usize] == State::Leaving(release);
        let free: BTreeSet<u32> = left.iter().copied().filter(is_left).collect();
        if free.is_empty() {
            return;
        }
        free.iter().filter_map(|&shard| self.group(shard)).for_each(|group| _ = group.cancel());
        if let Some(controller) = self.0.controller.get() {
            let is_free = |key: &ObjectKey| {
                self.0.places.shard_of(key).is_some_and(|shard| free.contains(&shard))
            };
            (controller.forget)(&is_free);
        }
        self.0.places.forget_shards(&free);
        for &shard in &free {
            shards[shard as usize] = State::Free;
        }
        self.0.version.send_modify(|version| *version += 1);
        drop(shards);
        // These keys may have been in the groups that were cancelled.
        if let Some(controller) = self.0.controller.get() {
            self.0.places.take_moved().into_iter().for_each(&controller.add);
        }
    }

    /// Pauses or resumes the keys of a shard, if the controller runs.
    fn pause(&self, shard: u32, paused: bool) {
        match self.group(shard) {
            Some(group) if paused => group.pause(),
            Some(group) => group.resume(),
            None => {}
        }
    }

    /// Returns the keys of a shard in the queue, if the controller runs.
    fn group(&self, shard: u32) -> Option<GroupHandle<'_, ObjectKey, RandomState>> {
        self.0.controller.get()?.queue.group(Group::new(shard.into())).ok()
    }
}

// --- The controller's side ----------------------------------------------------------------------

impl Ownership {
    /// Connects the handle with the controller that starts.
    ///
    /// # Panics
    ///
    /// Panics if another controller has used the handle.
    pub(super) fn attach(
        &self,
        queue: ObjectQueue,
        forget: Forget,
        add: impl Fn(ObjectKey) + Send + Sync + 'static,
    ) {
        let shards = self.shards_mut();
        let attached = self.0.controller.set(Attached { queue, forget, add: Box::new(add) });
        // A release would not wait for the runs of a second controller.
        assert!(attached.is_ok(), "two controllers have one handle of their shards");
        for (shard, state) in (0..).zip(shards.iter()) {
            if *state != State::Free {
                self.pause(shard, true);
            }
        }
    }

    /// Returns the shards of the objects, for the queue.
    pub(super) fn places(&self) -> &Arc<Places> {
        &self.0.places
    }

    /// Returns true if the shard of the object with this uid is held. Remembers the shard of such an
    /// object.
    pub(super) fn learn(&self, key: &ObjectKey, uid: &str) -> bool {
        self.0.places.learn(key, uid, |shard| self.shards()[shard as usize].admits());
        self.is_held(key)
    }

    /// Remembers the shard of an owner that an owned object names by its uid, if the shard is held.
    pub(super) fn learn_owner(&self, key: &ObjectKey, uid: &str) {
        self.0.places.learn_owner(key, uid, |shard| self.shards()[shard as usize].admits());
    }

    /// Returns true if the object's shard is known and held.
    pub(super) fn is_held(&self, key: &ObjectKey) -> bool {
        self.admit(key, || ()).is_some()
    }

    /// Calls `add` if the object's shard is held. No release of the shard begins during the call.
    pub(super) fn admit<T>(&self, key: &ObjectKey, add: impl FnOnce() -> T) -> Option<T> {
        let shard = self.0.places.shard_of(key)?;
        let shards = self.shards();
        shards[shard as usize].admits().then(add)
    }

    /// Returns the version of the set of shards.
    pub(super) fn version(&self) -> u64 {
        *self.0.version.borrow()
    }

    /// Waits until the set has another version than `version`.
    pub(super) async fn changed(&self, version: u64) {
        // It cannot fail: the sender is in `self`.
        _ = self.0.version.subscribe().wait_for(|&now| now != version).await;
    }

    /// Returns the selector of the shards that are held, or `None` if there are none. A function of
    /// the user has no selector, which is the empty text.
    pub(super) fn selector(&self) -> Option<String> {
        let held = self.held();
        match self.0.places.rule() {
            _ if held.is_empty() => None,
            Rule::Hash(by) => Some(ranges::selector(*by, self.count(), &held)),
            Rule::Function(_) => Some(String::new()),
        }
    }

    /// Returns true if the object's shard was gained and has not been listed since.
    pub(super) fn is_gained(&self, key: &ObjectKey) -> bool {
        let shard = self.0.places.shard_of(key);
        shard.is_some_and(|shard| matches!(self.shards()[shard as usize], State::Gained(_)))
    }

    /// Returns true if the object's shard is being released.
    pub(super) fn is_leaving(&self, key: &ObjectKey) -> bool {
        let shard = self.0.places.shard_of(key);
        shard.is_some_and(|shard| matches!(self.shards()[shard as usize], State::Leaving(_)))
    }

    /// Returns true if the object's shard is held and was listed.
    pub(super) fn is_listed(&self, key: &ObjectKey) -> bool {
        let shard = self.0.places.shard_of(key);
        shard.is_some_and(|shard| self.shards()[shard as usize] == State::Held)
    }

    /// Starts the runs of the shards that were gained up to `version`, which were listed.
    pub(super) fn listed(&self, version: u64) {
        let mut shards = self.shards_mut();
        for (shard, state) in (0..).zip(shards.iter_mut()) {
            if matches!(state, State::Gained(since) if *since <= version) {
                *state = State::Held;
                self.pause(shard, false);
            }
        }
    }

    fn shards(&self) -> RwLockReadGuard<'_, Vec<State>> {
        self.0.shards.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shards_mut(&self) -> RwLockWriteGuard<'_, Vec<State>> {
        self.0.shards.write().unwrap_or_else(PoisonError::into_inner)
    }
}
