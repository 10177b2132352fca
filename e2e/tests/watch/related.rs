//! Runs for changes of other objects.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use requeue_e2e::{Server, until};
use serde_json::{Value, json};

use crate::support::{Watching, create, delete, maps};

const SAY: &str = r#"echo "$REQUEUE_EVENT $1 <""#;

async fn secrets(server: &Server, namespace: &str) -> Api<Secret> {
    Api::namespaced(server.client().await, namespace)
}

async fn make(secrets: &Api<Secret>, name: &str, owners: &[Value]) {
    let secret = json!({ "metadata": { "name": name, "ownerReferences": owners } });
    let secret = serde_json::from_value(secret).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
}

async fn touch<K>(objects: &Api<K>, name: &str, label: &str)
where
    K: Resource<Scope = NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "touched": label } } }));
    objects.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Returns a reference to an owner, whose group may differ from the usual group of its kind.
fn reference(owner: &impl Resource<DynamicType = ()>, api_version: &str, kind: &str) -> Value {
    let meta = owner.meta();
    json!({ "apiVersion": api_version, "kind": kind, "name": meta.name, "uid": meta.uid })
}

#[tokio::test]
async fn an_object_comes_when_something_it_owns_changes() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "owns").await;
    let secrets = secrets(server, &ns).await;
    for name in ["a", "b", "c", "d"] {
        create(&maps, name, "").await;
    }
    let owner = async |name| reference(&maps.get(name).await.unwrap(), "v1", "ConfigMap");
    let args = ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--owns", "secrets", "-c", SAY];
    let watching = Watching::start(server, "owns", &args);
    let line = |name: &str| format!("apply {ns}/{name} <");
    for name in ["a", "b", "c", "d"] {
        watching.wait(&line(name), 1).await;
    }

    // The second watch may not have begun yet.
    let both = [owner("a").await, owner("b").await];
    make(&secrets, "child", &both).await;
    let mut touched = 0;
    until("an owner has run", async || {
        touched += 1;
        touch(&secrets, "child", &touched.to_string()).await;
        watching.lines(&line("a")).len() > 1
    })
    .await;
    watching.wait(&line("b"), 2).await;
    make(&secrets, "of-d", &[owner("d").await]).await;
    watching.wait(&line("d"), 2).await;
    secrets.delete("of-d", &Default::default()).await.unwrap();
    watching.wait(&line("d"), 3).await;

    // An object without an owner, and objects with an owner of another kind or group.
    let c = maps.get("c").await.unwrap();
    let others = [reference(&c, "v1", "Secret"), reference(&c, "example.com/v1", "ConfigMap")];
    make(&secrets, "nobodys", &[]).await;
    make(&secrets, "others", &others).await;
    make(&secrets, "of-d", &[owner("d").await]).await;
    watching.wait(&line("d"), 4).await;
    assert_eq!(watching.lines(&line("c")).len(), 1);
}

#[tokio::test]
async fn an_owner_that_has_no_namespace_comes_by_its_name() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("owner").await;
    let namespaces: Api<Namespace> = Api::all(server.client().await);
    let owner = reference(&namespaces.get(&ns).await.unwrap(), "v1", "Namespace");
    let secrets = secrets(server, &ns).await;
    let selector = format!("kubernetes.io/metadata.name={ns}");
    let args = ["ns", "-l", &selector, "-n", &ns, "--min-interval", "0", "--owns", "secrets"];
    let watching = Watching::start(server, "owner", &[&args[..], &["-c", SAY]].concat());
    watching.wait(&format!("apply {ns} <"), 1).await;
    make(&secrets, "child", &[owner]).await;
    let mut touched = 0;
    until("the owner has run", async || {
        touched += 1;
        touch(&secrets, "child", &touched.to_string()).await;
        watching.lines(&format!("apply {ns} <")).len() > 1
    })
    .await;
    assert!(watching.lines(&format!("apply {ns}/")).is_empty());
}

#[tokio::test]
async fn all_come_when_what_they_all_depend_on_changes() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "all-on").await;
    let secrets = secrets(server, &ns).await;
    for name in ["a", "b", "gone"] {
        create(&maps, name, "").await;
    }
    make(&secrets, "settings", &[]).await;
    let args = ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--all-on", "secrets/settings"];
    let watching = Watching::start(server, "all-on", &[&args[..], &["-c", SAY]].concat());
    let line = |name: &str| format!("apply {ns}/{name} <");
    for name in ["a", "b", "gone"] {
        watching.wait(&line(name), 1).await;
    }
    delete(&maps, "gone").await;
    watching.wait(&format!("delete {ns}/gone <"), 1).await;

    let mut touched = 0;
    until("all objects have run", async || {
        touched += 1;
        touch(&secrets, "settings", &touched.to_string()).await;
        ["a", "b"].iter().all(|name| watching.lines(&line(name)).len() > 1)
    })
    .await;
    assert_eq!(watching.lines(&format!("delete {ns}/gone <")).len(), 1);
}
