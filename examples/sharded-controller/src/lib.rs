//! A controller whose replicas share their objects by shards.
//!
//! For each ConfigMap with the label `example.com/count=true`, the controller writes the number of its entries into
//! an annotation. The replicas form a shard group: each one reconciles the ConfigMaps of its shards.

use std::sync::Arc;

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PatchParams;
use kube::runtime::{reflector::ObjectRef, watcher};
use kube::{Api, Client, ResourceExt};
use requeue_kube::controller::{Action, Error, HeldShards, RunnerError};
use requeue_kube::leader::LeadershipLost;
use requeue_kube::membership::ShardGroup;
use requeue_kube::{Controller, ObjectKey, policy};
use serde_json::json;

/// The name of the controller, which is also the name of its shard group.
pub const CONTROLLER: &str = "sharded-controller";
/// The selector of the objects.
pub const SELECTOR: &str = "example.com/count=true";
/// The annotation that the controller writes.
pub const ENTRIES: &str = "example.com/entries";

/// The context that each run needs.
pub struct Context {
    client: Client,
    held: HeldShards,
}

/// Returns the controller of a replica in the shard group.
pub fn controller(client: Client, shards: ShardGroup) -> Controller<ConfigMap> {
    let selected = watcher::Config::default().labels(SELECTOR);
    Controller::new(Api::<ConfigMap>::all(client), selected).shard_group(shards)
}

/// Runs the controller until it is shut down, or until the replica loses its membership in the group.
///
/// # Errors
///
/// Returns an error if the controller cannot continue. The process should then exit, and be restarted: its shards move
/// to the other replicas when its Lease expires.
pub async fn run(controller: Controller<ConfigMap>, client: Client) -> Result<(), RunnerError> {
    let context = Context { client, held: controller.held_shards() };
    let results = controller.run(reconcile, policy::backoff, Arc::new(context));
    results.map_ok(drop).or_else(async |error| report(error)).try_collect().await
}

/// Brings the annotation of one ConfigMap in line with its data.
///
/// # Errors
///
/// Returns an error if a write failed, or if a later holder of the shard has claimed the object. The controller retries
/// with backoff, if the replica still holds the shard.
pub async fn reconcile(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, Failed> {
    let wanted = count_entries(&map);
    if map.annotations().get(ENTRIES) == Some(&wanted) {
        return Ok(Action::await_change());
    }
    // It is `None` only if the shard was lost. This run is then about to be dropped.
    let Some(shard) = context.held.for_object(&ObjectKey::from_object(&*map)) else {
        return Ok(Action::await_change());
    };
    let namespace = map.namespace().unwrap_or_default();
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), &namespace);
    let (fence, name, params) = (shard.fence(), map.name_any(), PatchParams::default());

    // The first write of each holder puts its fencing token into the object, if the object has not changed meanwhile.
    if let Some(claim) = fence.claim(&*map).await? {
        maps.patch(&name, &params, &claim).await?;
    }
    // Each further write first tests the token. The API server therefore rejects writes of former holders, even if a
    // former holder was frozen after its last check.
    let path = format!("/metadata/annotations/{}", ENTRIES.replace('/', "~1"));
    let change = json!([{ "op": "add", "path": path, "value": wanted }]);
    let change = fence.patch(serde_json::from_value(change)?);
    maps.patch(&name, &params, &change).await?;
    tracing::info!(map = %ObjectRef::from_obj(&*map), shard = shard.index(), wanted, "written");
    Ok(Action::await_change())
}

/// Returns the text of the annotation: the work of this controller.
#[must_use]
pub fn count_entries(map: &ConfigMap) -> String {
    let texts = map.data.as_ref().map_or(0, |data| data.len());
    let binaries = map.binary_data.as_ref().map_or(0, |data| data.len());
    (texts + binaries).to_string()
}

/// The failure of a run.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The replica no longer holds the shard of the object.
    #[error(transparent)]
    Shard(#[from] LeadershipLost),
    /// A request failed. Code 422 means that the object has changed, or that a later holder has claimed it.
    #[error(transparent)]
    Request(#[from] kube::Error),
    /// The patch could not be built.
    #[error(transparent)]
    Patch(#[from] serde_json::Error),
}

/// Logs the failure of a run. Returns the error that ended the controller.
fn report(error: Error<Failed, watcher::Error>) -> Result<(), RunnerError> {
    match error {
        Error::RunnerError(error) => Err(error),
        error => {
            tracing::warn!(%error);
            Ok(())
        }
    }
}
