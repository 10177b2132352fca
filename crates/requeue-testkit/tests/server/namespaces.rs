//! Namespaces.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{from, named, refused};

#[tokio::test]
async fn objects_need_a_namespace_that_exists() {
    let client = ApiServer::new().client();
    let namespaces = Api::<Namespace>::all(client.clone());
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "team");
    let status = refused(maps.create(&PostParams::default(), &named("a")).await);
    assert_eq!((status.code, &*status.message), (404, "namespaces \"team\" not found"));

    let namespace: Namespace = from(json!({ "metadata": { "name": "team" } }));
    let created = namespaces.create(&PostParams::default(), &namespace).await.expect("created");
    assert_eq!(created.status.expect("a status").phase.as_deref(), Some("Active"));
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let everywhere = Api::<ConfigMap>::all(client).list(&ListParams::default()).await;
    assert_eq!(everywhere.expect("a list").items.len(), 1);
}

#[tokio::test]
async fn a_deleted_namespace_takes_its_contents_with_it() {
    let client = ApiServer::new().client();
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace: Namespace = from(json!({ "metadata": { "name": "team" } }));
    namespaces.create(&PostParams::default(), &namespace).await.expect("created");
    let maps = Api::<ConfigMap>::namespaced(client, "team");
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let held: ConfigMap =
        from(json!({ "metadata": { "name": "b", "finalizers": ["example.com/f"] } }));
    maps.create(&PostParams::default(), &held).await.expect("created");

    namespaces.delete("team", &DeleteParams::default()).await.expect("deleted");
    assert_eq!(maps.get_opt("a").await.expect("read"), None);
    let phase = namespaces.get("team").await.expect("it waits").status.expect("a status").phase;
    assert_eq!(phase.as_deref(), Some("Terminating"));
    let status = refused(maps.create(&PostParams::default(), &named("c")).await);
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "configmaps \"c\" is forbidden: unable to create new content in namespace team because it \
         is being terminated"
    );
    assert_eq!(status.details.expect("details").causes[0].reason, "NamespaceTerminating");
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    maps.patch("b", &PatchParams::default(), &none).await.expect("patched");
    assert_eq!(namespaces.get_opt("team").await.expect("read"), None);
}

#[tokio::test]
async fn a_namespace_keeps_its_finalizers_and_some_stay_for_ever() {
    let namespaces = Api::<Namespace>::all(ApiServer::new().client());
    let namespace: Namespace = from(json!({ "metadata": { "name": "team" } }));
    let created = namespaces.create(&PostParams::default(), &namespace).await.expect("created");
    let bare: Namespace = from(json!({ "metadata": { "name": "team" } }));
    let replaced = namespaces.replace("team", &PostParams::default(), &bare).await;
    let replaced = replaced.expect("replaced");
    assert_eq!((replaced.spec, replaced.metadata.labels), (created.spec, created.metadata.labels));
    for name in ["default", "kube-system", "kube-public"] {
        let status = refused(namespaces.delete(name, &DeleteParams::default()).await);
        assert_eq!(
            (status.code, status.message),
            (403, format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted"))
        );
    }
}

#[tokio::test]
async fn a_deleted_namespace_reports_that_its_content_is_gone() {
    let namespaces = Api::<Namespace>::all(ApiServer::new().client());
    let held: Namespace =
        from(json!({ "metadata": { "name": "a", "finalizers": ["example.com/hold"] } }));
    namespaces.create(&PostParams::default(), &held).await.expect("created");
    namespaces.delete("a", &DeleteParams::default()).await.expect("deleted");
    let waiting = namespaces.get("a").await.expect("it waits for its finalizer");
    assert_eq!(waiting.spec.and_then(|spec| spec.finalizers), None);
    let conditions = waiting.status.and_then(|status| status.conditions).unwrap_or_default();
    assert!(conditions.len() == 5 && conditions.iter().all(|it| it.status == "False"));
}
