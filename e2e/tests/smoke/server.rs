//! The functions of a server without faults.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{config_map, create, maps, through};

#[tokio::test]
async fn a_config_map_is_made_read_changed_and_deleted() {
    let Some(server) = Server::shared().await else { return };
    let maps = maps(server, "crud").await;
    create(&maps, "one").await;

    let change = Patch::Merge(json!({ "data": { "colour": "green" } }));
    maps.patch("one", &PatchParams::default(), &change).await.unwrap();
    let read = maps.get("one").await.unwrap();
    assert_eq!(read.data.unwrap()["colour"], "green");

    maps.delete("one", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("one").await.unwrap().is_none());
}

#[tokio::test]
async fn its_version_is_stamped() {
    let Some(server) = Server::shared().await else { return };
    let version = server.client().await.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "37"));
    assert!(version.git_version.starts_with("v1.37."), "{}", version.git_version);
}

#[tokio::test]
async fn its_kubeconfig_is_one_for_programs() {
    let Some(server) = Server::shared().await else { return };
    let file = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(Client::try_from(config).unwrap());
    namespaces.get("default").await.unwrap();
}

#[tokio::test]
async fn users_and_service_accounts_are_held_to_rbac() {
    let Some(server) = Server::shared().await else { return };
    let admin = maps(server, "rbac").await;
    create(&admin, "one").await;
    let namespace = admin.namespace().unwrap();
    let user = through(server.client_as("ada").await, &admin);
    let account = server.access().service_account(namespace, "robot").client().await;
    let account = through(account, &admin);
    for forbidden in [&user, &account] {
        let err = forbidden.get("one").await.unwrap_err();
        assert!(matches!(err, kube::Error::Api(status) if status.code == 403));
    }

    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "reader" },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "readers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [
            { "kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io" },
            { "kind": "ServiceAccount", "name": "robot", "namespace": namespace },
        ],
    }))
    .unwrap();
    let client = server.client().await;
    let post = PostParams::default();
    Api::namespaced(client.clone(), namespace).create(&post, &role).await.unwrap();
    Api::namespaced(client, namespace).create(&post, &binding).await.unwrap();
    for allowed in [&user, &account] {
        until("the role has an effect", async || allowed.get("one").await.is_ok()).await;
        let err = allowed.delete("one", &DeleteParams::default()).await.unwrap_err();
        assert!(matches!(err, kube::Error::Api(status) if status.code == 403));
    }
}

#[tokio::test]
async fn what_is_owned_is_collected() {
    let Some(server) = Server::shared().await else { return };
    let maps = maps(server, "owned").await;
    create(&maps, "owner").await;
    let owner = maps.get("owner").await.unwrap();
    let mut owned: ConfigMap = config_map("owned");
    owned.metadata.owner_references = owner.owner_ref(&()).map(|owner| vec![owner]);
    maps.create(&PostParams::default(), &owned).await.unwrap();

    maps.delete("owner", &DeleteParams::default()).await.unwrap();
    until("the owned object is gone", async || maps.get_opt("owned").await.unwrap().is_none())
        .await;
}

#[tokio::test]
async fn a_namespace_is_deleted_with_what_is_in_it() {
    let Some(server) = Server::shared().await else { return };
    let maps = maps(server, "deleted").await;
    create(&maps, "one").await;
    let namespaces: Api<Namespace> = Api::all(server.client().await);
    let name = maps.namespace().unwrap();
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    until("the namespace is gone", async || namespaces.get_opt(name).await.unwrap().is_none())
        .await;
    assert!(maps.get_opt("one").await.unwrap().is_none());
}
