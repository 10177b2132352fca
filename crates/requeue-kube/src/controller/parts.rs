//! The parts of a controller that has not started, in groups.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::api::Resource;
use kube::runtime::reflector::Store;
use kube::{Client, discovery};

use super::config::Config;
use super::enqueuer::Enqueuer;
use super::error::RunnerError;
use super::ownership::Ownership;
use super::readiness::Readiness;
use super::sharding::{CommonGroup, Group};
use super::source::{AnyPredicate, Source, TriggerBackoff};
use super::start_gate::Start;
use super::status::Status;
use crate::ObjectQueue;
use crate::membership::ShardGroup;
use crate::metrics::Metrics;
use crate::range::Shard;

/// Returns the watch of the controller's own kind, whose changes a predicate may filter.
pub(super) type MakeOwn<K> = Box<dyn FnOnce(Option<AnyPredicate<K>>) -> Source + Send>;
pub(super) type Trigger = Box<dyn FnOnce(Arc<Enqueuer>) -> BoxFuture<'static, ()> + Send>;

/// The settings of a controller.
pub(super) struct Parts<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
    pub(super) name: Option<String>,
    pub(super) config: Config,
    pub(super) own: Own<K>,
    pub(super) others: Others,
    pub(super) sharding: ShardSettings,
    pub(super) start: Start,
    pub(super) stops: StopTriggers,
    pub(super) observers: Observers,
}

impl<K> Parts<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
    /// Returns the name of the controller, or the default.
    pub(super) fn effective_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| K::kind(&self.own.dyntype).to_lowercase())
    }

    /// Returns the retry period of the controller's group or election, if it has one.
    pub(super) fn retry_period(&self) -> Option<Duration> {
        let common = self.sharding.common_group.as_ref().map(CommonGroup::shards);
        let shards = self.sharding.shards.as_ref().or(common);
        shards.map(ShardGroup::period).or_else(|| self.start.retry_period())
    }

    /// Returns the group that the controller joins, if it has one. In the group of a manager, the
    /// controller only takes its part.
    ///
    /// # Errors
    ///
    /// The settings of the group are invalid, or do not fit those of the controller.
    pub(super) fn take_group(&mut self) -> Result<Option<Group>, RunnerError> {
        let common = self.sharding.common_group.take();
        let shards = self.sharding.shards.take();
        if common.is_none() && shards.is_none() {
            return Ok(None);
        }
        let conflict = |setting| Err(RunnerError::ShardsConflict { setting });
        if self.sharding.shard.is_some() {
            return conflict("Controller::shard");
        }
        if self.start.has_election() {
            return conflict("leader election");
        }
        let held = self.observers.status.held.clone();
        if let Some(common) = common {
            if shards.is_some() {
                return conflict("Controller::shard_group beside Manager::shard_group");
            }
            self.sharding.ownership = Some(common.take_part(held));
            return Ok(None);
        }
        let Some(shards) = shards else { return Ok(None) };
        let plural = K::plural(&self.own.dyntype);
        let group = K::group(&self.own.dyntype);
        let dot = if group.is_empty() { "" } else { "." };
        let metrics = self.observers.metrics.as_ref();
        let shards =
            shards.for_controller(format!("{plural}{dot}{group}"), metrics.map(AsRef::as_ref));
        shards.check().map_err(RunnerError::shards)?;
        let client = shards.own_client().or_else(|| self.sharding.client.take());
        let client = client.ok_or(RunnerError::ShardsWithoutClient)?;
        Ok(Some(Group::new(shards, client, held)))
    }
}

/// The controller's own kind.
pub(super) struct Own<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
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

/// The part of the objects that the controller reconciles: that of a fixed shard, or that of the
/// shards which a group assigns to this process.
#[derive(Default)]
pub(super) struct ShardSettings {
    pub(super) shard: Option<Shard>,
    pub(super) shards: Option<ShardGroup>,
    pub(super) common_group: Option<CommonGroup>,
    pub(super) ownership: Option<Ownership>,
    /// The client of the main `Api`.
    pub(super) client: Option<Client>,
}

/// The events that stop the controller.
#[derive(Default)]
pub(super) struct StopTriggers {
    /// No new run starts.
    pub(super) graceful: Vec<BoxFuture<'static, ()>>,
    /// Runs in flight are dropped, too.
    pub(super) forced: Vec<BoxFuture<'static, ()>>,
}

/// The parts that show the controller to others.
pub(super) struct Observers {
    pub(super) readiness: Readiness,
    pub(super) status: Status,
    pub(super) metrics: Option<Metrics>,
    pub(super) on_start: Option<Box<dyn FnOnce(ObjectQueue) + Send>>,
}
