//! Controllers in a shard group: joins it, and applies its changes to the shards that the
//! controllers hold.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use kube::{Client, Resource};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::ownership::{Ownership, Rule};
use super::wait::Wait;
use super::{Controller, RunnerError};
use crate::ObjectKey;
use crate::leader::LeadershipLost;
use crate::membership::{
    Change, GroupStatus, HeldShard, Joining, Membership, MembershipError, Observer, ShardGroup,
};

/// The time that a replica has to leave its group if no run of it is in flight.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The shards that a [sharded](Controller::shard_group) controller holds.
///
/// A reconciler uses it to protect its writes by the [fence](HeldShard::fence) of its object's
/// shard. All clones show the same shards. It is empty while the controller is not a member of a
/// group.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use requeue_kube::ObjectKey;
/// use requeue_kube::controller::HeldShards;
/// use requeue_kube::leader::Fence;
///
/// fn fence(held: &HeldShards, map: &ConfigMap) -> Option<Fence> {
///     Some(held.of(&ObjectKey::of_meta(&map.metadata))?.fence())
/// }
/// # assert!(fence(&HeldShards::default(), &ConfigMap::default()).is_none());
/// ```
#[derive(Clone, Default)]
pub struct HeldShards(Arc<Shown>);

#[derive(Default)]
struct Shown {
    /// The shards of objects, once the controller has started.
    ownership: OnceLock<Ownership>,
    held: RwLock<BTreeMap<u32, HeldShard>>,
    /// The group, once the controller has joined it.
    group: OnceLock<Observer>,
}

impl HeldShards {
    /// Returns the shard of an object, or `None` if this process does not hold it.
    ///
    /// During a run of the object it is `Some`, unless the shard was lost.
    #[must_use]
    pub fn of(&self, object: &ObjectKey) -> Option<HeldShard> {
        let shard = self.0.ownership.get()?.places().shard_of(object)?;
        self.0.held.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    /// Returns all shards that this process holds, in order.
    #[must_use]
    pub fn all(&self) -> Vec<HeldShard> {
        let held = self.0.held.read().unwrap_or_else(PoisonError::into_inner);
        held.values().cloned().collect()
    }

    pub(super) fn group(&self) -> Option<GroupStatus> {
        self.0.group.get().map(Observer::status)
    }

    /// Returns the reason why an object waits, if its shard is being gained or released.
    pub(super) fn wait_of(&self, object: &ObjectKey) -> Option<Wait> {
        let ownership = self.0.ownership.get()?;
        let shard = ownership.places().shard_of(object)?;
        if ownership.is_leaving(object) {
            Some(Wait::ShardReleased { shard })
        } else if ownership.is_gained(object) {
            Some(Wait::ShardGained { shard })
        } else {
            None
        }
    }

    /// Returns true if the member Lease has expired by this process's clock. The group has not yet
    /// reported the loss, because the process was frozen.
    pub(super) fn has_expired(&self, object: &ObjectKey) -> bool {
        match self.of(object) {
            Some(held) => !held.is_member(),
            // The membership was lost, and the controller is about to be notified of it.
            None => {
                let ownership = self.0.ownership.get().filter(|_| self.0.group.get().is_some());
                ownership.is_some_and(|it| it.places().shard_of(object).is_some())
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u32, HeldShard>)) {
        change(&mut self.0.held.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for HeldShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}

/// The part of one controller in a group.
pub(super) struct Part {
    held: HeldShards,
    ownership: Ownership,
}

impl Part {
    fn new(shards: &ShardGroup, held: HeldShards) -> Self {
        let rule = match shards.function() {
            Some(function) => {
                Rule::Function(Box::new(move |key| function(key.namespace(), key.name())))
            }
            None => Rule::Hash(shards.field()),
        };
        let ownership = Ownership::new(shards.size(), rule);
        // It is set only here: a controller starts once.
        _ = held.0.ownership.set(ownership.clone());
        Self { held, ownership }
    }
}

/// A group that the controller joins when its watches have listed.
pub(super) struct Group {
    shards: ShardGroup,
    client: Client,
    part: Part,
}

impl Group {
    pub(super) const fn ownership(&self) -> &Ownership {
        &self.part.ownership
    }
}

/// The group of a manager's controllers. All clones are the same group.
#[derive(Clone)]
pub(crate) struct CommonGroup {
    shards: ShardGroup,
    client: Client,
    /// The controllers that have started.
    parts: Arc<Mutex<Vec<Part>>>,
}

impl CommonGroup {
    /// # Errors
    ///
    /// The settings of the group are invalid.
    pub(crate) fn new(shards: ShardGroup, client: Client) -> Result<Self, MembershipError> {
        shards.check()?;
        Ok(Self { shards, client, parts: Arc::default() })
    }

    /// Joins the group for all controllers, which must have started. If the future is dropped during
    /// the join, `joining` contains the attempt.
    pub(crate) async fn join(
        self,
        joining: &mut Option<Joining>,
    ) -> Result<Sharding, MembershipError> {
        let parts = std::mem::take(&mut *self.parts());
        Ok(Sharding::begin(self.shards.join_by(self.client, joining).await?, parts))
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Controller<K>
where
    K: Clone + Resource + fmt::Debug + 'static,
    K::DynamicType: Eq + Hash,
{
    /// Returns the retry period of the controller's group or election, if it has one.
    pub(super) fn retry_period(&self) -> Option<Duration> {
        let common = self.common_group.as_ref().map(|group| &group.shards);
        let shards = self.shards.as_ref().or(common);
        shards.map(ShardGroup::period).or_else(|| self.start.retry_period())
    }

    /// Returns the group that the controller joins, if it has one. In the group of a manager, the
    /// controller only takes its part.
    ///
    /// # Errors
    ///
    /// The settings of the group are invalid, or do not fit those of the controller.
    pub(super) fn take_group(&mut self) -> Result<Option<Group>, RunnerError> {
        let (common, shards) = (self.common_group.take(), self.shards.take());
        if common.is_none() && shards.is_none() {
            return Ok(None);
        }
        let conflict = |setting| Err(RunnerError::ShardsConflict { setting });
        if self.shard.is_some() {
            return conflict("Controller::shard");
        }
        if self.start.has_election() {
            return conflict("leader election");
        }
        if let Some(common) = common {
            if shards.is_some() {
                return conflict("Controller::shard_group beside Manager::shard_group");
            }
            let part = Part::new(&common.shards, self.held.clone());
            self.ownership = Some(part.ownership.clone());
            common.parts().push(part);
            return Ok(None);
        }
        let Some(shards) = shards else { return Ok(None) };
        let (plural, group) = (K::plural(&self.dyntype), K::group(&self.dyntype));
        let dot = if group.is_empty() { "" } else { "." };
        let shards = shards.of_controller(
            format!("{plural}{dot}{group}"),
            self.metrics.as_ref().map(AsRef::as_ref),
        );
        shards.check().map_err(RunnerError::shards)?;
        let client = shards.own_client().or_else(|| self.client.take());
        let client = client.ok_or(RunnerError::ShardsWithoutClient)?;
        let part = Part::new(&shards, self.held.clone());
        Ok(Some(Group { shards, client, part }))
    }
}

impl Group {
    /// Joins the group, and applies its changes from now on. If the future is dropped during the
    /// join, `joining` contains the attempt.
    pub(super) async fn join(self, joining: &mut Option<Joining>) -> Result<Sharding, RunnerError> {
        let Self { shards, client, part } = self;
        let membership = shards.join_by(client, joining).await.map_err(RunnerError::shards)?;
        Ok(Sharding::begin(membership, vec![part]))
    }
}

/// Leaves the group after a join that did not complete. Otherwise the Lease would expire, and another
/// replica might wait for that. After `limit`, or when `forced` completes, it continues in the background.
pub(crate) async fn abandon(
    joining: Option<Joining>,
    limit: Duration,
    forced: impl Future<Output = ()>,
) {
    let Some(joining) = joining else { return };
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

/// The membership of controllers that run. Dropping it ends the membership without a handover.
pub(crate) struct Sharding {
    stop: CancellationToken,
    ended: watch::Receiver<Option<Result<(), MembershipError>>>,
    ownerships: Vec<Ownership>,
    _task: JoinSet<()>,
}

impl Sharding {
    fn begin(membership: Membership, parts: Vec<Part>) -> Self {
        let (stop, (send, ended)) = (CancellationToken::new(), watch::channel(None));
        for part in &parts {
            // It is set only here: a controller starts once.
            _ = part.held.0.group.set(membership.observer().clone());
        }
        let ownerships = parts.iter().map(|part| part.ownership.clone()).collect();
        let driver = Driver {
            membership,
            parts,
            releasing: BTreeMap::new(),
            releases: FuturesUnordered::new(),
            last_release: 0,
        };
        let mut task = JoinSet::new();
        let stopped = stop.clone();
        let drive = async move {
            let result = driver.drive(stopped).await;
            // It fails only if the controllers have ended.
            _ = send.send(Some(result));
        };
        task.spawn(drive.in_current_span());
        Self { stop, ended, ownerships, _task: task }
    }

    /// Waits until the membership is lost.
    pub(crate) async fn lost(&self) -> MembershipError {
        match self.ended().await {
            Err(error) => error,
            Ok(()) => pending().await,
        }
    }

    /// Starts to hand all shards over. Each shard moves when its runs in flight have ended.
    pub(crate) fn begin_to_leave(&self) {
        self.stop.cancel();
    }

    /// Hands all shards over. Returns false if runs in flight exceed `limit`.
    pub(super) async fn leave(&self, limit: Duration) -> bool {
        self.begin_to_leave();
        timeout(limit, self.ended()).await.is_ok()
    }

    /// Cancels the runs in flight, so that the handover completes.
    pub(super) async fn cut_off(&self) {
        // The driver waits for the end of the runs.
        self.ownerships.iter().for_each(|ownership| drop(ownership.lose_all()));
        self.leave_now().await;
    }

    /// Hands all shards over. Their runs have ended, or are cancelled.
    pub(crate) async fn leave_now(&self) {
        if !self.leave(LEAVE_TIMEOUT).await {
            tracing::warn!("the shards were not handed over, and the member Lease expires");
        }
    }

    async fn ended(&self) -> Result<(), MembershipError> {
        let mut ended = self.ended.clone();
        let result = ended.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        // Without a result, the driver has panicked.
        result.unwrap_or(Err(MembershipError::Lost(LeadershipLost::Abandoned)))
    }
}

/// Applies the changes of the group to the controllers.
struct Driver {
    membership: Membership,
    parts: Vec<Part>,
    /// The shards that are being released, each with the number of its release. A shard that is not
    /// here must not be reported as drained: it may have been gained again.
    releasing: BTreeMap<u32, u64>,
    /// Each completes when no run of its shards is left.
    releases: FuturesUnordered<BoxFuture<'static, (Vec<u32>, u64)>>,
    /// The number of the last release.
    last_release: u64,
}

/// Without the driver, nothing shows a loss.
impl Drop for Driver {
    fn drop(&mut self) {
        for Part { ownership, .. } in &self.parts {
            // No further run begins. The future would only wait for the runs in flight, which the
            // controller drops.
            drop(ownership.release(0..ownership.count()));
        }
        self.change_held(BTreeMap::clear);
    }
}

impl Driver {
    async fn drive(mut self, stop: CancellationToken) -> Result<(), MembershipError> {
        let mut stopping = false;
        loop {
            let change = tokio::select! {
                biased;
                change = self.membership.next() => change?,
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.membership.stop();
                    continue;
                }
                Some((shards, number)) = self.releases.next() => {
                    self.released(shards, number);
                    continue;
                }
            };
            match change {
                Some(Change::Gained(gained)) => self.gained(gained),
                Some(Change::Release(shards)) => self.release(shards),
                Some(Change::Cancel(shards)) => self.cancel(shards),
                Some(Change::Lost(shards)) => self.lose(shards),
                None => return Ok(()),
            }
        }
    }

    fn change_held(&self, change: impl Fn(&mut BTreeMap<u32, HeldShard>)) {
        self.parts.iter().for_each(|part| part.held.change(&change));
    }

    fn is_idle(&self, shard: u32) -> bool {
        self.parts.iter().all(|part| part.ownership.is_idle(shard))
    }

    /// Returns a future that completes when the futures of all controllers have completed.
    fn leave_each(
        &self,
        leave: impl Fn(&Ownership) -> BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        let left: Vec<_> = self.parts.iter().map(|part| leave(&part.ownership)).collect();
        join_all(left).map(drop).boxed()
    }

    fn gained(&self, gained: Vec<HeldShard>) {
        let shards: Vec<_> = gained.iter().map(HeldShard::index).collect();
        self.change_held(|held| {
            held.extend(gained.iter().map(|it| (it.index(), it.clone())));
        });
        self.parts.iter().for_each(|part| part.ownership.gain(shards.iter().copied()));
    }

    fn release(&mut self, shards: Vec<u32>) {
        // Shards without runs are released together, so that one write hands them over. Shards with
        // runs do not wait for each other.
        let (idle, busy): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|&shard| self.is_idle(shard));
        let parts = [idle].into_iter().filter(|idle| !idle.is_empty());
        for part in parts.chain(busy.into_iter().map(|shard| vec![shard])) {
            let released =
                self.leave_each(|ownership| ownership.release(part.iter().copied()).boxed());
            self.await_release(part, released);
        }
    }

    fn cancel(&mut self, shards: Vec<u32>) {
        for shard in shards {
            if self.releasing.contains_key(&shard) {
                let cancelled = self.leave_each(|ownership| ownership.lose([shard]).boxed());
                self.await_release(vec![shard], cancelled);
            }
        }
    }

    fn lose(&mut self, shards: Vec<u32>) {
        let lost = self.leave_each(|ownership| ownership.lose(shards.iter().copied()).boxed());
        self.change_held(|held| held.retain(|shard, _| !shards.contains(shard)));
        self.releasing.retain(|shard, _| !shards.contains(shard));
        // Its end drops the keys, and is not reported.
        self.releases.push(lost.map(|()| (Vec::new(), 0)).boxed());
    }

    fn await_release(&mut self, shards: Vec<u32>, released: BoxFuture<'static, ()>) {
        self.last_release += 1;
        let number = self.last_release;
        self.releasing.extend(shards.iter().map(|&shard| (shard, number)));
        self.releases.push(released.map(move |()| (shards, number)).boxed());
    }

    fn released(&mut self, mut shards: Vec<u32>, number: u64) {
        shards.retain(|shard| self.releasing.get(shard) == Some(&number));
        shards.iter().for_each(|shard| _ = self.releasing.remove(shard));
        self.change_held(|held| held.retain(|shard, _| !shards.contains(shard)));
        self.membership.drained(shards);
    }
}
