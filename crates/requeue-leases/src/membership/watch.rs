//! The watch on the Leases of a shard group, with kube's watcher.

use futures_util::stream::{BoxStream, StreamExt};
use k8s_openapi::api::coordination::v1;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;

use super::assignment::LABEL;
use super::protocol::Watched;
use crate::lease::Lease;

/// The events of the watch. The stream continues after an error.
pub(super) type Events = BoxStream<'static, Result<Watched, watcher::Error>>;

/// Starts a watch on the Leases of the group.
pub(super) fn watch_leases(client: Client, namespace: &str, group: &str) -> Events {
    let resource = ApiResource::erase::<v1::Lease>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    let config = watcher::Config::default().labels(&format!("{LABEL}={group}"));
    watcher(api, config)
        // After an error, the watcher waits before it lists again. This protects an overloaded API
        // server.
        .default_backoff()
        .filter_map(async |event| match event {
            Ok(event) => read_event(event).map(Ok),
            Err(error) => Some(Err(error)),
        })
        .boxed()
}

/// Returns the event with its object as a Lease, or `None` if the object is not a valid Lease.
fn read_event(event: watcher::Event<DynamicObject>) -> Option<Watched> {
    let lease = |object: DynamicObject| {
        let mut json = serde_json::to_value(object).ok()?;
        // In the response to a list, the single items do not have these two fields.
        json["apiVersion"] = json!("coordination.k8s.io/v1");
        json["kind"] = json!("Lease");
        Lease::from_json(json).ok()
    };
    Some(match event {
        watcher::Event::Init => Watched::Init,
        watcher::Event::InitApply(object) => Watched::InitApply(lease(object)?),
        watcher::Event::InitDone => Watched::InitDone,
        watcher::Event::Apply(object) => Watched::Apply(lease(object)?),
        watcher::Event::Delete(object) => Watched::Delete(lease(object)?),
    })
}
