//! The settings of a controller that has not started.

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

/// Creates the watch of the controller's own kind. The argument is the user's predicate, which ignores some changes.
pub(super) type MakeOwn<K> = Box<dyn FnOnce(Option<AnyPredicate<K>>) -> Source + Send>;
pub(super) type Trigger = Box<dyn FnOnce(Arc<Enqueuer>) -> BoxFuture<'static, ()> + Send>;

/// All settings of a controller.
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
    /// Returns the name that the user has set, or the kind in lower case.
    pub(super) fn effective_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| K::kind(&self.own.dyntype).to_lowercase())
    }

    /// Returns the retry period of the controller's shard group or election, if it has one.
    pub(super) fn retry_period(&self) -> Option<Duration> {
        let common = self.sharding.common_group.as_ref().map(Group::retry_period);
        let own = self.sharding.shards.as_ref().map(ShardGroup::period);
        own.or(common).or_else(|| Some(self.start.election_status()?.retry_period()))
    }

    /// Returns the shard group that the controller itself must join, if there is one. If the controller belongs to a
    /// manager, the manager joins the group for all of its controllers.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting of the group is invalid, or cannot be combined with a setting of the controller.
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
                // If the user has set no metrics for the group, the group uses the controller's metrics.
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

/// The settings of the controller's own kind.
pub(super) struct Own<K: ObjectKind> {
    pub(super) dyntype: K::DynamicType,
    pub(super) scope: Option<discovery::Scope>,
    pub(super) store: Store<K>,
    pub(super) make: MakeOwn<K>,
    pub(super) predicate: Option<AnyPredicate<K>>,
}

/// The watches of other kinds, and the triggers.
#[derive(Default)]
pub(super) struct Others {
    pub(super) watches: Vec<Source>,
    pub(super) triggers: Vec<Trigger>,
    /// The backoff that all watches share, if the user has set one.
    pub(super) backoff: Option<TriggerBackoff>,
}

/// The settings that select the objects by shards: a fixed shard, or the shards that a group assigns to this process.
#[derive(Default)]
pub(super) struct ShardSettings {
    pub(super) shard: Option<Shard>,
    pub(super) shards: Option<ShardGroup>,
    pub(super) common_group: Option<Group>,
    pub(super) changing: Option<ChangingShards>,
    /// The client of the controller's `Api`. The group uses it if it has no separate client.
    pub(super) client: Option<Client>,
}

impl ShardSettings {
    /// Returns the rule that decides which keys the controller owns. `scope` tells whether the controller's kind has
    /// namespaces.
    pub(super) fn into_ownership(self, scope: &Scope) -> Arc<dyn Ownership> {
        match (self.changing, self.shard) {
            (Some(changing), _) => Arc::new(changing),
            (None, Some(shard)) if scope.is_cluster() => Arc::new(shard.cluster_scoped()),
            (None, Some(shard)) => Arc::new(shard),
            (None, None) => Arc::new(AllKeys),
        }
    }
}

/// The futures that stop a controller or a manager when they complete.
#[derive(Default)]
pub(crate) struct StopTriggers {
    /// When one of these futures completes, no further run starts.
    pub(crate) graceful: Vec<BoxFuture<'static, ()>>,
    /// When one of these futures completes, runs in flight are also dropped.
    pub(crate) forced: Vec<BoxFuture<'static, ()>>,
}

impl StopTriggers {
    /// Makes the first Ctrl-C or SIGTERM begin a graceful stop, and the second one drop the runs in flight.
    pub(crate) fn add_signals(&mut self) {
        let (first, second) = shutdown_signals();
        self.graceful.push(first);
        self.forced.push(second);
    }
}

/// The user's callback, which receives the queue of the controller at the start.
pub(super) type OnStart = Box<dyn FnOnce(ObjectQueue) + Send>;

/// The values through which users observe the controller.
pub(super) struct Observers {
    pub(super) lists: Lists,
    pub(super) status: Status,
    pub(super) metrics: Option<Metrics>,
    pub(super) on_start: Option<OnStart>,
}
