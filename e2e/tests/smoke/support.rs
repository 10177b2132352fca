use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use requeue_e2e::Server;

pub(crate) type Watch = std::pin::Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<ConfigMap>>>>>;

/// The ConfigMaps of a namespace of one's own.
pub(crate) async fn maps(server: &Server, prefix: &str) -> Api<ConfigMap> {
    let namespace = server.namespace(prefix).await;
    Api::namespaced(server.client().await, &namespace)
}

/// The same, by another client.
pub(crate) fn through(client: Client, maps: &Api<ConfigMap>) -> Api<ConfigMap> {
    Api::namespaced(client, maps.namespace().expect("it has one"))
}

pub(crate) fn config_map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// Makes one, and returns its resource version.
pub(crate) async fn create(maps: &Api<ConfigMap>, name: &str) -> String {
    let made = maps.create(&PostParams::default(), &config_map(name)).await.expect("it is made");
    made.metadata.resource_version.expect("what is made has one")
}

pub(crate) async fn watch(maps: &Api<ConfigMap>, version: &str) -> kube::Result<Watch> {
    Ok(Box::pin(maps.watch(&WatchParams::default(), version).await?))
}

/// Who is added next; `None` when the watch has ended.
pub(crate) async fn next_added(watch: &mut Watch) -> Option<String> {
    match watch.next().await? {
        Ok(WatchEvent::Added(map)) => map.metadata.name,
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

/// How long something is given to do what it must not do. A slow machine can't fail a test by it.
pub(crate) const AWHILE: Duration = Duration::from_millis(200);
