//! The keys that a controller owns, which means that the controller reconciles their objects.
//!
//! The other modules of the controller use the trait [`Ownership`]. They do not know whether the objects are divided
//! into shards:
//!
//! | implementation | keys |
//! |---|---|
//! | [`AllKeys`] | all keys, because the controller is alone |
//! | [`Shard`] | the keys of the objects in a shard that does not change |
//! | [`ChangingShards`] | the keys of the objects in the shards that a group assigns to this process |

mod changing;
mod places;
mod ranges;
mod runs;
#[cfg(test)]
mod tests;

use kube::core::ObjectMeta;

pub(crate) use self::changing::ChangingShards;
pub(super) use self::changing::{Attached, Selection};
use self::changing::{Hold, InFlight};
pub(super) use self::places::Learned;
pub(crate) use self::places::{Places, Rule};
use super::error::RunnerError;
use crate::ObjectKey;
use crate::range::Shard;

/// Returns true if the object of a mapper or a trigger is in the store, and satisfies the condition.
type InStore<'a> = &'a dyn Fn(&dyn Fn(&ObjectKey, &ObjectMeta) -> bool) -> bool;

/// Decides which keys a controller owns. The default methods are for a controller that owns every key. They allocate no
/// memory and acquire no lock.
pub(super) trait Ownership: Send + Sync {
    /// Gives this value access to the queue and the state of the controller that starts.
    fn attach_controller(&self, _controller: Attached) {}

    /// Returns the shard whose objects the controller reconciles, if this shard never changes.
    fn fixed_shard(&self) -> Option<Shard> {
        None
    }

    /// Returns the shards whose objects the controller reconciles, if they can change. The watch of the controller's
    /// own kind then selects these shards, and each shard is a group of the queue.
    fn changing_shards(&self) -> Option<&ChangingShards> {
        None
    }

    /// Notes that the controller begins to handle an event or a list. Until it calls [`end_event`](Self::end_event), no
    /// shard of an object is forgotten.
    fn begin_event(&self) {}

    /// Notes that the controller has handled an event or a list. `is_gone` is the same function as that of
    /// [`forget_shard_of`](Self::forget_shard_of).
    fn end_event(&self, _is_gone: &dyn Fn(&ObjectKey) -> bool) {}

    /// Stores the shard of an object that a watch has reported. The result says whether the controller owns the
    /// object's key.
    fn learn_object(&self, _meta: &ObjectMeta) -> Learned {
        Learned::Held
    }

    /// Stores the shard of an owner, which an owned object names with its uid. Returns false if the controller
    /// certainly does not own the owner's key.
    fn learn_owner(&self, _owner: &ObjectKey, _uid: &str, _owned: &ObjectMeta) -> bool {
        true
    }

    /// Returns true if the last request of the watch selected this object, although the controller does not own the
    /// object's key.
    fn is_selected(&self, _meta: &ObjectMeta) -> bool {
        false
    }

    /// Makes the watch continue with a new request, if the selector of the last request includes shards that this
    /// process has released.
    fn narrow_selector(&self) {}

    /// Returns true if the controller owns the key of an object that a mapper or a trigger has named.
    fn owns_target(&self, _in_store: InStore<'_>) -> bool {
        true
    }

    /// Returns a guard if the controller owns the key. While the guard exists, the key's shard cannot be released. An
    /// add under the guard therefore comes before the release.
    fn hold(&self, _key: &ObjectKey) -> Option<Hold<'_>> {
        Some(Hold::default())
    }

    /// Returns true if the controller owns the key.
    fn is_held(&self, key: &ObjectKey) -> bool {
        self.hold(key).is_some()
    }

    /// Returns true if the controller owns the key, and the watch has listed the objects of the key's shard.
    fn is_listed(&self, _key: &ObjectKey) -> bool {
        true
    }

    /// Returns true if this process has gained the key's shard, and the watch has not listed the objects of the shard
    /// since then.
    fn is_gained(&self, _key: &ObjectKey) -> bool {
        false
    }

    /// Returns true if this process has gained a shard whose objects the watch has not listed yet.
    fn awaits_list(&self) -> bool {
        false
    }

    /// Begins a run of `key`. The run is in flight until the result is dropped. `uid` returns the uid of the object in
    /// the store, or `None` if the store does not contain the object.
    ///
    /// Returns `None` in three cases: the controller does not own the key, the watch has not listed the key's shard, or
    /// the store has another object of this name than the known one. A later list or event then adds the key again.
    fn begin_run(&self, _key: &ObjectKey, _uid: &dyn Fn() -> Option<String>) -> Option<InFlight> {
        Some(InFlight::default())
    }

    /// Removes a key from the queue group of its former shard, if its object has moved to another shard. Returns true
    /// if the object has moved.
    ///
    /// `remove` returns true if the queue no longer contains the key. If it returns false, the key is in flight, and
    /// this method must be called again after the run.
    fn regroup(&self, _key: &ObjectKey, _remove: &dyn Fn() -> bool) -> bool {
        false
    }

    /// Forgets the shard of an object when no event is being handled. At that time `is_gone` must return true: the
    /// object does not exist, and its key is not in the queue.
    fn forget_shard_of(&self, _key: &ObjectKey, _is_gone: &dyn Fn(&ObjectKey) -> bool) {}

    /// Returns the error if the user's function that assigns objects to shards has failed.
    fn function_error(&self) -> Option<RunnerError> {
        None
    }
}

/// The ownership of a controller that shares its objects with no other replica. It owns every key.
pub(super) struct AllKeys;

impl Ownership for AllKeys {}

impl Ownership for Shard {
    fn fixed_shard(&self) -> Option<Shard> {
        Some(*self)
    }

    fn learn_object(&self, meta: &ObjectMeta) -> Learned {
        if self.contains(meta) { Learned::Held } else { Learned::NotHeld }
    }

    fn learn_owner(&self, _owner: &ObjectKey, uid: &str, owned: &ObjectMeta) -> bool {
        self.contains_owner(uid, owned)
    }

    fn owns_target(&self, in_store: InStore<'_>) -> bool {
        in_store(&|_, meta| self.contains(meta))
    }
}
