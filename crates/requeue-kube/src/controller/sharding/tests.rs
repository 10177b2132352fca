//! Controllers that are stopped while they join a group.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::oneshot;

use crate::controller::Action;
use crate::shards::Shards;
use crate::shards::tests::http::{Fake, NAMESPACE};
use crate::{Controller, policy};

#[tokio::test]
async fn a_controller_that_is_stopped_while_it_joins_deletes_its_lease() {
    let fake = Fake::new();
    fake.hold(true);
    let maps: Api<ConfigMap> = Api::all(fake.client());
    let shards = Shards::new("maps", NAMESPACE)
        .events(false)
        .lease_duration(Duration::from_secs(90))
        .renew_deadline(Duration::from_secs(60));
    let (stop, stopped) = oneshot::channel::<()>();
    let controller = Controller::new(maps, watcher::Config::default())
        .name("is stopped while it joins")
        .shards(shards)
        .graceful_shutdown_on(async { _ = stopped.await });
    let reconcile = async |_, _| Ok::<_, Infallible>(Action::await_change());
    let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
    let running = tokio::spawn(stream.collect::<Vec<_>>());
    fake.until(|names| names.len() == 2).await;
    stop.send(()).unwrap();
    fake.hold(false);
    let results = running.await.unwrap();
    assert!(results.is_empty(), "{results:?}");
    assert_eq!(fake.names().into_iter().collect::<Vec<_>>(), ["maps"]);
}
