//! The state of a controller, for its observers.

use super::sharding::HeldShards;
use super::writes::Writes;
use crate::ObjectKey;
use crate::membership::GroupStatus;

/// The state of a controller that its queue does not contain, for a dashboard.
///
/// All clones refer to the same controller. The methods hold a lock for a short time, and perform
/// no I/O.
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
    /// Returns the reason why the run of an object waits, if the queue does not know this reason.
    ///
    /// The reason is that a watch has not shown a [write](Writes) of the object's last run yet, or
    /// that the object's shard is being listed or handed over.
    ///
    /// For all other reasons see [`Entry::explain`](requeue::Entry::explain).
    #[must_use]
    pub fn why_waits(&self, object: &ObjectKey) -> Option<String> {
        // The shard is checked first, because the writes of its objects have no effect while the
        // shard moves.
        self.held.wait_of(object).or_else(|| self.writes.wait_of(object))
    }

    /// Returns the state of the shard group, or `None` if the controller has not joined a group.
    #[must_use]
    pub fn shard_group(&self) -> Option<GroupStatus> {
        self.held.group_status()
    }
}
