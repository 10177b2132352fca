//! The Helm chart of `requeue watch`: its permissions are sufficient for the options that it sets.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use requeue_e2e::{Server, apply, objects, until};
use requeue_servers::did_not_run;
use serde_json::json;

use crate::support::{Watching, delete, maps, patch};

/// Returns the manifest of the chart for a release, or `None` without the program `helm`.
fn render(release: &str, namespace: &str, values: &Path) -> Option<String> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart");
    let mut helm = Command::new("helm");
    helm.args(["template", release, "--namespace", namespace, "--kube-version", "1.34.0"]);
    helm.arg("--values").arg(values).arg(chart);
    let Ok(output) = helm.output() else {
        did_not_run("there is no helm here");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm: {said}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Returns the arguments of the container, as Kubernetes passes them, with a port of this machine.
fn arguments(manifest: &str) -> Vec<String> {
    let objects = objects(manifest);
    let deployment =
        objects.iter().find(|object| object.types.as_ref().unwrap().kind == "Deployment");
    let container = &deployment.unwrap().data["spec"]["template"]["spec"]["containers"][0];
    let args: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    assert_eq!(args[0], "watch");
    let args = args[1..].iter().map(|arg| match arg.strip_prefix("--serve=") {
        Some(_) => "--serve=127.0.0.1:0".to_owned(),
        None => arg.replace("$$", "$"),
    });
    args.collect()
}

#[tokio::test]
async fn a_release_of_the_chart_has_the_permissions_that_its_options_need() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "chart").await;
    let values = json!({
        "image": { "repository": "requeue" },
        "watch": {
            "resource": { "group": "", "plural": "configmaps" },
            "selector": "app=web",
            "finalizer": "example.com/cleanup",
            "owns": [{ "group": "apps", "plural": "deployments" }],
            "allOn": [{ "plural": "secrets", "name": "settings" }],
            "snapshots": [{ "name": "nodes", "plural": "nodes", "clusterScoped": true }],
            "script": "n=$(cat \"$REQUEUE_SNAPSHOTS/nodes.json\"); echo \"$REQUEUE_EVENT $1 $n <\"",
        },
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("values.yaml");
    // JSON is also valid YAML.
    std::fs::write(&file, values.to_string()).unwrap();
    let Some(manifest) = render("web", &ns, &file) else { return };
    apply(server.client().await, &manifest).await;
    let account = server.access().service_account(&ns, "web");
    let theirs: Api<ConfigMap> = Api::namespaced(account.clone().client().await, &ns);
    until("the role has an effect", async || theirs.list(&Default::default()).await.is_ok()).await;
    // The rule for the Secret permits no other Secret.
    let secrets: Api<Secret> = Api::namespaced(account.clone().client().await, &ns);
    let named = ListParams::default().fields("metadata.name=settings");
    secrets.list(&named).await.expect("the named Secret is permitted");
    secrets.list(&Default::default()).await.expect_err("other Secrets are not permitted");

    let arguments = arguments(&manifest);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let watching = Watching::start_as(server, "chart", &account, &arguments);
    watching.wait(&format!("requeue: leading with the Lease {ns}/web"), 1).await;
    let map = json!({ "metadata": { "name": "a", "labels": { "app": "web" } } });
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    maps.create(&Default::default(), &map).await.unwrap();
    watching.wait(&format!("apply {ns}/a ["), 1).await;
    assert_eq!(maps.get("a").await.unwrap().finalizers(), ["example.com/cleanup"]);
    patch(&maps, "a", &json!({ "data": { "value": "2" } })).await;
    watching.wait(&format!("apply {ns}/a ["), 2).await;
    delete(&maps, "a").await;
    watching.wait(&format!("delete {ns}/a ["), 1).await;
    until("the object is gone", async || maps.get_opt("a").await.unwrap().is_none()).await;
    let log = watching.end().await;
    assert!(!log.contains("forbidden") && !log.contains("may not"), "{log}");
}

/// A rule without the name would permit all objects of the resource, such as all Secrets of a namespace.
#[test]
fn a_name_in_all_on_permits_that_object_alone() {
    let settings = |cluster_scoped| {
        json!([
            { "plural": "secrets", "name": "settings" },
            { "group": "example.com", "plural": "regions", "name": "eu", "clusterScoped": cluster_scoped },
            { "plural": "nodes", "clusterScoped": true },
        ])
    };
    for (namespaces, cluster_scoped) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let values = json!({
            "image": { "repository": "requeue" },
            "watch": {
                "resource": { "group": "", "plural": "configmaps" },
                "allNamespaces": namespaces,
                "allOn": settings(cluster_scoped),
                // The name of a snapshot is not the name of an object.
                "snapshots": [{ "name": "pods", "plural": "pods" }],
                "command": ["echo", "{}"],
            },
        });
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("values.yaml");
        std::fs::write(&file, values.to_string()).unwrap();
        let Some(manifest) = render("web", "web", &file) else { return };
        let objects = objects(&manifest);
        let rules = objects.iter().filter_map(|object| object.data["rules"].as_array()).flatten();
        let mut found: Vec<_> = rules
            .filter(|rule| rule["verbs"] == json!(["list", "watch"]))
            .map(|rule| {
                let name = rule["resourceNames"][0].as_str().map(str::to_owned);
                (rule["resources"][0].as_str().unwrap().to_owned(), name)
            })
            .collect();
        found.sort();
        let expected = [
            ("configmaps", None),
            ("nodes", None),
            ("pods", None),
            ("regions", Some("eu")),
            ("secrets", Some("settings")),
        ];
        let expected = expected.map(|(it, name)| (it.to_owned(), name.map(str::to_owned)));
        assert_eq!(found, expected, "{manifest}");
    }
}

#[tokio::test]
async fn a_release_whose_pod_is_killed_neither_loses_nor_doubles_a_run() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "chart-killed").await;
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let script = format!(
        r#"echo "start $REQUEUE_EVENT $1 <"
        [ "$REQUEUE_NAME" != slow ] || while [ ! -e '{go}' ]; do sleep 0.05; done
        echo "end $REQUEUE_EVENT $1 <""#
    );
    let values = json!({
        "image": { "repository": "requeue" },
        "watch": {
            "resource": { "group": "", "plural": "configmaps" },
            "selector": "app=web",
            "finalizer": "example.com/cleanup",
            "options": ["--lease-duration=6s", "--renew-deadline=2s", "--retry-period=500ms"],
            "script": script,
        },
    });
    let file = dir.path().join("values.yaml");
    std::fs::write(&file, values.to_string()).unwrap();
    let Some(manifest) = render("web", &ns, &file) else { return };
    apply(server.client().await, &manifest).await;
    let account = server.access().service_account(&ns, "web");
    let theirs: Api<ConfigMap> = Api::namespaced(account.clone().client().await, &ns);
    until("the role has an effect", async || theirs.list(&Default::default()).await.is_ok()).await;
    let arguments = arguments(&manifest);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let create = async |name: &str| {
        let map = json!({ "metadata": { "name": name, "labels": { "app": "web" } } });
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        maps.create(&Default::default(), &map).await.unwrap();
    };

    let first = Watching::start_as(server, "chart-killed-first", &account, &arguments);
    first.wait(&format!("requeue: leading with the Lease {ns}/web"), 1).await;
    let second = Watching::start_as(server, "chart-killed-second", &account, &arguments);
    second.wait("requeue: on standby", 1).await;
    create("a").await;
    create("b").await;
    for name in ["a", "b"] {
        first.wait(&format!("end apply {ns}/{name} <"), 1).await;
    }
    create("slow").await;
    first.wait(&format!("start apply {ns}/slow <"), 1).await;
    first.kill().await;

    // These changes happen while no replica leads.
    delete(&maps, "a").await;
    patch(&maps, "b", &json!({ "data": { "value": "2" } })).await;
    create("new").await;
    std::fs::write(&go, "").unwrap();
    for ended in ["delete", "apply"].map(|event| format!("end {event} {ns}/")) {
        second.wait(&ended, if ended.contains("delete") { 1 } else { 3 }).await;
    }
    until("the object is gone", async || maps.get_opt("a").await.unwrap().is_none()).await;
    // The command in flight was killed with the first process, and has run again.
    assert!(first.lines(&format!("end apply {ns}/slow")).is_empty(), "{}", first.log());
    second.terminate().await;
    let mut runs = second.lines("start ");
    runs.sort();
    let expected = [("apply", "b"), ("apply", "new"), ("apply", "slow"), ("delete", "a")];
    assert_eq!(runs, expected.map(|(event, name)| format!("start {event} {ns}/{name} <")));
}

#[tokio::test]
async fn the_manifests_of_the_chart_are_valid_with_every_value() {
    let Some(server) = Server::shared().await else { return };
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/chart/ci");
    for file in std::fs::read_dir(values).unwrap() {
        let ns = server.namespace("chart-values").await;
        let Some(manifest) = render("web", &ns, &file.unwrap().path()) else { return };
        // The server does not have the kinds of the Prometheus operator.
        let parts = manifest.split("\n---\n").filter(|part| !part.contains("kind: ServiceMonitor"));
        apply(server.client().await, &parts.collect::<Vec<_>>().join("\n---\n")).await;
    }
}
