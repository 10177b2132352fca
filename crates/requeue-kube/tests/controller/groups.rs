//! The settings of a controller's shard group.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Api, Client};
use requeue_kube::controller::{Action, Config, Error, RunnerError};
use requeue_kube::leader::{self, LeaderElector};
use requeue_kube::membership::{MembershipError, ShardGroup};
use requeue_kube::range::Shard;
use requeue_kube::{Controller, policy};
use serde_json::json;

use super::common::*;

async fn unreachable(_: Request<Body>) -> Result<Response<Body>, OnPurpose> {
    panic!("the settings are refused before the first request")
}

fn group() -> ShardGroup {
    ShardGroup::new("maps", "ns").with_client(Client::new(tower::service_fn(unreachable), "ns"))
}

/// Returns the error that ends the controller.
async fn refused(controller: Controller<ConfigMap>) -> RunnerError {
    let reconcile = async |_, _| Ok::<_, OnPurpose>(Action::await_change());
    let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
    let mut results: Vec<_> = stream.collect().await;
    match (results.pop(), results.is_empty()) {
        (Some(Err(Error::RunnerError(error))), true) => error,
        other => panic!("{other:?}"),
    }
}

/// Runs a controller of ConfigMaps on a server that refuses each request with the status `code`.
/// Returns the results and the paths of the requests.
async fn on_a_server_that_refuses(
    code: u16,
    shards: Option<ShardGroup>,
) -> (Vec<String>, Vec<String>) {
    let paths: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&paths);
    let service = tower::service_fn(move |request: Request<Body>| {
        seen.lock().unwrap().push(request.uri().path().to_owned());
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "no ConfigMaps", "reason": "OnPurpose", "code": code,
        });
        let response =
            Response::builder().status(code).body(Body::from(status.to_string().into_bytes()));
        async move { Ok::<_, OnPurpose>(response.unwrap()) }
    });
    let maps: Api<ConfigMap> = Api::all(Client::new(service, "ns"));
    let config = Config::default().cache_sync_timeout(Duration::from_secs(5));
    let name = format!("refused {code} {}", shards.is_some());
    let mut controller =
        Controller::new(maps, watcher::Config::default()).name(name).with_config(config);
    if let Some(shards) = shards {
        controller = controller.shard_group(shards);
    }
    let reconcile = async |_, _| Ok::<_, OnPurpose>(Action::await_change());
    let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
    let results = stream.map(|result| result.unwrap_err().to_string()).collect().await;
    let paths = paths.lock().unwrap().clone();
    (results, paths)
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_cannot_list_its_kind_does_not_join_and_reports_that_as_without_a_group()
{
    for code in [403, 404, 500] {
        let (sharded, paths) = on_a_server_that_refuses(code, Some(group())).await;
        let (alone, _) = on_a_server_that_refuses(code, None).await;
        assert!(paths.iter().all(|path| path == "/api/v1/configmaps"), "{paths:?}");
        assert!(sharded.len() > 2, "{sharded:?}");
        assert!(sharded[0].contains("no ConfigMaps"), "{sharded:?}");
        assert_eq!((sharded.first(), sharded.last()), (alone.first(), alone.last()));
    }
}

#[tokio::test(start_paused = true)]
async fn settings_that_do_not_fit_a_group_are_refused() {
    let refused_with = async |change: fn(Controller<ConfigMap>) -> Controller<ConfigMap>| {
        let (feed, controller) = controller();
        feed.list(&[map("a", 1)]);
        refused(change(controller)).await
    };
    let error = refused_with(|it| it.shard_group(group().count(3))).await;
    let RunnerError::Membership(reason, keys) = &error else { panic!("{error}") };
    assert!(matches!(reason, MembershipError::Config(_)) && keys.is_empty(), "{error}");
    assert_eq!(error.to_string(), reason.to_string());

    let error = refused_with(|it| it.shard_group(ShardGroup::new("maps", "ns"))).await;
    assert!(error.to_string().contains("ShardGroup::with_client"), "{error}");

    let error = refused_with(|it| it.shard(Shard::new(0, 2).unwrap()).shard_group(group())).await;
    assert!(error.to_string().contains("cannot have Controller::shard:"), "{error}");

    let error = refused_with(|it| {
        let client = Client::new(tower::service_fn(unreachable), "ns");
        let elector = LeaderElector::new(client, leader::Config::new("ns", "maps")).unwrap();
        it.leader_election(elector).shard_group(group())
    })
    .await;
    assert!(error.to_string().contains("cannot have leader election:"), "{error}");

    let fair = Config::default().fair_namespaces();
    let (_feed, controller) = controller();
    let error = refused(controller.with_config(fair).shard_group(group())).await;
    assert!(error.to_string().contains("cannot have fair namespaces"), "{error}");
}
