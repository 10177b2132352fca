//! Watches that get `410 Gone`.

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::WatchEvent;
use requeue_e2e::Server;

use crate::support::{create, maps, next_added, watch};

#[tokio::test]
async fn a_watch_from_before_a_compaction_is_gone() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    let maps = maps(&server, "compacted").await;
    let first = create(&maps, "one").await;
    let mut open = watch(&maps, &first).await.unwrap();
    create(&maps, "two").await;
    assert!(!is_gone(&maps, &first).await);

    server.compact().await;
    assert!(is_gone(&maps, &first).await);
    // A watch that was open all the time, and a watch from a later version, continue.
    let third = create(&maps, "three").await;
    create(&maps, "four").await;
    assert_eq!(next_added(&mut open).await.unwrap(), "two");
    assert_eq!(next_added(&mut open).await.unwrap(), "three");
    assert!(!is_gone(&maps, &third).await);
}

#[tokio::test]
async fn a_watch_from_before_a_new_start_is_gone_too() {
    let Some(server) = Server::exclusive().await else { return };
    let maps = maps(&server, "restarted").await;
    let first = create(&maps, "one").await;
    create(&maps, "two").await;
    assert!(!is_gone(&maps, &first).await);
    server.compact().await;
    assert!(!is_gone(&maps, &first).await);

    // A frozen process can also be killed.
    server.apiserver().freeze();
    server.apiserver().restart().await;
    assert!(is_gone(&maps, &first).await);
}

/// Returns true if a watch from this version gets `410 Gone` instead of the events after this
/// version.
async fn is_gone(maps: &Api<ConfigMap>, version: &str) -> bool {
    let mut watch = match watch(maps, version).await {
        Ok(watch) => watch,
        Err(kube::Error::Api(status)) if status.code == 410 => return true,
        Err(err) => panic!("{err}"),
    };
    match watch.try_next().await.unwrap().unwrap() {
        WatchEvent::Error(status) if status.code == 410 => true,
        WatchEvent::Added(_) => false,
        other => panic!("{other:?}"),
    }
}
