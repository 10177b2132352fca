//! Tests of controllers and managers that cannot join their shard group.

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use requeue_testkit::ApiServer;

use crate::controller::Action;
use crate::membership::ShardGroup;
use crate::{Controller, Manager, policy};

/// Returns a shard group whose lease duration and renew deadline are long, so that a slow machine
/// does not end a membership.
fn group() -> ShardGroup {
    ShardGroup::new("web", "default").objects("websites").lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(90));
        lease.renew_deadline(Duration::from_secs(60)).without_events()
    })
}

#[tokio::test]
async fn a_controller_and_a_manager_that_are_refused_name_the_cause_and_the_next_step() {
    let server = ApiServer::new();
    // A group with a different number of shards already exists.
    drop(group().join(server.client()).await.unwrap());
    let shards = || group().count(32).with_client(server.client());
    let controller = |name: &str| {
        let maps = kube::Api::<ConfigMap>::all(server.client());
        Controller::new(maps, watcher::Config::default()).name(name)
    };
    let reconcile = async |_, _| Ok::<_, Infallible>(Action::await_change());
    let expected = "the shard group \"web\" has 64 shards, not 32: configure 64, or stop all members \
                    and delete the Lease \"web\"";

    let refused = controller("refused").shard_group(shards());
    let stream = refused.run(reconcile, policy::backoff, Arc::new(()));
    let results: Vec<_> = stream.map(|result| result.unwrap_err().to_string()).collect().await;
    assert_eq!(results, [format!("runner error: {expected}")]);

    let mut manager = Manager::new().shard_group(shards().objects("websites"));
    manager.add(controller("of a refused manager"), move |it| {
        it.run(reconcile, policy::backoff, Arc::new(()))
    });
    let error = manager.run().await.unwrap_err();
    assert_eq!(error.to_string(), expected);
    assert!(error.source().is_none(), "the message has the whole cause");
}
