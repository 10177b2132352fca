//! The API server's answers to the requests of an election.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use requeue_e2e::Server;
use requeue_kube::leader::{LeaderElector, LeadershipLost, Term};
use serde_json::json;

use crate::replica::config;

async fn term(server: &Server, namespace: &str) -> Term {
    // The durations are long, so that no lease expires on a slow machine.
    let config = config(namespace)
        .lease_duration(Duration::from_secs(60))
        .renew_deadline(Duration::from_secs(40));
    let client = config.client(server.access().config().await).expect("a client");
    LeaderElector::new(client, config).expect("the configuration is safe").acquire().await
}

#[tokio::test]
async fn a_lease_that_is_deleted_ends_the_term_and_the_next_has_another_token() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("deleted").await;
    let client = server.client().await;
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let metadata = ObjectMeta { name: Some("map".into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    maps.create(&PostParams::default(), &map).await.unwrap();
    let params = PatchParams::default();

    let first = term(server, &namespace).await;
    let old = first.leadership().fence();
    let claim = old.claim(&maps.get("map").await.unwrap()).await.unwrap().unwrap();
    maps.patch("map", &params, &claim).await.unwrap();
    leases.delete("web", &DeleteParams::default()).await.unwrap();
    assert_eq!(first.lost().await, LeadershipLost::Deleted);

    let second = term(server, &namespace).await;
    let (before, after) = (first.leadership(), second.leadership());
    assert_eq!(before.fencing_token().transitions(), after.fencing_token().transitions());
    assert_ne!(before.fencing_token(), after.fencing_token());

    // The two terms have the same number. Only the uid and a renewal distinguish them.
    let new = after.fence();
    let claim = new.claim(&maps.get("map").await.unwrap()).await.unwrap().unwrap();
    maps.patch("map", &params, &claim).await.unwrap();
    let write = json!([{ "op": "add", "path": "/data", "value": { "by": "the former" } }]);
    let write = old.patch(serde_json::from_value(write).unwrap());
    let refused = maps.patch("map", &params, &write).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 422));
}

#[tokio::test]
async fn what_others_write_to_the_lease_is_kept_and_does_not_end_the_term() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("labelled").await;
    let leases: Api<Lease> = Api::namespaced(server.client().await, &namespace);
    let term = term(server, &namespace).await;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "team": "web" } } }));
    leases.patch("web", &PatchParams::default(), &label).await.unwrap();
    term.leadership().confirm().await.unwrap();
    term.release().await.unwrap();

    let lease = leases.get("web").await.unwrap();
    assert_eq!(lease.metadata.labels.unwrap()["team"], "web");
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""));
}

#[tokio::test]
async fn a_late_write_to_the_status_and_a_late_claim_are_refused() {
    let Some(server) = Server::shared().await else { return };
    let name = server.namespace("status").await;
    let namespaces: Api<Namespace> = Api::all(server.client().await);
    let params = PatchParams::default();
    let write = |value: &str| {
        let condition = json!({ "type": "Written", "status": value });
        let write = json!([{ "op": "add", "path": "/status/conditions", "value": [condition] }]);
        serde_json::from_value(write).expect("a valid patch")
    };
    let code = |refused| match refused {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    };

    let first = term(server, &name).await;
    let old = first.leadership().fence();
    let late = old.claim(&namespaces.get(&name).await.unwrap()).await.unwrap().unwrap();
    let claim = old.claim(&namespaces.get(&name).await.unwrap()).await.unwrap().unwrap();
    namespaces.patch(&name, &params, &claim).await.unwrap();
    namespaces.patch_status(&name, &params, &old.patch(write("True"))).await.unwrap();
    drop(old);
    let token = first.leadership().fencing_token().clone();
    let frozen = first.leadership().fence().patch(write("Unknown"));
    first.release().await.unwrap();

    let second = term(server, &name).await;
    assert_eq!(second.leadership().fencing_token().transitions(), token.transitions() + 1);
    let new = second.leadership().fence();
    let claim = new.claim(&namespaces.get(&name).await.unwrap()).await.unwrap().unwrap();
    namespaces.patch(&name, &params, &claim).await.unwrap();
    for refused in [
        namespaces.patch_status(&name, &params, &frozen).await,
        namespaces.patch(&name, &params, &late).await,
    ] {
        assert_eq!(code(refused.unwrap_err()), 422);
    }
    namespaces.patch_status(&name, &params, &new.patch(write("False"))).await.unwrap();
    let conditions = namespaces.get(&name).await.unwrap().status.unwrap().conditions.unwrap();
    assert_eq!(conditions[0].status, "False");
}
