//! The parts of a controller that has not started, in groups.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::runtime::reflector::Store;
use kube::{Client, discovery};

use super::config::Config;
use super::enqueuer::Enqueuer;
use super::error::RunnerError;
use super::ownership::{AllKeys, ChangingShards, Ownership};
use super::readiness::Lists;
use super::scope::Scope;
use super::sharding::Group;
use super::signals::shutdown_signals;
use super::source::{AnyPredicate, Source, TriggerBackoff};
use super::start_gate::Start;
use super::status::Status;
use crate::ObjectQueue;
use crate::key::ObjectKind;
use crate::membership::ShardGroup;
use crate::metrics::Metrics;
use crate::range::Shard;

/// Returns the watch of the controller's own kind, with the predicate that filters its changes, if
/// any.
pub(super) type MakeOwn<K> = Box<dyn FnOnce(Option<AnyPredicate<K>>) -> Source + Send>;
pub(super) type Trigger = Box<dyn FnOnce(Arc<Enqueuer>) -> BoxFuture<'static, ()> + Send>;

/// The settings of a controller.
pub(super) struct Parts<K: ObjectKind> {
    pub(super) name: Option<String>,
    pub(super) config: Config,
    pub(super) own: Own<K>,
    pub(super) others: Others,
    pub(super) sharding: ShardSettings,
    pub(super) start: Start,
    pub(super) stops: StopTriggers,
    pub(super) observers: Observers,
}

impl<K: ObjectKind> Parts<K> {
    /// Returns the name of the controller, or the default.
    pub(super) fn effective_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| K::kind(&self.own.dyntype).to_lowercase())
    }

    /// Returns the retry period of the controller's group or election, if any.
    pub(super) fn retry_period(&self) -> Option<Duration> {
        let common = self.sharding.common_group.as_ref().map(Group::retry_period);
        let own = self.sharding.shards.as_ref().map(ShardGroup::period);
        own.or(common).or_else(|| Some(self.start.election_status()?.retry_period()))
    }

    /// Returns the group that the controller itself must join, if any. A manager joins its group for all of its
    /// controllers.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings of the group are invalid, or cannot be combined with the
    /// controller's settings.
    pub(super) fn take_group(&mut self) -> Result<Option<Group>, RunnerError> {
        let common = self.sharding.common_group.take();
        let shards = self.sharding.shards.take();
        let conflict = |setting| Err(RunnerError::group_conflict("controller", setting));
        let (group, joins) = match (common, shards) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return conflict("Controller::shard_group beside Manager::shard_group");
            }
            (Some(common), None) => (common, false),
            (None, Some(shards)) => {
                let plural = K::plural(&self.own.dyntype);
                let group = K::group(&self.own.dyntype);
                let dot = if group.is_empty() { "" } else { "." };
                // A group without separate metrics uses the metrics of the controller.
                let metrics = self.observers.metrics.as_ref().map(AsRef::as_ref);
                let shards = shards.for_controller(format!("{plural}{dot}{group}"), metrics);
                (Group::new(shards, self.sharding.client.take())?, true)
            }
        };
        if self.sharding.shard.is_some() {
            return conflict("Controller::shard");
        }
        if self.start.election_status().is_some() {
            return conflict("leader election");
        }
        self.sharding.changing = Some(group.add_part(self.observers.status.held.clone()));
        Ok(joins.then_some(group))
    }
}

/// The controller's own kind.
pub(super) struct Own<K: ObjectKind> {
    pub(super) dyntype: K::DynamicType,
    pub(super) scope: Option<discovery::Scope>,
    pub(super) store: Store<K>,
    pub(super) make: MakeOwn<K>,
    pub(super) predicate: Option<AnyPredicate<K>>,
}

/// The other sources of runs.
#[derive(Default)]
pub(super) struct Others {
    pub(super) watches: Vec<Source>,
    pub(super) triggers: Vec<Trigger>,
    /// The backoff of all watches.
    pub(super) backoff: Option<TriggerBackoff>,
}

/// The objects that the controller reconciles: those in a fixed shard, or those in the shards that a group assigns to
/// this process.
#[derive(Default)]
pub(super) struct ShardSettings {
    pub(super) shard: Option<Shard>,
    pub(super) shards: Option<ShardGroup>,
    pub(super) common_group: Option<Group>,
    pub(super) changing: Option<ChangingShards>,
    /// The client of the main `Api`.
    pub(super) client: Option<Client>,
}

impl ShardSettings {
    /// Returns the keys that the controller owns. `scope` is the scope of the controller's objects.
    pub(super) fn into_ownership(self, scope: &Scope) -> Arc<dyn Ownership> {
        match (self.changing, self.shard) {
            (Some(changing), _) => Arc::new(changing),
            (None, Some(shard)) if scope.is_cluster() => Arc::new(shard.cluster_scoped()),
            (None, Some(shard)) => Arc::new(shard),
            (None, None) => Arc::new(AllKeys),
        }
    }
}

/// The events that stop a controller or a manager.
#[derive(Default)]
pub(crate) struct StopTriggers {
    /// After one of these events, no new run starts.
    pub(crate) graceful: Vec<BoxFuture<'static, ()>>,
    /// After one of these events, runs in flight are also dropped.
    pub(crate) forced: Vec<BoxFuture<'static, ()>>,
}

impl StopTriggers {
    /// Adds Ctrl-C and SIGTERM. The second signal forces the stop.
    pub(crate) fn add_signals(&mut self) {
        let (first, second) = shutdown_signals();
        self.graceful.push(first);
        self.forced.push(second);
    }
}

/// Receives the queue of a controller that starts.
pub(super) type OnStart = Box<dyn FnOnce(ObjectQueue) + Send>;

/// The parts that show the state of the controller to users.
pub(super) struct Observers {
    pub(super) lists: Lists,
    pub(super) status: Status,
    pub(super) metrics: Option<Metrics>,
    pub(super) on_start: Option<OnStart>,
}
