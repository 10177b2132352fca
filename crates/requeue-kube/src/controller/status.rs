//! The part of a controller's state that its queue does not contain.

use super::sharding::HeldShards;
use super::writes::Writes;
use crate::ObjectKey;
use crate::membership::GroupStatus;

/// The part of a controller's state that its queue does not contain, for example for a dashboard.
///
/// All clones show the same controller. Each method holds a lock for a short time, and performs no I/O.
///
/// ```
/// use requeue_kube::ObjectKey;
/// use requeue_kube::controller::Status;
///
/// fn show(status: &Status, object: &ObjectKey) {
///     if let Some(wait) = status.why_waits(object) {
///         println!("{object}: {wait}");
///     }
///     for (number, shard) in status.shard_group().iter().flat_map(|group| group.shards.iter().enumerate()) {
///         println!("{number}: {}", shard.holder.as_deref().unwrap_or("no holder"));
///     }
/// }
/// # show(&Status::default(), &ObjectKey::new(None, "a"));
/// ```
///
/// `docs/kube/features.md` shows how to display the status on the dashboard of `requeue-http`.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub(super) writes: Writes,
    pub(super) held: HeldShards,
}

impl Status {
    /// Returns the reason why an object waits, if only the controller knows it, and not the queue.
    ///
    /// There are two such reasons. A watch has not reported a [write](Writes) of the object's last run yet. Or the
    /// object's shard is being listed or handed over.
    ///
    /// [`Entry::explain`](requeue::Entry::explain) returns all other reasons.
    #[must_use]
    pub fn why_waits(&self, object: &ObjectKey) -> Option<String> {
        // The shard comes first. While it is being gained or released, its objects do not run, even if all own writes
        // are shown.
        self.held.wait_of(object).or_else(|| self.writes.wait_of(object))
    }

    /// Returns the state of the controller's shard group, or `None` if the controller has not joined a group.
    #[must_use]
    pub fn shard_group(&self) -> Option<GroupStatus> {
        self.held.group_status()
    }
}
