//! The known shards of objects.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};

use parking_lot::{Mutex, MutexGuard};
use requeue::GroupId;

use super::super::error::{RunnerError, panic_message};
use crate::ObjectKey;
use crate::range::{ShardBy, index_of};

/// The rule that determines the shard of an object.
pub(crate) enum Rule {
    /// The shard is a range of hashes of the uid or the namespace. The API server can select the objects of such a
    /// shard.
    Hash(ShardBy),
    /// The shard is the result of the user's function. The API server sends all objects, and the client selects those
    /// of its shards.
    Function(ShardOf),
}

/// The user's function, which returns the shard of an object.
type ShardOf = Box<dyn Fn(&ObjectKey) -> u32 + Send + Sync>;

/// The number of parts of the table of known shards. A walk through one part takes about a millisecond if there are
/// 1,000,000 objects.
const PARTS: usize = 64;

/// The queue group of the keys whose shard is not known. A key gets into this group only if its shard is forgotten
/// during its add. The controller then completes the key without a run.
const NO_SHARD: GroupId = GroupId::new(u64::MAX);

/// The known shards of objects. The objects may be in shards that this process does not hold.
pub(crate) struct Places {
    pub(super) count: u32,
    pub(super) rule: Rule,
    known: Known,
    /// The keys whose objects were replaced by objects of another shard. The queue may still have such a key in the
    /// group of the former shard. A thread that needs this lock and the lock of a part of `known` acquires this lock
    /// last.
    moved: Mutex<BTreeSet<ObjectKey>>,
    forgetting: Mutex<Forgetting>,
    /// The first error of the user's function, and the key for which the function failed.
    failure: Mutex<Option<(ObjectKey, String)>>,
}

/// The known shards by key, for shards that depend on the uid, because a key does not contain the uid. The table
/// contains the objects that a watch has reported in held shards, and the owners that owned objects name.
///
/// The table has several parts with a lock each, so that a walk through all objects blocks other threads only for a
/// short time.
struct Known {
    parts: Vec<Mutex<HashMap<ObjectKey, u32>>>,
    hasher: RandomState,
}

impl Known {
    fn lock_part(&self, key: &ObjectKey) -> MutexGuard<'_, HashMap<ObjectKey, u32>> {
        self.parts[self.hasher.hash_one(key) as usize % PARTS].lock()
    }
}

/// The objects whose shards will be forgotten when no event is being handled.
///
/// The handler of an event first stores the object's shard, then changes the store, and adds the key last. If the shard
/// were forgotten between these steps, the enqueuer would drop the add.
#[derive(Default)]
struct Forgetting {
    /// The number of events and lists that the controller's watches are handling.
    handled: usize,
    gone: BTreeSet<ObjectKey>,
}

/// The lock on the states of the shards that the caller of [`Places::learn_shard`] holds, and the source of the uid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Shared,
    /// Like `Shared`, but the uid is from an owner reference. The reference may name an earlier object of the same
    /// name, so it never replaces a known shard.
    Reference,
    /// The caller holds the lock exclusively, so no add is in progress, and an object may move to another group.
    Exclusive,
}

/// The result of [`Places::learn_shard`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    NotHeld,
    /// This process does not hold the shard. The key previously had an object in another shard.
    Left,
    Held,
    /// This process holds the shard. The key previously had an object in another shard.
    Moved,
}

impl Places {
    pub(super) fn new(count: u32, rule: Rule) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self {
            count,
            rule,
            // The hasher is random. Otherwise, a user could choose names whose keys all lie in one part and wait for
            // its lock.
            known: Known { parts, hasher: RandomState::new() },
            moved: Mutex::default(),
            forgetting: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Returns the shard of an object, or `None` if the shard is not known.
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
                // Only the first error is stored. The watch reads it after the current event, and ends the controller
                // with it.
                self.failure.lock().get_or_insert_with(|| (key.clone(), cause));
                None
            }
        }
    }

    /// Returns the queue group of a key.
    pub(crate) fn group_of(&self, key: &ObjectKey) -> GroupId {
        self.shard_of(key).map_or(NO_SHARD, |shard| GroupId::new(shard.into()))
    }

    /// Returns the error of the user's function, if the function has failed.
    pub(crate) fn function_error(&self) -> Option<RunnerError> {
        let (key, cause) = self.failure.lock().clone()?;
        Some(RunnerError::Config(format!(
            "the function that assigns objects to shards failed for {key}: {cause}; it must return the \
             number of a shard for every object"
        )))
    }

    /// Calls `then` with the known shard of `key`, if the object with this uid is in that shard. If `uid` is `None`,
    /// the key has no object, and `then` is also called. The known shard does not change during the call.
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

    /// Stores the shard of the object with this uid, if `is_held` returns true for the shard. Calls `new` with a shard
    /// that was not stored for the key before. If the shard would replace another one, and `access` is shared, returns
    /// `None` and changes nothing.
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
                // The part stays locked during the call of `new`. A run that begins later is therefore counted for the
                // new shard.
                if known.insert(key.clone(), shard).is_none() {
                    new(shard);
                }
                Some(Learned::Held)
            }
            (true, Some(_)) if access == Access::Exclusive => {
                known.insert(key.clone(), shard);
                // The queue may still have the key in the group of the former shard. `regroup` removes it from that
                // group.
                self.moved.lock().insert(key.clone());
                new(shard);
                Some(Learned::Moved)
            }
            (true, Some(_)) => None,
            (false, None) => Some(Learned::NotHeld),
            (false, Some(_)) => {
                known.remove(key);
                // The key must leave its group. Otherwise, the group would contain the key when this process gains the
                // former shard again.
                self.moved.lock().insert(key.clone());
                Some(Learned::Left)
            }
        }
    }

    /// Removes a key from the queue group of its former shard, if its object has moved to another shard. Returns true
    /// if the object has moved.
    ///
    /// `remove` returns true if the queue no longer contains the key. If it returns false, the key is in flight, and
    /// this method must be called again after the run.
    pub(crate) fn regroup(&self, key: &ObjectKey, remove: impl FnOnce() -> bool) -> bool {
        let mut moved = self.moved.lock();
        // The lock is held during the call of `remove`. Otherwise, another move of the key in the meantime would be
        // lost.
        let has_moved = moved.contains(key);
        if has_moved && remove() {
            moved.remove(key);
        }
        has_moved
    }

    /// Marks a key so that `regroup` moves it after its run, as if its object had moved.
    pub(super) fn mark_moved(&self, key: &ObjectKey) {
        self.moved.lock().insert(key.clone());
    }

    /// Returns the keys that the queue may have in the group of a former shard.
    pub(super) fn moved_keys(&self) -> Vec<ObjectKey> {
        self.moved.lock().iter().cloned().collect()
    }

    /// Notes that the controller begins to handle an event or a list.
    pub(crate) fn begin_event(&self) {
        self.forgetting.lock().handled += 1;
    }

    /// Notes that the controller has handled an event or a list. `is_gone` is the same function as that of
    /// [`forget_shard_of`](Self::forget_shard_of).
    pub(crate) fn end_event(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        let mut forgetting = self.forgetting.lock();
        // No other lock is held when this lock is acquired, because `is_gone` locks the store and the queue.
        forgetting.handled -= 1;
        self.forget_gone(&mut forgetting, is_gone);
    }

    /// Forgets the shard of an object when no event is being handled. At that time `is_gone` must return true: the
    /// object does not exist, and its key is not in the queue.
    pub(crate) fn forget_shard_of(&self, key: &ObjectKey, is_gone: impl Fn(&ObjectKey) -> bool) {
        // Most objects still exist. For these, the first check avoids the lock.
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
