//! The events that cause a run, and events that cause none.

use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{SHOW, Watching, create, delete, maps, patch};

#[tokio::test]
async fn what_is_there_at_the_start_can_be_left_out() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "skip").await;
    create(&maps, "there", "").await;
    let args = ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--initial", "skip", "-c", SHOW];
    let watching = Watching::start(server, "skip", &args);
    // Objects are observed in order. An object that was created before the list is in the list.
    let mut made = 0;
    until("something new has run", async || {
        create(&maps, &format!("new-{made}"), "").await;
        made += 1;
        watching.has_written("apply")
    })
    .await;
    assert!(watching.lines(&format!("apply {ns}/there")).is_empty());
    delete(&maps, "there").await;
    watching.wait(&format!("delete {ns}/there"), 1).await;
}

#[tokio::test]
async fn one_event_of_the_two_can_be_left_out() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "on").await;
    create(&maps, "a", "").await;
    let one = |on| {
        let args = ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--on", on, "-c", SHOW];
        Watching::start(server, on, &args)
    };
    let (applies, deletes) = (one("apply"), one("delete"));
    applies.wait(&format!("apply {ns}/a"), 1).await;
    delete(&maps, "a").await;
    // The first object may have been deleted before this watch began.
    let mut made = 0;
    until("a deletion is seen", async || {
        create(&maps, &format!("b{made}"), "").await;
        applies.wait(&format!("apply {ns}/b{made}"), 1).await;
        delete(&maps, &format!("b{made}")).await;
        made += 1;
        deletes.has_written("delete")
    })
    .await;
    create(&maps, "last", "").await;
    applies.wait(&format!("apply {ns}/last"), 1).await;
    assert!(applies.lines("delete").is_empty());
    assert!(deletes.lines("apply").is_empty());
}

#[tokio::test]
async fn only_changes_that_are_asked_for_count() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "changed").await;
    create(&maps, "a", "1").await;
    let args = ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--changed", "/data", "-c", SHOW];
    let watching = Watching::start(server, "changed", &args);
    let a = format!("apply {ns}/a");
    watching.wait(&a, 1).await;
    patch(&maps, "a", &json!({ "metadata": { "labels": { "x": "y" } } })).await;
    // This object is observed after the change of labels. A run for that change would have begun by
    // then.
    create(&maps, "b", "1").await;
    watching.wait(&format!("apply {ns}/b"), 1).await;
    assert_eq!(watching.lines(&a).len(), 1);
    patch(&maps, "a", &json!({ "data": { "value": "2" } })).await;
    let runs = watching.wait(&a, 2).await;
    // The object is complete and current.
    assert!(runs[1].contains(r#""x":"y""#), "{runs:?}");
}

#[tokio::test]
async fn each_object_comes_again_with_every_resync() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "resync").await;
    for name in ["a", "b"] {
        create(&maps, name, "").await;
    }
    let args = ["cm", "-n", &ns, "--min-interval", "0", "--resync", "100ms", "-c", SHOW];
    let watching = Watching::start(server, "resync", &args);
    for name in ["a", "b"] {
        watching.wait(&format!("apply {ns}/{name}"), 3).await;
    }
}
