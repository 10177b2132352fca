//! Objects through kube's client: writes, reads and their failures.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::core::response::Status;
use kube::{Api, Error, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::{Value, json};

fn map(json: Value) -> ConfigMap {
    serde_json::from_value(json).expect("a ConfigMap")
}

fn named(name: &str) -> ConfigMap {
    map(json!({ "metadata": { "name": name } }))
}

fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::default_namespaced(server.client())
}

fn status<T: std::fmt::Debug>(result: kube::Result<T>) -> Status {
    match result {
        Err(Error::Api(status)) => *status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn creates_reads_replaces_and_deletes() {
    let maps = maps(&ApiServer::new());
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    assert!(created.uid().is_some() && created.creation_timestamp().is_some());

    let mut changed = created.clone();
    changed.data = Some([("key".to_owned(), "value".to_owned())].into());
    let replaced = maps.replace("a", &PostParams::default(), &changed).await.expect("replaced");
    assert_ne!(replaced.resource_version(), created.resource_version());
    assert_eq!(maps.get("a").await.expect("read"), replaced);

    let deleted = maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    let status_of_deletion = deleted.right().expect("a status");
    assert!(status_of_deletion.is_success());
    let missing = status(maps.get("a").await);
    assert_eq!((missing.code, &*missing.message), (404, "configmaps \"a\" not found"));
}

#[tokio::test]
async fn a_stale_version_is_a_conflict() {
    let maps = maps(&ApiServer::new());
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let merge = Patch::Merge(json!({ "data": { "key": "value" } }));
    maps.patch("a", &PatchParams::default(), &merge).await.expect("patched");
    let stale = status(maps.replace("a", &PostParams::default(), &first).await);
    assert_eq!((stale.code, &*stale.reason), (409, "Conflict"));
    assert_eq!(
        stale.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please \
         apply your changes to the latest version and try again"
    );
    let exists = status(maps.create(&PostParams::default(), &named("a")).await);
    assert_eq!((exists.code, &*exists.message), (409, "configmaps \"a\" already exists"));
}

#[tokio::test]
async fn an_update_without_a_change_keeps_the_version() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let again = maps.replace("a", &PostParams::default(), &first).await.expect("replaced");
    assert_eq!(first, again);
    let empty = Patch::Merge(json!({}));
    let again = maps.patch("a", &PatchParams::default(), &empty).await.expect("patched");
    assert_eq!(first, again);
    let records = server.records();
    let last = records.last().expect("a record");
    assert_eq!((&*last.verb, last.version_before), ("patch", last.version_after));
}

#[tokio::test]
async fn lists_have_pages_at_one_version() {
    let server = ApiServer::new();
    let maps = maps(&server);
    for name in ["a", "b", "c", "d", "e"] {
        maps.create(&PostParams::default(), &named(name)).await.expect("created");
    }
    let page = ListParams::default().limit(2);
    let first = maps.list(&page).await.expect("a page");
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("c", &DeleteParams::default()).await.expect("deleted");
    let token = first.metadata.continue_.clone().expect("a token");
    let second = maps.list(&page.clone().continue_token(&token)).await.expect("a page");
    let names: Vec<_> = second.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);

    server.compact();
    let expired = status(maps.list(&page.continue_token(&token)).await);
    assert_eq!((expired.code, &*expired.reason), (410, "Expired"));
}

#[tokio::test]
async fn preconditions_guard_a_deletion() {
    let maps = maps(&ApiServer::new());
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let other = Preconditions { uid: Some("other".into()), resource_version: None };
    let params = DeleteParams::default().preconditions(other);
    let refused = status(maps.delete("a", &params).await);
    assert_eq!(refused.code, 409);
    assert_eq!(
        refused.message,
        format!(
            "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: UID in \
             precondition: other, UID in object meta: {}",
            created.uid().unwrap_or_default()
        )
    );
}

#[tokio::test]
async fn dependents_follow_their_owner() {
    for policy in
        [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan]
    {
        let server = ApiServer::new();
        let maps = maps(&server);
        let owner = maps.create(&PostParams::default(), &named("owner")).await.expect("created");
        let dependent = map(json!({ "metadata": {
            "name": "dependent",
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(),
                "blockOwnerDeletion": true,
            }],
        } }));
        maps.create(&PostParams::default(), &dependent).await.expect("created");
        let orphans = matches!(policy, PropagationPolicy::Orphan);
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        maps.delete("owner", &params).await.expect("deleted");
        assert_eq!(maps.get_opt("owner").await.expect("read"), None);
        let left = maps.get_opt("dependent").await.expect("read");
        assert_eq!(left.is_some(), orphans);
        assert!(left.is_none_or(|left| left.owner_references().is_empty()));
    }
}
