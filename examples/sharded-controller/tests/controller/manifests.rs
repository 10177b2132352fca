//! One replica beside an API server in memory, with the permissions of its manifests.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use requeue_kube::membership::ShardGroup;
use requeue_testkit::ApiServer;
use serde_json::{from_value, json};
use sharded_controller::{CONTROLLER, ENTRIES, controller, run};

use crate::rbac::{objects, permissions};
use crate::without_gate;

const NAMESPACE: &str = "sharded-system";
const RBAC: &str = include_str!("../../manifests/rbac.yaml");

#[tokio::test]
async fn the_manifests_allow_everything_that_a_replica_does() -> kube::Result<()> {
    let server = ApiServer::new();
    let admin = server.client();
    for namespace in objects::<Namespace>(RBAC, "Namespace") {
        Api::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
    }
    let deployment = include_str!("../../manifests/deployment.yaml");
    for deployment in objects::<Deployment>(deployment, "Deployment") {
        let deployments = Api::namespaced(admin.clone(), NAMESPACE);
        deployments.create(&PostParams::default(), &deployment).await?;
    }
    assert_eq!(server.objects("deployments.apps").len(), 1);

    let access = permissions(RBAC, CONTROLLER, NAMESPACE);
    let client = without_gate(server.with_access(access).client());
    let shards = ShardGroup::new(CONTROLLER, NAMESPACE).count(8);
    let replica = run(controller(client.clone(), shards), client);
    let maps = Api::<ConfigMap>::default_namespaced(admin);
    let map = json!({
        "metadata": { "name": "a", "labels": { "example.com/count": "true" } },
        "data": { "x": "1" },
    });
    maps.create(&PostParams::default(), &from_value(map).expect("a ConfigMap")).await?;
    let is_written =
        |map: Option<&ConfigMap>| map.is_some_and(|map| map.annotations().contains_key(ENTRIES));
    tokio::select! {
        ended = replica => panic!("the replica has ended: {ended:?}"),
        written = await_condition(maps.clone(), "a", is_written) => drop(written.expect("a watch")),
    }
    assert_eq!(maps.get("a").await?.annotations()[ENTRIES], "1");

    let refused: Vec<_> =
        server.records().into_iter().filter(|record| [403, 501].contains(&record.code)).collect();
    assert_eq!(refused, []);
    Ok(())
}
