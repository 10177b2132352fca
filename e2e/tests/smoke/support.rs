//! ConfigMaps and watches for the tests of the harness.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use requeue_e2e::Server;

pub(crate) type Watch = std::pin::Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<ConfigMap>>>>>;

/// Returns the ConfigMaps of a new namespace.
pub(crate) async fn maps(server: &Server, prefix: &str) -> Api<ConfigMap> {
    let namespace = server.namespace(prefix).await;
    Api::namespaced(server.client().await, &namespace)
}

/// Returns the same ConfigMaps through another client.
pub(crate) fn through(client: Client, maps: &Api<ConfigMap>) -> Api<ConfigMap> {
    Api::namespaced(client, maps.namespace().expect("the client has a namespace"))
}

pub(crate) fn config_map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// Creates a ConfigMap, and returns its resource version.
pub(crate) async fn create(maps: &Api<ConfigMap>, name: &str) -> String {
    let made = maps
        .create(&PostParams::default(), &config_map(name))
        .await
        .expect("the ConfigMap is created");
    made.metadata.resource_version.expect("a created object has a version")
}

pub(crate) async fn watch(maps: &Api<ConfigMap>, version: &str) -> kube::Result<Watch> {
    Ok(Box::pin(maps.watch(&WatchParams::default(), version).await?))
}

/// Returns the name of the next object that is added, or `None` at the end of the watch.
pub(crate) async fn next_added(watch: &mut Watch) -> Option<String> {
    match watch.next().await? {
        Ok(WatchEvent::Added(map)) => map.metadata.name,
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

/// The time for which a test waits for an effect that must not occur. On a slow machine, the test
/// may miss the effect, but cannot fail.
pub(crate) const AWHILE: Duration = Duration::from_millis(200);
