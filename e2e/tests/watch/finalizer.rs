//! `--finalizer`: a deletion while the program does not run is not missed.

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{SHOW, Watching, allow, create, delete, json, maps, patch};

const OURS: &str = "example.com/cleanup";

/// Returns the finalizers of a ConfigMap, or `None` if it does not exist.
async fn finalizers(maps: &Api<ConfigMap>, name: &str) -> Option<Vec<String>> {
    let map = maps.get_opt(name).await.unwrap()?;
    Some(map.metadata.finalizers.unwrap_or_default())
}

#[tokio::test]
async fn what_is_deleted_while_nothing_runs_is_run_for_later() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "finalizer").await;
    create(&maps, "a", "1").await;
    let args = ["cm", "-n", &ns, "--finalizer", OURS, "-c", SHOW];
    let watching = Watching::start(server, "finalizer", &args);
    let a = format!("apply {ns}/a");
    let applied = watching.wait(&a, 1).await;
    // The finalizer is added before the first run, and causes no second run.
    assert_eq!(json(&applied[0])["metadata"]["finalizers"], json!([OURS]));
    create(&maps, "b", "1").await;
    watching.wait(&format!("apply {ns}/b"), 1).await;
    assert_eq!(watching.lines(&a).len(), 1);
    watching.end().await;

    delete(&maps, "a").await;
    assert_eq!(finalizers(&maps, "a").await, Some(vec![OURS.to_owned()]));
    // A deletion causes a run even if the object was skipped at the start and no value that counts
    // has changed.
    let args = [&["--initial", "skip", "--changed", "/data"], &args[..]].concat();
    let again = Watching::start(server, "finalizer-again", &args);
    let ended = again.wait(&format!("delete {ns}/a"), 1).await;
    assert_eq!(json(&ended[0])["data"]["value"], "1");
    until("the object is gone", async || finalizers(&maps, "a").await.is_none()).await;

    // If an object is deleted while the program runs, only its finalizer shows the deletion.
    delete(&maps, "b").await;
    until("the object is gone", async || finalizers(&maps, "b").await.is_none()).await;
    create(&maps, "c", "1").await;
    again.wait(&format!("apply {ns}/c"), 1).await;
    for gone in ["a", "b"] {
        assert_eq!(again.lines(&format!("delete {ns}/{gone}")).len(), 1, "{gone}");
    }
}

#[tokio::test]
async fn an_object_is_kept_until_a_run_succeeds_and_no_longer_than_others_want() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "kept").await;
    let theirs = json!({ "metadata": { "finalizers": ["example.com/other"] } });
    create(&maps, "a", "").await;
    patch(&maps, "a", &theirs).await;
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let script = format!("{SHOW}; [ \"$REQUEUE_EVENT\" = apply ] || [ -e '{go}' ]");
    let args = ["cm", "-n", &ns, "--finalizer", OURS, "--min-interval", "0"];
    let args =
        [&args[..], &["--base-delay", "10ms", "--max-delay", "10ms", "-c", &script]].concat();
    let watching = Watching::start(server, "kept", &args);
    watching.wait("apply", 1).await;
    let both = ["example.com/other", OURS].map(str::to_owned).to_vec();
    assert_eq!(finalizers(&maps, "a").await, Some(both.clone()));

    delete(&maps, "a").await;
    watching.wait("delete", 2).await;
    assert_eq!(finalizers(&maps, "a").await, Some(both));
    std::fs::write(go, "").unwrap();
    let other = Some(vec!["example.com/other".to_owned()]);
    until("our finalizer is removed", async || finalizers(&maps, "a").await == other).await;
    // The finalizer was removed after the last run. Later changes of the object cause no run.
    let runs = watching.lines("delete").len();
    patch(&maps, "a", &json!({ "data": { "value": "x" } })).await;
    patch(&maps, "a", &json!({ "metadata": { "finalizers": null } })).await;
    until("the object is gone", async || finalizers(&maps, "a").await.is_none()).await;
    create(&maps, "b", "").await;
    watching.wait(&format!("apply {ns}/b"), 1).await;
    assert_eq!(watching.lines("delete").len(), runs);
}

#[tokio::test]
async fn an_object_that_others_let_go_during_its_last_run_has_had_it() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "forced").await;
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let wait =
        format!("[ \"$REQUEUE_EVENT\" = apply ] || while [ ! -e '{go}' ]; do sleep 0.05; done");
    let script = format!("{SHOW}; {wait}");
    let args = ["cm", "-n", &ns, "--finalizer", OURS, "-j1", "--min-interval", "0", "-c", &script];
    let watching = Watching::start(server, "forced", &args);
    create(&maps, "a", "").await;
    watching.wait("apply", 1).await;
    delete(&maps, "a").await;
    watching.wait("delete", 1).await;
    patch(&maps, "a", &json!({ "metadata": { "finalizers": null } })).await;
    until("the object is gone", async || finalizers(&maps, "a").await.is_none()).await;
    std::fs::write(go, "").unwrap();
    // The objects run one after the other, each after all keys that were due before it.
    for name in ["b", "c"] {
        create(&maps, name, "").await;
        watching.wait(&format!("apply {ns}/{name}"), 1).await;
    }
    let log = watching.end().await;
    assert!(log.contains(" 4 runs") && log.contains(" 0 failures"), "{log}");
}

#[tokio::test]
async fn an_object_that_is_no_longer_selected_is_let_go() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "strayed").await;
    create(&maps, "a", "").await;
    patch(&maps, "a", &json!({ "metadata": { "labels": { "app": "web" } } })).await;
    let args = ["cm", "-n", &ns, "-l", "app=web", "--finalizer", OURS, "-c", SHOW];
    let watching = Watching::start(server, "strayed", &args);
    watching.wait("apply", 1).await;
    patch(&maps, "a", &json!({ "metadata": { "labels": null } })).await;
    watching.wait("delete", 1).await;
    until("the finalizer is removed", async || finalizers(&maps, "a").await == Some(vec![])).await;
}

#[tokio::test]
async fn who_may_no_longer_patch_is_told_and_goes_on_once_it_may() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "unpatched").await;
    let access = server.access().user("reader");
    let may_patch = async || {
        let review = json!({ "spec": { "resourceAttributes": {
            "namespace": ns, "resource": "configmaps", "verb": "patch",
        } } });
        let reviews: Api<SelfSubjectAccessReview> = Api::all(access.client().await);
        let review = serde_json::from_value(review).unwrap();
        let review = reviews.create(&PostParams::default(), &review).await.unwrap();
        review.status.unwrap().allowed
    };
    let rights = ["list", "watch", "patch"];
    allow(server, &ns, "reader", &rights).await;
    until("the user may patch", may_patch).await;
    let args = ["cm", "-n", &ns, "--finalizer", OURS, "--max-delay", "1s", "-c", SHOW];
    let watching = Watching::start_as(server, "unpatched", &access, &args);
    create(&maps, "first", "").await;
    watching.wait("apply", 1).await;
    allow(server, &ns, "reader", &rights[..2]).await;
    until("the user may not patch", async || !may_patch().await).await;
    create(&maps, "a", "").await;
    let said = format!("requeue: \"{ns}/a\": patch configmaps in namespace {ns}: 403: ");
    watching.wait(&said, 1).await;
    assert_eq!(watching.lines("apply").len(), 1);
    allow(server, &ns, "reader", &rights).await;
    watching.wait("apply", 2).await;
    assert_eq!(finalizers(&maps, "a").await, Some(vec![OURS.to_owned()]));
}

/// Checks that the program can recognise a lost race by the message of this answer, because other
/// errors have the same code.
#[tokio::test]
async fn a_json_patch_that_comes_too_late_has_a_message_of_its_own() {
    let Some(server) = Server::shared().await else { return };
    let (maps, _) = maps(server, "too-late").await;
    create(&maps, "a", "").await;
    let too_late = json!([{ "op": "test", "path": "/metadata/finalizers/0", "value": OURS }]);
    let too_late = Patch::Json::<ConfigMap>(serde_json::from_value(too_late).unwrap());
    let invalid = json!([{ "op": "add", "path": "/metadata/finalizers", "value": ["no domain!"] }]);
    let invalid = Patch::Json::<ConfigMap>(serde_json::from_value(invalid).unwrap());
    for (patch, is_race) in [(too_late, true), (invalid, false)] {
        let refused = maps.patch("a", &PatchParams::default(), &patch).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("{refused:?}") };
        let start = "the server rejected our request due to an error in our request";
        assert_eq!((status.code, status.message.starts_with(start)), (422, is_race), "{status:?}");
    }
}

#[tokio::test]
async fn what_is_only_shown_gets_and_loses_no_finalizer() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "dry").await;
    create(&maps, "a", "").await;
    create(&maps, "b", "").await;
    patch(&maps, "b", &json!({ "metadata": { "finalizers": [OURS] } })).await;
    delete(&maps, "b").await;
    let args = ["cm", "-n", &ns, "--finalizer", OURS, "--dry-run", "--", "echo"];
    let watching = Watching::start(server, "dry", &args);
    for name in ["a", "b"] {
        watching.wait(&format!("echo {ns}/{name}"), 1).await;
    }
    watching.end().await;
    assert_eq!(finalizers(&maps, "a").await, Some(vec![]));
    assert_eq!(finalizers(&maps, "b").await, Some(vec![OURS.to_owned()]));
}
