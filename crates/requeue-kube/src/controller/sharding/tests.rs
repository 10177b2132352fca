//! Tests of controllers that are stopped while they join a group.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher;
use requeue_leases::testing::{Fake, NAMESPACE};
use tokio::sync::oneshot;

use crate::controller::Action;
use crate::membership::ShardGroup;
use crate::{Controller, Manager, policy};

async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, Infallible> {
    Ok(Action::await_change())
}

/// Starts `run`, stops it while it joins the group, and returns its result. The API server has
/// created the member Lease, but sends its response only after the stop.
async fn stopped_while_it_joins<R: Future<Output: Send> + Send + 'static>(
    run: impl FnOnce(Controller<ConfigMap>, ShardGroup, oneshot::Receiver<()>) -> R,
) -> R::Output {
    let fake = Fake::default();
    fake.hold(true);
    let maps: Api<ConfigMap> = Api::all(fake.client());
    let shards = ShardGroup::new("maps", NAMESPACE).lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(90));
        lease.renew_deadline(Duration::from_secs(60)).without_events()
    });
    let (stop, stopped) = oneshot::channel();
    let controller = Controller::new(maps, watcher::Config::default());
    let (running, server) = (run(controller, shards, stopped), fake.clone());
    let running = tokio::spawn(async move { (running.await, server.names()) });
    fake.until(|names| names.len() == 2).await;
    stop.send(()).unwrap();
    fake.hold(false);
    let (ended, names) = running.await.unwrap();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["maps"], "no member Lease is left");
    ended
}

#[tokio::test]
async fn a_controller_that_is_stopped_while_it_joins_deletes_its_lease() {
    let results = stopped_while_it_joins(|controller, shards, stopped| {
        let controller = controller
            .name("is stopped while it joins")
            .shard_group(shards)
            .graceful_shutdown_on(async { _ = stopped.await });
        controller.run(reconcile, policy::backoff, Arc::new(())).collect::<Vec<_>>()
    });
    let results = results.await;
    assert!(results.is_empty(), "{results:?}");
}

#[tokio::test]
async fn a_manager_that_is_stopped_while_it_joins_deletes_its_lease() {
    let ended = stopped_while_it_joins(|controller, shards, stopped| {
        let mut manager =
            Manager::new().shard_group(shards).graceful_shutdown_on(async { _ = stopped.await });
        let controller = controller.name("its manager is stopped while it joins");
        manager.add(controller, |it| it.run(reconcile, policy::backoff, Arc::new(())));
        manager.run()
    });
    assert_eq!(ended.await, Ok(()));
}
