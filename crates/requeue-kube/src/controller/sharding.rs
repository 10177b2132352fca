//! The shard group of a controller or a manager. This module joins the group, and passes on each gain and release of
//! shards to the controllers.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use kube::Client;
use parking_lot::{Mutex, RwLock};
use tokio::time::timeout;
use tracing::Instrument;

use super::error::RunnerError;
use super::ownership::{ChangingShards, Rule};
use crate::ObjectKey;
use crate::membership::{
    GroupStatus, HeldShard, Joining, Observer, ShardGroup, ShardedWork, Sharding,
};

/// The shards that a [controller in a group](crate::Controller::shard_group) holds.
///
/// A reconciler uses this handle to protect its writes by the [fence](HeldShard::fence) of its object's shard. All
/// clones show the same shards. While the controller is not a member of its group, it holds no shards.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use requeue_kube::ObjectKey;
/// use requeue_kube::controller::HeldShards;
/// use requeue_kube::leader::Fence;
///
/// fn fence(held: &HeldShards, map: &ConfigMap) -> Option<Fence> {
///     Some(held.for_object(&ObjectKey::from_meta(&map.metadata))?.fence())
/// }
/// # assert!(fence(&HeldShards::default(), &ConfigMap::default()).is_none());
/// ```
#[derive(Clone, Default)]
pub struct HeldShards(Arc<Shown>);

#[derive(Default)]
struct Shown {
    /// The controller's shards and the known shards of objects. Empty before the controller has started.
    changing: OnceLock<ChangingShards>,
    held: RwLock<BTreeMap<u32, HeldShard>>,
    /// The group. Empty before the controller has joined it.
    group: OnceLock<Observer>,
}

impl HeldShards {
    /// Returns the shard of an object, or `None` if this process does not hold the shard.
    ///
    /// During a run, the result for the run's object is `Some`, unless this process has lost the shard.
    #[must_use]
    pub fn for_object(&self, object: &ObjectKey) -> Option<HeldShard> {
        let shard = self.0.changing.get()?.places().shard_of(object)?;
        self.0.held.read().get(&shard).cloned()
    }

    /// Returns all shards that this process holds, in the order of their numbers. The method is hidden, because it is
    /// for tests. Users find the holders of all shards in `Status::shard_group`.
    #[doc(hidden)]
    #[must_use]
    pub fn all(&self) -> Vec<HeldShard> {
        self.0.held.read().values().cloned().collect()
    }

    pub(super) fn group_status(&self) -> Option<GroupStatus> {
        self.0.group.get().map(Observer::status)
    }

    /// Returns the reason why an object waits, if its shard is being gained or released.
    pub(super) fn wait_of(&self, object: &ObjectKey) -> Option<String> {
        self.0.changing.get()?.wait_of(object)
    }

    /// Returns true if the member Lease has expired by the clock of this process. This can be true before the group
    /// reports the loss, for example after the process was frozen.
    pub(super) fn has_expired(&self, object: &ObjectKey) -> bool {
        match self.for_object(object) {
            Some(held) => !held.is_member(),
            // The shard is known, but this process does not hold it: the membership was lost, and the loss will cancel
            // the run.
            None => {
                let changing = self.0.changing.get().filter(|_| self.0.group.get().is_some());
                changing.is_some_and(|it| it.places().shard_of(object).is_some())
            }
        }
    }
}

impl fmt::Debug for HeldShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

/// The handles of all controllers in a group.
struct Parts(Vec<HeldShards>);

impl Parts {
    /// Each controller received its `ChangingShards` when it was added to the group.
    fn shards_of_parts(&self) -> impl Iterator<Item = &ChangingShards> {
        self.0.iter().filter_map(|held| held.0.changing.get())
    }
}

impl ShardedWork for Parts {
    fn gain(&self, gained: &[HeldShard]) {
        // The handles show the shards as held before the first run in these shards begins, because this run may ask for
        // its fence.
        for held in &self.0 {
            let gained = gained.iter().map(|it| (it.index(), it.clone()));
            held.0.held.write().extend(gained);
        }
        for changing in self.shards_of_parts() {
            changing.gain(gained.iter().map(HeldShard::index));
        }
    }

    fn is_idle(&self, shard: u32) -> bool {
        self.shards_of_parts().all(|changing| changing.is_idle(shard))
    }

    fn release(&self, shards: &[u32]) -> BoxFuture<'static, ()> {
        let released = self.shards_of_parts().map(|it| it.release(shards.iter().copied()));
        join_all(released.collect::<Vec<_>>()).map(drop).boxed()
    }

    fn cancel(&self, shards: &[u32]) -> BoxFuture<'static, ()> {
        let lost = self.shards_of_parts().map(|it| it.lose(shards.iter().copied()));
        join_all(lost.collect::<Vec<_>>()).map(drop).boxed()
    }

    fn forget(&self, shards: &[u32]) {
        for held in &self.0 {
            held.0.held.write().retain(|shard, _| !shards.contains(shard));
        }
    }
}

/// The shard group of one controller, or of all controllers of a manager. All clones are the same group.
#[derive(Clone)]
pub(crate) struct Group {
    shards: ShardGroup,
    client: Client,
    /// The handles of the controllers that have started.
    parts: Arc<Mutex<Vec<HeldShards>>>,
}

impl Group {
    /// Creates a group. Its requests use the client in `shards`, or `client` if `shards` has none.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings of the group are invalid, or if neither client is set.
    pub(crate) fn new(shards: ShardGroup, client: Option<Client>) -> Result<Self, RunnerError> {
        shards.check().map_err(RunnerError::from_membership)?;
        let client = shards.client.clone().or(client).ok_or_else(|| {
            RunnerError::Config(
                "the shard group has no client, and no controller of it has an `Api`; set one with \
                 `ShardGroup::with_client`"
                    .to_owned(),
            )
        })?;
        Ok(Self { shards, client, parts: Arc::default() })
    }

    /// Returns the group's retry period.
    pub(super) const fn retry_period(&self) -> Duration {
        self.shards.period()
    }

    /// Adds a controller to the group when it starts, and returns the handle through which the group changes its
    /// shards.
    pub(super) fn add_part(&self, held: HeldShards) -> ChangingShards {
        let rule = match self.shards.shard_of.clone() {
            Some(shard_of) => {
                Rule::Function(Box::new(move |key| shard_of(key.namespace(), key.name())))
            }
            None => Rule::Hash(self.shards.by),
        };
        let changing = ChangingShards::new(self.shards.count, rule);
        // `set` fails only at a second call, and a controller starts only once.
        _ = held.0.changing.set(changing.clone());
        self.parts.lock().push(held);
        changing
    }

    /// Joins the group, and then passes on each change of shards to the controllers. All controllers of the group must
    /// have started. If the future is dropped before the process is a member, the attempt to join remains in `joining`.
    pub(crate) async fn join(self, joining: &mut Option<Joining>) -> Result<Sharding, RunnerError> {
        // All controllers have started, so the list of their handles is complete.
        let parts = std::mem::take(&mut *self.parts.lock());
        let joined = self.shards.join_by(self.client, joining).await;
        let membership = joined.map_err(RunnerError::from_membership)?;
        for held in &parts {
            _ = held.0.group.set(membership.observer().clone());
        }
        Ok(Sharding::begin(membership, Arc::new(Parts(parts))))
    }
}

/// Leaves the group if a join did not complete. Otherwise, the member Lease would stay until it expires, and another
/// replica might wait for that. When `limit` has passed or `forced` completes, the function returns, and the process
/// continues to leave in the background.
pub(crate) async fn abandon_join(
    joining: Option<Joining>,
    limit: Duration,
    forced: impl Future<Output = ()>,
) {
    let Some(joining) = joining else { return };
    // A separate task leaves the group, so that it can continue after the function has returned.
    let left = tokio::spawn(joining.leave().in_current_span());
    tokio::select! {
        biased;
        () = forced => {}
        left = timeout(limit, left) => {
            if left.is_err() {
                tracing::warn!(?limit, "the process has not left its shard group in time");
            }
        }
    }
}
