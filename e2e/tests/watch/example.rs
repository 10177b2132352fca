//! Runs the example unchanged, with a substitute for kubectl that supports the commands in the
//! example.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{create, delete, patch};

/// Returns the content of the copy in a namespace.
async fn copied(copy: &Api<ConfigMap>) -> Option<String> {
    let map = copy.get_opt("shared").await.unwrap()?;
    map.data?.remove("value")
}

#[tokio::test]
async fn a_config_map_has_its_copy_in_every_namespace() {
    // The example works on all namespaces, so it needs a separate server.
    let Some(server) = Server::start().await else { return };
    let client = server.client().await;
    let original: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    create(&original, "shared", "1").await;
    let early = server.namespace("early").await;

    let programs = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_e2e-requeue"), programs.path().join("requeue")).unwrap();
    symlink(env!("CARGO_BIN_EXE_e2e-kubectl"), programs.path().join("kubectl")).unwrap();
    let script = "../crates/requeue-cli/examples/copy-configmap.sh";
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(script);
    command.env("PATH", path).env("KUBECONFIG", server.kubeconfig()).env("RESYNC", "1s");
    let example = server.spawn("example", command);

    let late = server.namespace("late").await;
    for namespace in [&early, &late] {
        let copy: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        until("the copy exists", async || copied(&copy).await.as_deref() == Some("1")).await;
    }
    patch(&original, "shared", &json!({ "data": { "value": "2" } })).await;
    let copy: Api<ConfigMap> = Api::namespaced(client.clone(), &late);
    until("the copy has changed, too", async || copied(&copy).await.as_deref() == Some("2")).await;
    delete(&copy, "shared").await;
    until("the copy is back", async || copied(&copy).await.is_some()).await;
    example.terminate().await;
    assert!(!example.log().contains("this is no kubectl"), "{}", example.log());
}
