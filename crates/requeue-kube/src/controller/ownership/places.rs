//! The shards of objects.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use requeue::Group;

use super::super::RunnerError;
use super::super::error::panic_message;
use crate::ObjectKey;
use crate::shard::{ShardBy, fnv1a};

/// The rule that assigns objects to shards.
pub(crate) enum Rule {
    /// The hash of the uid or the namespace. The API server can select such a shard.
    Hash(ShardBy),
    /// A function of the user. The client selects the objects.
    Function(ShardOf),
}

/// A function of the user that returns the shard of an object.
type ShardOf = Box<dyn Fn(&ObjectKey) -> u32 + Send + Sync>;

/// The shards of objects, whether they are held or not.
pub(crate) struct Places {
    count: u32,
    rule: Rule,
    /// The shards of objects whose shard follows from the uid, which is not in their keys: the objects
    /// in held shards that were seen, and owners that an owned object names.
    known: Mutex<HashMap<ObjectKey, u32>>,
    /// The keys whose objects were replaced by those of another shard. Such a key may still be in the
    /// queue as a key of the former shard.
    moved: Mutex<BTreeSet<ObjectKey>>,
    /// The first error of the function.
    failure: Mutex<Option<(ObjectKey, String)>>,
}

impl Places {
    pub(super) fn new(count: u32, rule: Rule) -> Self {
        Self {
            count,
            rule,
            known: Mutex::default(),
            moved: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    pub(super) const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Returns the shard of an object, if it is known.
    pub(in super::super) fn shard_of(&self, key: &ObjectKey) -> Option<u32> {
        match &self.rule {
            Rule::Hash(ShardBy::Uid) => self.known().get(key).copied(),
            Rule::Hash(ShardBy::Namespace) => Some(self.of_text(key.namespace().unwrap_or(""))),
            Rule::Function(shard_of) => {
                let cause = match catch_unwind(AssertUnwindSafe(|| shard_of(key))) {
                    Ok(shard) if shard < self.count => return Some(shard),
                    Ok(shard) => {
                        format!("it returned {shard}, but there are {} shards", self.count)
                    }
                    Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
                };
                self.lock_failure().get_or_insert_with(|| (key.clone(), cause));
                None
            }
        }
    }

    /// Returns the group of a key in the queue.
    pub(in super::super) fn group_of(&self, key: &ObjectKey) -> Group {
        // A key without a shard is not added.
        self.shard_of(key).map_or_else(Group::default, |shard| Group::new(shard.into()))
    }

    /// Returns the error of the function, if it has failed.
    pub(in super::super) fn failure(&self) -> Option<RunnerError> {
        let (key, cause) = self.lock_failure().clone()?;
        Some(RunnerError::ShardFunction { key, cause })
    }

    /// Remembers the shard of the object with this uid, if `is_held` returns true for the shard.
    pub(super) fn learn(&self, key: &ObjectKey, uid: &str, is_held: impl FnOnce(u32) -> bool) {
        if let Rule::Hash(ShardBy::Uid) = self.rule {
            let shard = self.of_text(uid);
            let is_held = is_held(shard);
            let mut known = self.known();
            let before = known.get(key).copied().filter(|&before| before != shard);
            if is_held {
                known.insert(key.clone(), shard);
            } else if before.is_some() {
                known.remove(key);
            }
            drop(known);
            if before.is_some() && is_held {
                // An object of another shard has taken this name.
                self.lock_moved().insert(key.clone());
            }
        }
    }

    /// As [`learn`](Self::learn), from the reference of an owned object. The owner may be an earlier
    /// object of the same name, so a shard that is known does not change.
    pub(super) fn learn_owner(
        &self,
        key: &ObjectKey,
        uid: &str,
        is_held: impl FnOnce(u32) -> bool,
    ) {
        if let Rule::Hash(ShardBy::Uid) = self.rule {
            let shard = self.of_text(uid);
            if is_held(shard) {
                self.known().entry(key.clone()).or_insert(shard);
            }
        }
    }

    /// Forgets the shard of an object that is gone, and has no run pending.
    pub(in super::super) fn forget(&self, key: &ObjectKey) {
        self.known().remove(key);
    }

    pub(super) fn forget_shards(&self, shards: &BTreeSet<u32>) {
        self.known().retain(|_, shard| !shards.contains(shard));
    }

    /// Returns the keys that have moved from one shard to another since the last call.
    pub(super) fn take_moved(&self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut *self.lock_moved())
    }

    /// Returns the shard of a text by the first bits of its hash.
    fn of_text(&self, text: &str) -> u32 {
        let bits = self.count.trailing_zeros();
        // With one shard, there are no bits. Otherwise the result is below `count`.
        fnv1a(text.as_bytes()).checked_shr(u64::BITS - bits).unwrap_or(0) as u32
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ObjectKey, u32>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_moved(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<(ObjectKey, String)>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
