//! The shards of objects.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::{Mutex, MutexGuard};
use requeue::GroupId;

use super::super::error::{RunnerError, panic_message};
use crate::ObjectKey;
use crate::range::{ShardBy, index_of};

/// The rule that assigns objects to shards.
pub(crate) enum Rule {
    /// The hash of the uid or the namespace. The API server can select such a shard.
    Hash(ShardBy),
    /// A function of the user. The client selects the objects.
    Function(ShardOf),
}

/// A function of the user that returns the shard of an object.
type ShardOf = Box<dyn Fn(&ObjectKey) -> u32 + Send + Sync>;

/// The number of parts of the known shards. With 1,000,000 objects, one part is searched within
/// about a millisecond.
const PARTS: usize = 64;

/// The group of keys without a known shard. A key is added to this group only if its shard is forgotten during the add.
/// The key then does not run.
const NO_SHARD: GroupId = GroupId::new(u64::MAX);

/// The shards of objects, including shards that this process does not hold.
pub(crate) struct Places {
    pub(super) count: u32,
    pub(super) rule: Rule,
    known: Known,
    /// The keys whose objects were replaced by objects of another shard. Such a key may still be in the queue in the
    /// group of the former shard. This lock is taken after the lock of a part of `known`.
    moved: Mutex<BTreeSet<ObjectKey>>,
    forgetting: Mutex<Forgetting>,
    /// The first error of the user's function, with the key of its object.
    failure: Mutex<Option<(ObjectKey, String)>>,
}

/// The shards of objects, if they follow from the uid, which the keys do not contain. The table contains seen objects
/// in held shards, and owners that an owned object names.
///
/// Each part has a separate lock, so that a walk through all objects blocks other operations only briefly.
struct Known {
    parts: Vec<Mutex<HashMap<ObjectKey, u32>>>,
    hasher: RandomState,
}

impl Known {
    fn lock_part(&self, key: &ObjectKey) -> MutexGuard<'_, HashMap<ObjectKey, u32>> {
        self.parts[self.hasher.hash_one(key) as usize % PARTS].lock()
    }
}

/// The objects whose shards will be forgotten as soon as no event is being handled.
///
/// The handler of an event learns the shard first, then changes the store, and adds the key last. If the shard were
/// forgotten between these steps, the add would be lost.
#[derive(Default)]
struct Forgetting {
    /// The number of events and lists that are being handled.
    handled: usize,
    gone: BTreeSet<ObjectKey>,
}

/// The access to the states of the shards that the caller of [`Places::learn_shard`] has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Shared,
    /// Like `Shared`, with the uid in an owner reference. The reference may name an earlier object of the same name, so
    /// a known shard does not change.
    Reference,
    /// No add to a group is in progress, so an object may move to another group.
    Exclusive,
}

/// The effect of [`Places::learn_shard`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    NotHeld,
    /// The shard is not held. The name previously belonged to an object in another shard.
    Left,
    Held,
    /// The shard is held. The name previously belonged to an object in another shard.
    Moved,
}

impl Places {
    pub(super) fn new(count: u32, rule: Rule) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self {
            count,
            rule,
            // The hasher is random, so that users cannot choose names whose keys are all in one part, under one lock.
            known: Known { parts, hasher: RandomState::new() },
            moved: Mutex::default(),
            forgetting: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Returns the shard of an object, if it is known.
    pub(crate) fn shard_of(&self, key: &ObjectKey) -> Option<u32> {
        match &self.rule {
            Rule::Hash(ShardBy::Uid) => self.known.lock_part(key).get(key).copied(),
            Rule::Hash(ShardBy::Namespace) => {
                Some(index_of(key.namespace().unwrap_or(""), self.count))
            }
            Rule::Function(shard_of) => {
                let cause = match catch_unwind(AssertUnwindSafe(|| shard_of(key))) {
                    Ok(shard) if shard < self.count => return Some(shard),
                    Ok(shard) => {
                        format!("it returned {shard}, but there are {} shards", self.count)
                    }
                    Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
                };
                // The first error is kept. The watch reads this error after the current event, and ends the controller.
                self.failure.lock().get_or_insert_with(|| (key.clone(), cause));
                None
            }
        }
    }

    /// Returns the group of a key in the queue.
    pub(crate) fn group_of(&self, key: &ObjectKey) -> GroupId {
        self.shard_of(key).map_or(NO_SHARD, |shard| GroupId::new(shard.into()))
    }

    /// Returns the error of the function, if it has failed.
    pub(crate) fn function_error(&self) -> Option<RunnerError> {
        let (key, cause) = self.failure.lock().clone()?;
        Some(RunnerError::Config(format!(
            "the function that assigns objects to shards failed for {key}: {cause}; it must return the \
             number of a shard for every object"
        )))
    }

    /// Calls `then` with the shard of `key`, if the object with this uid has the same shard. A `uid` of `None` means
    /// that the key has no object. The shard does not change during the call.
    pub(super) fn with_shard_of<T>(
        &self,
        key: &ObjectKey,
        uid: Option<&str>,
        then: impl FnOnce(u32) -> T,
    ) -> Option<T> {
        if !matches!(self.rule, Rule::Hash(ShardBy::Uid)) {
            return self.shard_of(key).map(then);
        }
        let known = self.known.lock_part(key);
        let shard = *known.get(key)?;
        let is_of_object = uid.is_none_or(|uid| index_of(uid, self.count) == shard);
        is_of_object.then(|| then(shard))
    }

    /// Remembers the shard of the object with this uid, if `is_held` returns true for the shard. If the shard was not
    /// known before, calls `new` with the shard. If another shard was known before, and `access` is shared, the known
    /// shard does not change, and the result is `None`.
    pub(super) fn learn_shard(
        &self,
        key: &ObjectKey,
        uid: &str,
        is_held: impl Fn(u32) -> bool,
        new: impl FnOnce(u32),
        access: Access,
    ) -> Option<Learned> {
        if !matches!(self.rule, Rule::Hash(ShardBy::Uid)) {
            let is_held = self.shard_of(key).is_some_and(is_held);
            return Some(if is_held { Learned::Held } else { Learned::NotHeld });
        }
        let shard = index_of(uid, self.count);
        let mut known = self.known.lock_part(key);
        if access == Access::Reference && known.contains_key(key) {
            return None;
        }
        let before = known.get(key).copied().filter(|&before| before != shard);
        match (is_held(shard), before) {
            (true, None) => {
                // The part stays locked, so a run that begins now counts for the new shard.
                if known.insert(key.clone(), shard).is_none() {
                    new(shard);
                }
                Some(Learned::Held)
            }
            (true, Some(_)) if access == Access::Exclusive => {
                known.insert(key.clone(), shard);
                // The queue may still have the key in its former group. `regroup` moves it.
                self.moved.lock().insert(key.clone());
                new(shard);
                Some(Learned::Moved)
            }
            (true, Some(_)) => None,
            (false, None) => Some(Learned::NotHeld),
            (false, Some(_)) => {
                known.remove(key);
                // The key must leave its group, so that the group does not contain the key when this process gains the
                // shard again.
                self.moved.lock().insert(key.clone());
                Some(Learned::Left)
            }
        }
    }

    /// Removes a key from the group of its former shard, if its object has moved. Returns true if
    /// the object has moved.
    ///
    /// `remove` returns true if the queue no longer contains the key. Otherwise the key is in
    /// flight, and must be removed again after its run.
    pub(crate) fn regroup(&self, key: &ObjectKey, remove: impl FnOnce() -> bool) -> bool {
        let mut moved = self.moved.lock();
        // The lock is held until the end, so that the next move of the key is not lost.
        let has_moved = moved.contains(key);
        if has_moved && remove() {
            moved.remove(key);
        }
        has_moved
    }

    /// Marks a key that must leave its group after its run, as if its object had moved.
    pub(super) fn mark_moved(&self, key: &ObjectKey) {
        self.moved.lock().insert(key.clone());
    }

    /// Returns the keys that may be in the group of a former shard.
    pub(super) fn moved_keys(&self) -> Vec<ObjectKey> {
        self.moved.lock().iter().cloned().collect()
    }

    /// The controller calls this method before it handles an event or a list.
    pub(crate) fn begin_event(&self) {
        self.forgetting.lock().handled += 1;
    }

    /// The controller calls this method after it has handled an event or a list. `is_gone` is as in
    /// [`forget_shard_of`](Self::forget_shard_of).
    pub(crate) fn end_event(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        let mut forgetting = self.forgetting.lock();
        // This lock is acquired before all others, because `is_gone` reads the store and the queue.
        forgetting.handled -= 1;
        self.forget_gone(&mut forgetting, is_gone);
    }

    /// Forgets the shard of an object as soon as no event is being handled. The shard is forgotten only if `is_gone`
    /// then returns true, which means that the key has no object and is not in the queue.
    pub(crate) fn forget_shard_of(&self, key: &ObjectKey, is_gone: impl Fn(&ObjectKey) -> bool) {
        // The first check avoids the lock below in most cases, because most objects still exist.
        if matches!(self.rule, Rule::Hash(ShardBy::Uid)) && is_gone(key) {
            let mut forgetting = self.forgetting.lock();
            forgetting.gone.insert(key.clone());
            self.forget_gone(&mut forgetting, is_gone);
        }
    }

    fn forget_gone(&self, forgetting: &mut Forgetting, is_gone: impl Fn(&ObjectKey) -> bool) {
        if forgetting.handled == 0 {
            for key in std::mem::take(&mut forgetting.gone) {
                if is_gone(&key) {
                    self.known.lock_part(&key).remove(&key);
                }
            }
        }
    }

    pub(super) fn forget_shards(&self, shards: &BTreeSet<u32>) {
        for part in &self.known.parts {
            part.lock().retain(|_, shard| !shards.contains(shard));
        }
    }
}
