//! A watch that cannot resume lists all objects again.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::{Api, Resource};
use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{Watching, create, delete, maps, patch};

/// A script that writes a line for each run. Runs for `fails` fail.
const SCRIPT: &str = r#"echo "run $REQUEUE_EVENT $REQUEUE_NAME"; [ "$REQUEUE_NAME" != fails ]"#;

const NAMES: [&str; 5] = ["changed", "gone", "recreated", "owner", "same"];

/// Creates a Secret that this ConfigMap owns.
async fn own(secrets: &Api<Secret>, maps: &Api<ConfigMap>, owner: &str, name: &str) {
    let owner = maps.get(owner).await.unwrap().owner_ref(&()).unwrap();
    let secret = json!({ "metadata": { "name": name, "ownerReferences": [owner] } });
    let secret = serde_json::from_value(secret).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
}

/// Runs `expire` in the middle of an outage, so that watches from before the outage get `410 Gone`.
async fn only_changes_run_after(server: &Server, expire: impl AsyncFnOnce(&Server)) {
    let (maps, ns) = maps(server, "relist").await;
    let secrets: Api<Secret> = Api::namespaced(server.client().await, &ns);
    for name in NAMES {
        create(&maps, name, "1").await;
    }
    own(&secrets, &maps, "owner", "of-owner").await;
    let proxy = server.proxy().await;
    let access = server.access().through(&proxy);
    // The program runs one command at a time, in the order of the events. An add would end a
    // backoff.
    let args =
        ["cm", "-n", &ns, "-j1", "--min-interval", "0", "--order", "fifo", "--initial", "skip"];
    let related = ["--owns", "secrets", "--all-on", "secrets/none"];
    let failing = ["--base-delay", "1h", "--max-delay", "1h", "--re-add", "replace"];
    let args = [&args[..], &related, &failing, &["-c", SCRIPT]].concat();
    let watching = Watching::start_as(server, "relist", &access, &args);
    let mut made = 0;
    until("both watches have listed", async || {
        made += 1;
        create(&maps, &format!("new-{made}"), "").await;
        own(&secrets, &maps, "same", &format!("new-{made}")).await;
        !watching.lines("run apply new-").is_empty() && !watching.lines("run apply same").is_empty()
    })
    .await;
    create(&maps, "fails", "").await;
    watching.wait("run apply fails", 1).await;
    everything_has_run(&watching, &maps, &secrets, "z-before").await;
    let before = watching.lines("run ").len();

    proxy.down();
    until("all connections are closed", async || proxy.connections() == 0).await;
    patch(&maps, "changed", &json!({ "data": { "value": "2" } })).await;
    delete(&maps, "gone").await;
    delete(&maps, "recreated").await;
    create(&maps, "recreated", "1").await;
    secrets.delete("of-owner", &Default::default()).await.unwrap();
    expire(server).await;
    proxy.up();
    watching.wait("run delete gone", 1).await;
    everything_has_run(&watching, &maps, &secrets, "z-after").await;
    let mut runs = watching.lines("run ").split_off(before);
    runs.sort_unstable();
    let expected = [
        "apply changed",
        "apply owner",
        "apply recreated",
        "apply z-after",
        "apply z-after",
        "delete gone",
    ];
    assert_eq!(runs, expected.map(|run| format!("run {run}")));
}

/// Waits until all events of both watches have run. The object `name` comes after all other
/// objects, by its time or in a list.
async fn everything_has_run(
    watching: &Watching,
    maps: &Api<ConfigMap>,
    secrets: &Api<Secret>,
    name: &str,
) {
    create(maps, name, "").await;
    let line = format!("run apply {name}");
    watching.wait(&line, 1).await;
    own(secrets, maps, name, name).await;
    watching.wait(&line, 2).await;
}

#[tokio::test]
async fn only_changed_objects_run_after_410_gone() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    only_changes_run_after(&server, async |server| server.compact().await).await;
}

#[tokio::test]
async fn only_changed_objects_run_after_the_api_server_was_restarted() {
    let Some(server) = Server::start().await else { return };
    only_changes_run_after(&server, async |server| server.apiserver().restart().await).await;
}
