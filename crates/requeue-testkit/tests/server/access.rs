//! Permissions.

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use requeue_testkit::{Access, ApiServer};
use serde_json::json;

use crate::common::{from, named, refused};

fn rule(resources: &[&str], verbs: &[&str]) -> PolicyRule {
    from(json!({ "apiGroups": [""], "resources": resources, "verbs": verbs }))
}

#[tokio::test]
async fn a_user_may_do_what_the_rules_allow() {
    let server = ApiServer::new();
    let access = Access::user("tester")
        .allow([rule(&["configmaps"], &["get", "list"])])
        .allow_in("default", [rule(&["configmaps"], &["create"])]);
    let client = server.with_access(access).client();
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await.expect("a list");

    let patch = Patch::Merge(json!({}));
    let status = refused(maps.patch("a", &PatchParams::default(), &patch).await);
    assert_eq!((status.code, &*status.reason), (403, "Forbidden"));
    assert_eq!(
        status.message,
        "configmaps \"a\" is forbidden: User \"tester\" cannot patch resource \"configmaps\" in \
         API group \"\" in the namespace \"default\""
    );
    let status = refused(Api::<Secret>::all(client).list(&ListParams::default()).await);
    assert_eq!(
        status.message,
        "secrets is forbidden: User \"tester\" cannot list resource \"secrets\" in API group \"\" \
         at the cluster scope"
    );
    let last = server.records().pop().expect("a record");
    assert_eq!((&*last.user, last.code), ("tester", 403));
}

#[tokio::test]
async fn rules_distinguish_names_and_subresources() {
    let server = ApiServer::new();
    let mut named_rule = rule(&["configmaps"], &["get"]);
    named_rule.resource_names = Some(vec!["a".into()]);
    let access = Access::user("tester").allow([named_rule, rule(&["*/status"], &["patch"])]);
    let client = server.with_access(access).client();
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    assert_eq!(refused(maps.get("a").await).code, 404);
    assert_eq!(refused(maps.get("b").await).code, 403);
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::default_namespaced(client);
    let patch = Patch::Merge(json!({}));
    assert_eq!(refused(pods.patch_status("p", &PatchParams::default(), &patch).await).code, 404);
    assert_eq!(refused(pods.patch("p", &PatchParams::default(), &patch).await).code, 403);
}

#[tokio::test]
async fn an_apply_that_creates_needs_both_verbs() {
    let server = ApiServer::new();
    let access = Access::user("tester").allow([rule(&["configmaps"], &["patch"])]);
    let maps = Api::<ConfigMap>::default_namespaced(server.with_access(access).client());
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
    let patch = Patch::Apply(map);
    let params = PatchParams::apply("tests");
    let status = refused(maps.patch("a", &params, &patch).await);
    assert!(status.message.contains("cannot create resource"), "{status:?}");
    crate::common::maps(&server)
        .create(&PostParams::default(), &named("a"))
        .await
        .expect("created");
    maps.patch("a", &params, &patch).await.expect("applied");
}

#[tokio::test]
async fn a_user_may_ask_for_permissions() {
    let server = ApiServer::new();
    let access = Access::user("tester").allow([rule(&["configmaps"], &["get"])]);
    let reviews = Api::<SelfSubjectAccessReview>::all(server.with_access(access).client());
    for (verb, expected) in [("get", true), ("delete", false)] {
        let attributes = json!({ "verb": verb, "resource": "configmaps", "namespace": "default" });
        let review = from(json!({ "spec": { "resourceAttributes": attributes } }));
        let answer = reviews.create(&PostParams::default(), &review).await.expect("a review");
        assert_eq!(answer.status.expect("a status").allowed, expected);
    }
}

#[tokio::test]
async fn a_rule_with_names_allows_a_list_of_one_name() {
    let server = ApiServer::new();
    let mut named_rule = rule(&["configmaps"], &["list", "deletecollection"]);
    named_rule.resource_names = Some(vec!["a".into()]);
    let access = Access::user("tester").allow([named_rule]);
    let maps = Api::<ConfigMap>::default_namespaced(server.with_access(access).client());
    let fields = |fields: &str| ListParams::default().fields(fields);
    maps.list(&fields("metadata.name=a")).await.expect("a list");
    for other in ["", "metadata.name=b", "metadata.name!=a"] {
        assert_eq!(refused(maps.list(&fields(other)).await).code, 403, "{other}");
    }
    let one = fields("metadata.name=a");
    let deleted = maps.delete_collection(&DeleteParams::default(), &one).await;
    assert_eq!(refused(deleted).code, 403);
}
