//! Custom resources, whose objects have generations, and objects of the cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResource, CustomResourceExt};
use requeue_e2e::{Server, until};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::Watching;

#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug)]
#[kube(group = "watch.example.com", version = "v1", kind = "Gadget", namespaced)]
#[kube(shortname = "gdg", status = "GadgetStatus")]
struct GadgetSpec {
    size: u32,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
struct GadgetStatus {
    size: u32,
}

/// Returns the gadgets of a new namespace.
async fn gadgets(server: &Server, prefix: &str) -> (Api<Gadget>, String) {
    let client = server.client().await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("test").force();
    crds.patch(Gadget::crd_name(), &params, &Patch::Apply(Gadget::crd())).await.unwrap();
    let namespace = server.namespace(prefix).await;
    let gadgets: Api<Gadget> = Api::namespaced(client, &namespace);
    until("gadgets are served", async || gadgets.list(&Default::default()).await.is_ok()).await;
    (gadgets, namespace)
}

async fn patch(gadgets: &Api<Gadget>, name: &str, patch: &Value) {
    gadgets.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

/// Options for a backoff of an hour after a failure.
const AN_HOUR: [&str; 6] = ["--min-interval", "0", "--base-delay", "1h", "--max-delay", "1h"];
const FAIL: &str = r#"echo "$REQUEUE_EVENT $1 $REQUEUE_ATTEMPT $(cat)"; exit 1"#;

#[tokio::test]
async fn what_fails_waits_unless_something_else_is_wanted_of_it() {
    let Some(server) = Server::shared().await else { return };
    let (gadgets, ns) = gadgets(server, "generation").await;
    let gadget = |name| Gadget::new(name, GadgetSpec { size: 1 });
    gadgets.create(&PostParams::default(), &gadget("a")).await.unwrap();
    let args = [&AN_HOUR[..], &["Gadget", "-j1", "-n", &ns, "-c", FAIL]].concat();
    let watching = Watching::start(server, "generation", &args);
    let a = format!("apply {ns}/a");
    watching.wait(&a, 1).await;

    // A change of the status is not a new generation, so only the later key runs.
    let params = PatchParams::default();
    let status = Patch::Merge(json!({ "status": { "size": 1 } }));
    gadgets.patch_status("a", &params, &status).await.unwrap();
    gadgets.create(&PostParams::default(), &gadget("b")).await.unwrap();
    watching.wait(&format!("apply {ns}/b"), 1).await;
    assert_eq!(watching.lines(&a).len(), 1);

    patch(&gadgets, "a", &json!({ "spec": { "size": 2 } })).await;
    let runs = watching.wait(&a, 2).await;
    assert!(runs[1].starts_with("1 "), "{runs:?}");
    assert!(runs[1].contains(r#""size":2"#), "{runs:?}");
    gadgets.delete("a", &Default::default()).await.unwrap();
    let gone = watching.wait(&format!("delete {ns}/a"), 1).await;
    assert!(gone[0].starts_with("1 "), "{gone:?}");
}

#[tokio::test]
async fn a_new_generation_during_a_run_that_fails_does_not_wait_for_it() {
    let Some(server) = Server::shared().await else { return };
    let (gadgets, ns) = gadgets(server, "during").await;
    let gadget = Gadget::new("a", GadgetSpec { size: 1 });
    gadgets.create(&PostParams::default(), &gadget).await.unwrap();
    // The first run lasts until another run of its object has been requested. The run of another
    // object shows that the request has arrived.
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let script = format!(
        r#"echo "apply $1 $REQUEUE_ATTEMPT $(cat)"
        while [ ! -e '{go}' ]; do sleep 0.05; done; exit 1"#
    );
    let args = [&AN_HOUR[..], &["gdg", "-n", &ns, "-c", &script]].concat();
    let watching = Watching::start(server, "during", &args);
    watching.wait("apply", 1).await;
    patch(&gadgets, "a", &json!({ "spec": { "size": 2 } })).await;
    // This object is observed after the change.
    let gadget = Gadget::new("b", GadgetSpec { size: 1 });
    gadgets.create(&PostParams::default(), &gadget).await.unwrap();
    watching.wait(&format!("apply {ns}/b"), 1).await;
    std::fs::write(&go, "").unwrap();
    let runs = watching.wait(&format!("apply {ns}/a"), 2).await;
    assert!(runs[1].starts_with("1 ") && runs[1].contains(r#""size":2"#), "{runs:?}");
}

#[tokio::test]
async fn an_object_of_the_cluster_has_its_name_for_a_key() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("cluster").await;
    let show = r#"echo "$1 $REQUEUE_NAME [$REQUEUE_NAMESPACE]""#;
    // The namespace has no effect here, as with kubectl.
    let args = ["namespaces", "-n", &ns, "-c", show];
    let watching = Watching::start(server, "cluster", &args);
    assert_eq!(watching.wait(&format!("{ns} "), 1).await, [format!("{ns} []")]);
    watching.wait("default ", 1).await;
}

/// Writes an object as JSON. The object is nested more deeply than kube's clients decode.
async fn put(client: &Client, method: &str, path: &str, body: String) {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("Content-Type", kind);
    client.request_text(request.body(body.into_bytes()).unwrap()).await.unwrap();
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_is_named_and_keeps_no_other_from_its_run() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "nests.watch.example.com" },
        "spec": {
            "group": "watch.example.com",
            "scope": "Namespaced",
            "names": { "kind": "Nest", "plural": "nests" },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                } },
            }],
        },
    });
    let params = PatchParams::apply("test").force();
    crds.patch("nests.watch.example.com", &params, &Patch::Apply(crd)).await.unwrap();
    let (tenant, hostile) = (server.namespace("tenant").await, server.namespace("hostile").await);
    let path = |namespace: &str| format!("/apis/watch.example.com/v1/namespaces/{namespace}/nests");
    let list = path(&tenant);
    until("nests are served", async || {
        let request = http::Request::get(&list).body(Vec::new()).unwrap();
        client.request_text(request).await.is_ok()
    })
    .await;
    let nest = |name: &str, levels: usize| {
        let spec = format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        let (version, kind) = ("watch.example.com/v1", "Nest");
        format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
        )
    };
    put(&client, "POST", &path(&hostile), nest("deep", 130)).await;
    put(&client, "POST", &path(&tenant), nest("a", 10)).await;

    // The object may be in the list or in the watch, as a main object, an owned object or a
    // snapshot.
    let show = r#"echo "$REQUEUE_EVENT $1""#;
    let args = ["nests", "-A", "--owns", "nests", "--snapshot", "nests=nests", "-c", show];
    let watching = Watching::start(server, "hostile", &args);
    watching.wait(&format!("apply {tenant}/a"), 1).await;
    let named = format!("{hostile}/deep");
    until("the object is named", async || watching.log().contains(&named)).await;
    let deeper = path(&hostile) + "/deep";
    put(&client, "PATCH", &deeper, r#"{"metadata":{"labels":{"a":"b"}}}"#.to_owned()).await;
    put(&client, "POST", &path(&hostile), nest("deeper", 500)).await;
    put(&client, "POST", &path(&tenant), nest("b", 10)).await;
    watching.wait(&format!("apply {tenant}/b"), 1).await;
    put(&client, "DELETE", &deeper, String::new()).await;
    put(&client, "POST", &path(&tenant), nest("c", 10)).await;
    watching.wait(&format!("apply {tenant}/c"), 1).await;
    let log = watching.end().await;
    assert!(log.contains("cannot be decoded: recursion limit exceeded"), "{log}");
    assert!(!log.contains(&format!("apply {hostile}/")), "{log}");
}
