//! Finalizers, owners and garbage.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::{Value, json};

use crate::common::{from, maps, named, refused};

/// Returns a ConfigMap that belongs to these owners.
fn owned(name: &str, owners: &[&ConfigMap]) -> ConfigMap {
    let owners = owners.iter().map(|owner| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid(),
            "blockOwnerDeletion": true,
        })
    });
    let owners: Vec<Value> = owners.collect();
    from(json!({ "metadata": { "name": name, "ownerReferences": owners } }))
}

async fn create(maps: &Api<ConfigMap>, map: &ConfigMap) -> ConfigMap {
    maps.create(&PostParams::default(), map).await.expect("created")
}

#[tokio::test]
async fn a_finalizer_keeps_an_object_until_it_is_removed() {
    let maps = maps(&ApiServer::new());
    let map: ConfigMap =
        from(json!({ "metadata": { "name": "a", "finalizers": ["example.com/f"] } }));
    create(&maps, &map).await;
    let waits = maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    let waits = waits.left().expect("the object");
    assert!(waits.metadata.deletion_timestamp.is_some());
    assert_eq!(waits.metadata.deletion_grace_period_seconds, Some(0));
    let again = maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(again.left(), Some(waits));

    let more = json!({ "metadata": { "finalizers": ["example.com/f", "example.com/g"] } });
    let status = refused(maps.patch("a", &PatchParams::default(), &Patch::Merge(more)).await);
    assert!(status.message.contains("no new finalizers can be added"), "{status:?}");
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("a", &PatchParams::default(), &none).await.expect("patched");
    assert_eq!(maps.get_opt("a").await.expect("read"), None);
}

#[tokio::test]
async fn dependents_follow_their_owner() {
    for policy in
        [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan]
    {
        let server = ApiServer::new();
        let maps = maps(&server);
        let owner = create(&maps, &named("owner")).await;
        create(&maps, &owned("dependent", &[&owner])).await;
        let orphans = matches!(policy, PropagationPolicy::Orphan);
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        maps.delete("owner", &params).await.expect("deleted");
        assert_eq!(maps.get_opt("owner").await.expect("read"), None);
        let left = maps.get_opt("dependent").await.expect("read");
        assert_eq!(left.is_some(), orphans);
        assert!(left.is_none_or(|left| left.owner_references().is_empty()));
    }
}

#[tokio::test]
async fn another_owner_keeps_a_dependent() {
    let maps = maps(&ApiServer::new());
    let (first, second) =
        (create(&maps, &named("first")).await, create(&maps, &named("second")).await);
    create(&maps, &owned("dependent", &[&first, &second])).await;
    maps.delete("first", &DeleteParams::default()).await.expect("deleted");
    let left = maps.get("dependent").await.expect("read");
    assert_eq!(left.owner_references().len(), 1);
    maps.delete("second", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(maps.get_opt("dependent").await.expect("read"), None);
}

#[tokio::test]
async fn a_foreground_deletion_waits_for_dependents_with_finalizers() {
    let maps = maps(&ApiServer::new());
    let owner = create(&maps, &named("owner")).await;
    let mut dependent = owned("dependent", &[&owner]);
    dependent.metadata.finalizers = Some(vec!["example.com/f".into()]);
    create(&maps, &dependent).await;
    maps.delete("owner", &DeleteParams::foreground()).await.expect("deleted");
    let owner = maps.get("owner").await.expect("it waits");
    assert_eq!(owner.finalizers(), ["foregroundDeletion"]);
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("dependent", &PatchParams::default(), &none).await.expect("patched");
    assert_eq!(maps.get_opt("dependent").await.expect("read"), None);
    assert_eq!(maps.get_opt("owner").await.expect("read"), None);
}

#[tokio::test]
async fn an_object_whose_owner_never_existed_is_garbage() {
    let maps = maps(&ApiServer::new());
    let mut owner = named("owner");
    owner.metadata.uid = Some("a uid".into());
    create(&maps, &owned("dependent", &[&owner])).await;
    assert_eq!(maps.get_opt("dependent").await.expect("read"), None);
}

#[tokio::test]
async fn garbage_stays_until_a_test_collects_it() {
    let server = ApiServer::new();
    server.with(|cluster| cluster.collect_automatically(false));
    let maps = maps(&server);
    let owner = create(&maps, &named("owner")).await;
    create(&maps, &owned("dependent", &[&owner])).await;
    maps.delete("owner", &DeleteParams::default()).await.expect("deleted");
    assert!(maps.get_opt("dependent").await.expect("read").is_some());
    let now = server.now();
    assert_eq!(server.with(|cluster| cluster.collect_garbage(now)), 1);
    assert_eq!(maps.get_opt("dependent").await.expect("read"), None);
}

#[tokio::test]
async fn a_job_leaves_its_pods_unless_a_policy_says_otherwise() {
    let server = ApiServer::new();
    let jobs = Api::<Job>::default_namespaced(server.client());
    let template = json!({ "spec": {
        "containers": [{ "name": "c", "image": "i" }], "restartPolicy": "Never",
    } });
    let job: Job = from(json!({ "metadata": { "name": "j" }, "spec": { "template": template } }));
    let job = jobs.create(&PostParams::default(), &job).await.expect("created");
    let owner = json!({ "apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job.uid() });
    let dependent =
        from(json!({ "metadata": { "name": "dependent", "ownerReferences": [owner] } }));
    create(&maps(&server), &dependent).await;
    let deleted = jobs.delete("j", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(deleted.left().expect("the object").finalizers(), ["orphan"]);
    assert_eq!(jobs.get_opt("j").await.expect("read"), None);
    let left = maps(&server).get("dependent").await.expect("it stays");
    assert!(left.owner_references().is_empty());
}

#[tokio::test]
async fn an_object_of_the_cluster_outlives_an_owner_in_a_namespace() {
    let server = ApiServer::new();
    let owner = create(&maps(&server), &named("owner")).await;
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(),
    });
    let nodes = Api::<Node>::all(server.client());
    let node: Node = from(json!({
        "metadata": { "name": "n", "ownerReferences": [owner] },
        "status": { "phase": "Running" },
    }));
    let created = nodes.create(&PostParams::default(), &node).await.expect("created");
    assert_eq!(created.status.expect("a status").phase.as_deref(), Some("Running"));
    maps(&server).delete("owner", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(nodes.get("n").await.expect("it stays").owner_references().len(), 1);
}
