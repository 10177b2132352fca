//! ConfigMaps: the input of commands, and the times of their runs.

use requeue_e2e::Server;
use serde_json::json;

use crate::support::{SHOW, Watching, create, delete, json, maps, patch};

#[tokio::test]
async fn a_command_runs_for_what_is_there_what_changes_and_what_is_deleted() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "maps").await;
    create(&maps, "there", "1").await;
    let watching = Watching::start(server, "maps", &["cm", "-n", &ns, "-c", SHOW]);

    let there = watching.wait(&format!("apply {ns}/there"), 1).await;
    let there = json(&there[0]);
    assert_eq!((&there["kind"], &there["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(there["data"]["value"], "1");
    assert_eq!(there["metadata"]["name"], "there");
    assert_eq!(there["metadata"].get("managedFields"), None);

    create(&maps, "new", "1").await;
    watching.wait(&format!("apply {ns}/new"), 1).await;
    patch(&maps, "new", &json!({ "data": { "value": "2" } })).await;
    let new = watching.wait(&format!("apply {ns}/new"), 2).await;
    assert_eq!(json(&new[1])["data"]["value"], "2");

    delete(&maps, "new").await;
    let gone = watching.wait(&format!("delete {ns}/new"), 1).await;
    assert_eq!(json(&gone[0])["data"]["value"], "2");
    let log = watching.end().await;
    assert!(log.contains("4 runs"), "{log}");
}

#[tokio::test]
async fn what_is_gone_is_known_until_a_run_succeeds() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "gone").await;
    create(&maps, "a", "last").await;
    let script = format!("{SHOW}; [ \"$REQUEUE_EVENT $REQUEUE_ATTEMPT\" != 'delete 1' ]");
    let args = ["configmaps", "-n", &ns, "--base-delay", "10ms", "-c", &script];
    let watching = Watching::start(server, "gone", &args);
    watching.wait("apply", 1).await;

    delete(&maps, "a").await;
    let gone = watching.wait("delete", 2).await;
    assert_eq!(gone[0], gone[1]);
    assert!(gone[0].contains("last"), "{gone:?}");
    // Creates another object with the same name.
    create(&maps, "a", "other").await;
    let there = watching.wait("apply", 2).await;
    assert!(there[1].contains("other"), "{there:?}");
}

#[tokio::test]
async fn an_object_that_is_not_read_is_no_failure() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "unread").await;
    // The object contains more data than a pipe can hold.
    create(&maps, "large", &"x".repeat(500_000)).await;
    let args = ["cm", "-n", &ns, "--summary", "json", "-c", "echo ran"];
    let watching = Watching::start(server, "unread", &args);
    watching.wait("ran", 1).await;
    create(&maps, "small", "").await;
    watching.wait("ran", 2).await;
    let log = watching.end().await;
    let summary = json(log.lines().last().unwrap());
    assert_eq!((&summary["done"], &summary["failures"]), (&json!(2), &json!(0)), "{summary}");
}
