//! The keys that a controller owns. The controller reconciles no other keys.
//!
//! All other modules of the controller ask an [`Ownership`], and do not know whether there are
//! shards:
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

/// Returns true if an object is in the store, and satisfies the condition.
type InStore<'a> = &'a dyn Fn(&dyn Fn(&ObjectKey, &ObjectMeta) -> bool) -> bool;

/// The keys that a controller owns. The default methods are for a controller that owns every key. The default methods
/// allocate no memory, and acquire no lock.
pub(super) trait Ownership: Send + Sync {
    /// Connects this value with the controller that starts.
    fn attach_controller(&self, _controller: Attached) {}

    /// Returns the shard of all keys, if it does not change.
    fn fixed_shard(&self) -> Option<Shard> {
        None
    }

    /// Returns the shards of the keys, if they change. The watch of the controller's own kind selects these shards, and
    /// each shard is a group of the queue.
    fn changing_shards(&self) -> Option<&ChangingShards> {
        None
    }

    /// The controller calls this method before it handles an event or a list. Until the end of the handling, no shard
    /// of an object is forgotten.
    fn begin_event(&self) {}

    /// The controller calls this method after it has handled an event or a list. `is_gone` is as in
    /// [`forget_shard_of`](Self::forget_shard_of).
    fn end_event(&self, _is_gone: &dyn Fn(&ObjectKey) -> bool) {}

    /// Learns of an object that a watch shows. The result states whether the key of the object is
    /// owned.
    fn learn_object(&self, _meta: &ObjectMeta) -> Learned {
        Learned::Held
    }

    /// Learns of an owner that an owned object names by its uid. Returns false if the owner's key is
    /// certainly not owned.
    fn learn_owner(&self, _owner: &ObjectKey, _uid: &str, _owned: &ObjectMeta) -> bool {
        true
    }

    /// Returns true if the watch requested this object from the API server, although its key is not
    /// owned.
    fn is_selected(&self, _meta: &ObjectMeta) -> bool {
        false
    }

    /// Continues the watch with a narrower selector, if shards in the present selector were
    /// released.
    fn narrow_selector(&self) {}

    /// Returns true if the controller reconciles the object that a mapper or a trigger names.
    fn owns_target(&self, _in_store: InStore<'_>) -> bool {
        true
    }

    /// Returns a value if the key is owned. While the value exists, the key remains owned, so that an add comes before
    /// the release of the shard.
    fn hold(&self, _key: &ObjectKey) -> Option<Hold<'_>> {
        Some(Hold::default())
    }

    /// Returns true if the key is owned.
    fn is_held(&self, key: &ObjectKey) -> bool {
        self.hold(key).is_some()
    }

    /// Returns true if the key is owned, and the watch has listed the objects of its shard.
    fn is_listed(&self, _key: &ObjectKey) -> bool {
        true
    }

    /// Returns true if the key's shard was gained, and the watch has not listed the objects of the
    /// shard since.
    fn is_gained(&self, _key: &ObjectKey) -> bool {
        false
    }

    /// Returns true if the watch has not listed the objects of all shards yet.
    fn awaits_list(&self) -> bool {
        false
    }

    /// Begins a run of `key`, which is in flight until the result is dropped. `uid` reads the uid of the object from
    /// the store, and returns `None` if the store has no such object.
    ///
    /// The result is `None` if the key is not owned, if its shard is not listed yet, or if an event
    /// will show another object with the same name. After the list or the event, the key runs.
    fn begin_run(&self, _key: &ObjectKey, _uid: &dyn Fn() -> Option<String>) -> Option<InFlight> {
        Some(InFlight::default())
    }

    /// Removes a key from the group of its former shard, if its object has moved. Returns true if
    /// the object has moved.
    ///
    /// `remove` returns true if the queue no longer contains the key. Otherwise the key is in
    /// flight, and must be removed again after its run.
    fn regroup(&self, _key: &ObjectKey, _remove: &dyn Fn() -> bool) -> bool {
        false
    }

    /// Forgets the shard of an object as soon as no event is being handled. The shard is forgotten only if `is_gone`
    /// then returns true, which means that the key has no object and is not in the queue.
    fn forget_shard_of(&self, _key: &ObjectKey, _is_gone: &dyn Fn(&ObjectKey) -> bool) {}

    /// Returns the error of the user's function that assigns objects to shards, if it has failed.
    fn function_error(&self) -> Option<RunnerError> {
        None
    }
}

/// The ownership of a controller that is alone. The controller owns all keys.
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
