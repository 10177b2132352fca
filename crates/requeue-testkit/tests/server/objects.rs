//! Objects through kube's client: writes, reads and their failures.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, Secret};
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
    VersionMatch,
};
use kube::{Api, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{from, maps, named, refused};

#[tokio::test]
async fn creates_reads_replaces_and_deletes() {
    let maps = maps(&ApiServer::new());
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    assert!(created.uid().is_some() && created.creation_timestamp().is_some());

    let mut changed = created.clone();
    changed.data = Some([("key".to_owned(), "value".to_owned())].into());
    let replaced = maps.replace("a", &PostParams::default(), &changed).await.expect("replaced");
    assert_ne!(replaced.resource_version(), created.resource_version());
    assert_eq!(maps.get("a").await.expect("read"), replaced);

    let deleted = maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    let status_of_deletion = deleted.right().expect("a status");
    assert!(status_of_deletion.is_success());
    let missing = refused(maps.get("a").await);
    assert_eq!((missing.code, &*missing.message), (404, "configmaps \"a\" not found"));
}

#[tokio::test]
async fn a_stale_version_is_a_conflict() {
    let maps = maps(&ApiServer::new());
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let merge = Patch::Merge(json!({ "data": { "key": "value" } }));
    maps.patch("a", &PatchParams::default(), &merge).await.expect("patched");
    let stale = refused(maps.replace("a", &PostParams::default(), &first).await);
    assert_eq!((stale.code, &*stale.reason), (409, "Conflict"));
    assert_eq!(
        stale.message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please \
         apply your changes to the latest version and try again"
    );
    let exists = refused(maps.create(&PostParams::default(), &named("a")).await);
    assert_eq!((exists.code, &*exists.message), (409, "configmaps \"a\" already exists"));
}

#[tokio::test]
async fn an_update_without_a_change_keeps_the_version() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let again = maps.replace("a", &PostParams::default(), &first).await.expect("replaced");
    assert_eq!(first, again);
    let empty = Patch::Merge(json!({}));
    let again = maps.patch("a", &PatchParams::default(), &empty).await.expect("patched");
    assert_eq!(first, again);
    let records = server.records();
    let last = records.last().expect("a record");
    assert_eq!((&*last.verb, last.version_before), ("patch", last.version_after));
}

#[tokio::test]
async fn lists_have_pages_at_one_version() {
    let server = ApiServer::new();
    let maps = maps(&server);
    for name in ["a", "b", "c", "d", "e"] {
        maps.create(&PostParams::default(), &named(name)).await.expect("created");
    }
    let page = ListParams::default().limit(2);
    let first = maps.list(&page).await.expect("a page");
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    maps.delete("c", &DeleteParams::default()).await.expect("deleted");
    let token = first.metadata.continue_.clone().expect("a token");
    let second = maps.list(&page.clone().continue_token(&token)).await.expect("a page");
    let names: Vec<_> = second.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);

    server.compact();
    let expired = refused(maps.list(&page.continue_token(&token)).await);
    assert_eq!((expired.code, &*expired.reason), (410, "Expired"));
}

#[tokio::test]
async fn preconditions_guard_a_deletion() {
    let maps = maps(&ApiServer::new());
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let other = Preconditions { uid: Some("other".into()), resource_version: None };
    let params = DeleteParams::default().preconditions(other);
    let refused = refused(maps.delete("a", &params).await);
    assert_eq!(refused.code, 409);
    assert_eq!(
        refused.message,
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) \
             does not match the UID in record ({}). The object might have been deleted and then \
             recreated",
            created.uid().unwrap_or_default()
        )
    );
}

#[tokio::test]
async fn a_list_shows_a_past_version() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    maps.create(&PostParams::default(), &named("b")).await.expect("created");
    let version = first.resource_version().expect("a version");
    let exact = ListParams::default().at(&version).matching(VersionMatch::Exact);
    let list = maps.list(&exact).await.expect("a list");
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.metadata.resource_version, Some(version.clone()));
    let newer = ListParams::default().at(&version).matching(VersionMatch::NotOlderThan);
    assert_eq!(maps.list(&newer).await.expect("a list").items.len(), 2);

    let future = refused(maps.list(&ListParams::default().at("1000")).await);
    assert_eq!((future.code, &*future.reason), (504, "Timeout"));
    assert_eq!(future.message, "Timeout: Too large resource version: 1000, current: 7");
    let future = refused(maps.get_with("a", &GetParams::at("1000")).await);
    assert_eq!(future.code, 504);
    server.compact();
    let expired = refused(maps.list(&exact).await);
    assert_eq!(expired.message, "The resourceVersion for the provided list is too old.");
}

#[tokio::test]
async fn selectors_choose_by_labels_and_fields() {
    let maps = maps(&ApiServer::new());
    for (name, tier, zone) in [("a", "web", "x"), ("b", "web", "y"), ("c", "db", "y")] {
        let labels = json!({ "tier": tier, "zone": zone });
        let map: ConfigMap = from(json!({ "metadata": { "name": name, "labels": labels } }));
        maps.create(&PostParams::default(), &map).await.expect("created");
    }
    for (selector, expected) in [
        ("tier=web", "ab"),
        ("tier==web,zone!=x", "b"),
        ("tier in (db,cache)", "c"),
        ("tier notin (db), zone", "ab"),
        ("!tier", ""),
        ("missing!=x", "abc"),
    ] {
        let list = maps.list(&ListParams::default().labels(selector)).await.expect("a list");
        let names: String = list.items.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, expected, "{selector}");
    }
    let by_name = ListParams::default().fields("metadata.name=b");
    assert_eq!(maps.list(&by_name).await.expect("a list").items.len(), 1);
    let unknown = refused(maps.list(&ListParams::default().fields("data.key=b")).await);
    let message = "\"data.key\" is not a known field selector: only \"metadata.name\", \
                   \"metadata.namespace\"";
    assert_eq!((unknown.code, &*unknown.message), (400, message));
    let wrong = refused(maps.list(&ListParams::default().labels("a in b")).await);
    assert_eq!(wrong.code, 400);
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let before = server.snapshot().version();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let created = maps.create(&dry, &named("a")).await.expect("a dry run");
    assert!(created.uid().is_some());
    assert_eq!(created.resource_version(), None);
    assert_eq!(maps.get_opt("a").await.expect("read"), None);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let patch = Patch::Merge(json!({ "data": { "key": "value" } }));
    let patched = maps.patch("a", &PatchParams::default().dry_run(), &patch).await;
    assert!(patched.expect("a dry run").data.is_some());
    maps.delete("a", &DeleteParams::default().dry_run()).await.expect("a dry run");
    assert_eq!(maps.get("a").await.expect("read").data, None);
    assert_eq!(server.snapshot().version(), before + 1);
}

#[tokio::test]
async fn json_patches_test_and_change() {
    let maps = maps(&ApiServer::new());
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let patch = |value: &str| {
        let patch = json!([
            { "op": "test", "path": "/metadata/name", "value": value },
            { "op": "add", "path": "/data", "value": { "key": "value" } },
        ]);
        Patch::Json::<()>(from(patch))
    };
    let failed = refused(maps.patch("a", &PatchParams::default(), &patch("b")).await);
    assert_eq!((failed.code, &*failed.reason), (422, "Invalid"));
    let patched = maps.patch("a", &PatchParams::default(), &patch("a")).await.expect("patched");
    assert!(patched.data.is_some());
    // As kube's finalizer does: a field that is missing is null.
    let absent = json!([
        { "op": "test", "path": "/metadata/finalizers", "value": null },
        { "op": "add", "path": "/metadata/finalizers", "value": ["example.com/f"] },
    ]);
    let absent = Patch::Json::<()>(from(absent));
    maps.patch("a", &PatchParams::default(), &absent).await.expect("patched");
    assert_eq!(refused(maps.patch("a", &PatchParams::default(), &absent).await).code, 422);
    let missing = refused(maps.patch("b", &PatchParams::default(), &patch("b")).await);
    assert_eq!(missing.code, 404);
    let stale = Patch::Merge(json!({ "metadata": { "resourceVersion": "1" } }));
    assert_eq!(refused(maps.patch("a", &PatchParams::default(), &stale).await).code, 409);
}

#[tokio::test]
async fn only_the_server_sets_its_metadata() {
    let maps = maps(&ApiServer::new());
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let time = "2020-01-01T00:00:00Z";
    for (field, value, code) in
        [("namespace", "other", 400), ("name", "b", 400), ("deletionTimestamp", time, 422)]
    {
        let patch = Patch::Merge(json!({ "metadata": { field: value } }));
        let status = refused(maps.patch("a", &PatchParams::default(), &patch).await);
        assert_eq!(status.code, code, "{status:?}");
    }
    let patch = Patch::Merge(json!({ "metadata": { "uid": "other" } }));
    assert_eq!(refused(maps.patch("a", &PatchParams::default(), &patch).await).code, 422);
    let patch = Patch::Merge(json!({ "metadata": { "generation": 7, "creationTimestamp": time } }));
    let patched = maps.patch("a", &PatchParams::default(), &patch).await.expect("patched");
    assert_eq!(patched, created);
}

#[tokio::test]
async fn metadata_is_checked() {
    let maps = maps(&ApiServer::new());
    let bad: ConfigMap = from(json!({ "metadata": { "name": "A", "labels": { "a b": "-" } } }));
    let status = refused(maps.create(&PostParams::default(), &bad).await);
    assert_eq!((status.code, &*status.reason), (422, "Invalid"));
    let causes = status.details.expect("details").causes;
    let fields: Vec<_> = causes.iter().map(|cause| &*cause.field).collect();
    assert_eq!(fields, ["metadata.name", "metadata.labels", "metadata.labels"]);
    let status = refused(maps.create(&PostParams::default(), &ConfigMap::default()).await);
    assert!(status.message.contains("name or generateName is required"), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn names_uids_and_times_are_the_same_in_each_run() {
    let run = async || {
        let server = ApiServer::new();
        let maps = maps(&server);
        tokio::time::advance(Duration::from_secs(90)).await;
        for _ in 0..3 {
            let map: ConfigMap = from(json!({ "metadata": { "generateName": "map-" } }));
            maps.create(&PostParams::default(), &map).await.expect("created");
        }
        maps.list(&ListParams::default()).await.expect("a list")
    };
    let (first, second) = (run().await, run().await);
    assert_eq!(json!(first), json!(second));
    assert_eq!(first.items.len(), 3);
    let time = first.items[0].creation_timestamp().expect("a time").0.to_string();
    // The clock starts with the first request.
    assert!(time.starts_with("2026-01-01T00:0"), "{time}");
}

#[tokio::test]
async fn both_kinds_of_event_are_one_resource() {
    let client = ApiServer::new().client();
    let events = Api::<NewEvent>::default_namespaced(client.clone());
    let event: NewEvent = from(json!({
        "metadata": { "name": "e" },
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": { "kind": "ConfigMap", "name": "a", "namespace": "default" },
        "note": "a note",
        "reason": "Changed",
        "action": "Change",
        "type": "Normal",
        "reportingController": "tests",
        "reportingInstance": "tests-1",
    }));
    events.create(&PostParams::default(), &event).await.expect("created");
    let core = Api::<Event>::default_namespaced(client);
    let read = core.get("e").await.expect("read");
    assert_eq!(read.message.as_deref(), Some("a note"));
    assert_eq!(read.involved_object.name.as_deref(), Some("a"));
    let by_object = ListParams::default().fields("involvedObject.name=a");
    assert_eq!(core.list(&by_object).await.expect("a list").items.len(), 1);
    let patch = Patch::Merge(json!({ "note": "another" }));
    events.patch("e", &PatchParams::default(), &patch).await.expect("patched");
    assert_eq!(core.get("e").await.expect("read").message.as_deref(), Some("another"));
}

#[tokio::test]
async fn a_lease_needs_its_version_and_may_be_created_by_a_put() {
    let leases = Api::<Lease>::default_namespaced(ApiServer::new().client());
    let lease: Lease =
        from(json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "a" } }));
    let created = leases.replace("l", &PostParams::default(), &lease).await.expect("created");
    let unconditional = refused(leases.replace("l", &PostParams::default(), &lease).await);
    assert_eq!(unconditional.code, 422);
    assert!(unconditional.message.contains("must be specified for an update"));
    let mut renewed = created;
    renewed.spec.get_or_insert_default().lease_transitions = Some(1);
    leases.replace("l", &PostParams::default(), &renewed).await.expect("renewed");
    let stale = refused(leases.replace("l", &PostParams::default(), &renewed).await);
    assert_eq!(stale.code, 409);
}

#[tokio::test]
async fn a_running_pod_has_a_grace_period() {
    let server = ApiServer::new();
    let pods = Api::<Pod>::default_namespaced(server.client());
    let pod = |name: &str, node: Option<&str>| {
        let containers = json!([{ "name": "c", "image": "i" }]);
        from(json!({
            "metadata": { "name": name },
            "spec": { "containers": containers, "nodeName": node },
        }))
    };
    for (name, node) in [("pending", None), ("running", Some("n"))] {
        pods.create(&PostParams::default(), &pod(name, node)).await.expect("created");
        pods.delete(name, &DeleteParams::default()).await.expect("deleted");
    }
    assert_eq!(pods.get_opt("pending").await.expect("read"), None);
    let running = pods.get("running").await.expect("read");
    assert_eq!(running.metadata.deletion_grace_period_seconds, Some(30));
    let phase = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    let stopped = pods.patch_status("running", &PatchParams::default(), &phase).await;
    let stopped = stopped.expect("patched");
    for later in [DeleteParams::default(), DeleteParams::default().grace_period(60)] {
        let again = pods.delete("running", &later).await.expect("deleted");
        assert_eq!(again.left().as_ref(), Some(&stopped));
    }
    let sooner = DeleteParams::default().grace_period(10);
    let sooner = pods.delete("running", &sooner).await.expect("deleted").left().expect("a pod");
    let time = |pod: &Pod| pod.metadata.deletion_timestamp.as_ref().expect("a time").0;
    assert_eq!(time(&stopped).duration_since(time(&sooner)).as_secs(), 20);
    pods.delete("running", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    assert_eq!(pods.get_opt("running").await.expect("read"), None);
}

#[tokio::test]
async fn text_of_a_secret_becomes_data() {
    let secrets = Api::<Secret>::default_namespaced(ApiServer::new().client());
    let secret: Secret =
        from(json!({ "metadata": { "name": "s" }, "stringData": { "key": "value" } }));
    let created = secrets.create(&PostParams::default(), &secret).await.expect("created");
    assert_eq!(created.string_data, None);
    assert_eq!(created.data.expect("data")["key"].0, b"value");
    assert_eq!(created.type_.as_deref(), Some("Opaque"));
}

#[tokio::test]
async fn a_collection_is_deleted_by_a_selector() {
    let maps = maps(&ApiServer::new());
    for (name, tier) in [("a", "web"), ("b", "db"), ("c", "web")] {
        let labels = json!({ "tier": tier });
        let map: ConfigMap = from(json!({ "metadata": { "name": name, "labels": labels } }));
        maps.create(&PostParams::default(), &map).await.expect("created");
    }
    let web = ListParams::default().labels("tier=web");
    let deleted = maps.delete_collection(&DeleteParams::default(), &web).await.expect("deleted");
    assert_eq!(deleted.left().expect("a list").items.len(), 2);
    let left = maps.list(&ListParams::default()).await.expect("a list");
    assert_eq!(left.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn metadata_can_be_read_alone() {
    let server = ApiServer::new();
    let maps = maps(&server);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let one = maps.get_metadata("a").await.expect("read");
    assert_eq!(one.types.expect("types").kind, "PartialObjectMetadata");
    let list = maps.list_metadata(&ListParams::default()).await.expect("a list");
    assert_eq!(list.items.len(), 1);
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    let patched = maps.patch_metadata("a", &PatchParams::default(), &patch).await;
    assert_eq!(patched.expect("patched").labels()["a"], "b");
}

#[tokio::test]
async fn records_show_requests_and_results() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let created = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let post = PostParams::default();
    maps.create(&post, &named("a")).await.expect_err("it exists");
    maps.replace("a", &post, &created).await.expect("replaced");
    let records = server.records();
    let told: Vec<_> = records
        .iter()
        .map(|record| (&*record.verb, record.code, record.version_sent.as_deref()))
        .collect();
    let version = created.resource_version();
    let expected =
        [("create", 201, None), ("create", 409, None), ("update", 200, version.as_deref())];
    assert_eq!(told, expected);
    assert_eq!(records[1].reason.as_deref(), Some("AlreadyExists"));
    assert!(records.iter().all(|record| record.resource == "configmaps"));
    assert!(records.iter().all(|record| record.name.as_deref() == Some("a")));
    assert_eq!(server.with(|cluster| cluster.take_records()).len(), 3);
    assert!(server.records().is_empty());
}

#[tokio::test]
async fn the_past_stays_readable_until_it_is_forgotten() {
    let server = ApiServer::new();
    let maps = maps(&server);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let version = server.snapshot().version();
    maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    let cluster = server.snapshot();
    assert_eq!(cluster.objects_at("configmaps", version).expect("the past").len(), 1);
    assert!(cluster.objects("configmaps").is_empty());
    server.compact();
    assert_eq!(server.snapshot().objects_at("configmaps", version), None);
}

#[tokio::test]
async fn a_field_that_is_not_set_is_selected_by_its_zero() {
    let server = ApiServer::new();
    let template = json!({ "spec": {
        "containers": [{ "name": "c", "image": "i" }], "restartPolicy": "Never",
    } });
    let job: Job =
        from(json!({ "metadata": { "name": "j" }, "spec": { "template": template.clone() } }));
    let jobs = Api::<Job>::default_namespaced(server.client());
    jobs.create(&PostParams::default(), &job).await.expect("created");
    let pods = Api::<Pod>::default_namespaced(server.client());
    let pod: Pod = from(json!({ "metadata": { "name": "p" }, "spec": template["spec"] }));
    pods.create(&PostParams::default(), &pod).await.expect("created");
    let fields = |fields: &str| ListParams::default().fields(fields);
    let count = async |params| jobs.list(&params).await.expect("a list").items.len();
    assert_eq!(count(fields("status.successful=0")).await, 1);
    let done = Patch::Merge(json!({ "status": { "succeeded": 1 } }));
    jobs.patch_status("j", &PatchParams::default(), &done).await.expect("patched");
    assert_eq!(count(fields("status.successful=1")).await, 1);
    let found = pods.list(&fields("spec.hostNetwork=false")).await.expect("a list");
    assert_eq!(found.items.len(), 1);
}

#[tokio::test]
async fn empty_lists_and_maps_are_left_out() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let held: ConfigMap =
        from(json!({ "metadata": { "name": "a", "finalizers": ["example.com/f"] } }));
    maps.create(&PostParams::default(), &held).await.expect("created");
    let patch = async |patch| {
        let patch = Patch::<ConfigMap>::Json(serde_json::from_value(patch).expect("a patch"));
        maps.patch("a", &PatchParams::default(), &patch).await.expect("patched")
    };
    let finalizers = "/metadata/finalizers";
    let remove = json!([{ "op": "remove", "path": format!("{finalizers}/0") }]);
    let patched = patch(remove).await;
    assert_eq!(patched.metadata.finalizers, None);
    let empty = json!([
        { "op": "test", "path": finalizers, "value": null },
        { "op": "add", "path": finalizers, "value": [] },
        { "op": "add", "path": "/metadata/labels", "value": {} },
        { "op": "add", "path": "/metadata/annotations", "value": null },
        { "op": "add", "path": "/data", "value": {} },
    ]);
    assert_eq!(patch(empty).await, patched);
    let pods = Api::<Pod>::default_namespaced(server.client());
    let spec = json!({
        "containers": [{ "name": "c", "image": "i", "args": [], "env": null }],
        "nodeSelector": {},
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    let pod: Pod = from(json!({ "metadata": { "name": "p" }, "spec": spec }));
    let spec = pods.create(&PostParams::default(), &pod).await.expect("created").spec;
    let spec = spec.expect("a spec");
    assert_eq!((&spec.containers[0].args, &spec.node_selector), (&None, &None));
    assert!(spec.volumes.expect("volumes")[0].empty_dir.is_some());
}

#[tokio::test]
async fn names_of_finalizers_and_namespaces_are_checked() {
    let client = ApiServer::new().client();
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    for finalizer in ["unqualified", "example.com/f/g", "-/-"] {
        let map = from(json!({ "metadata": { "name": "a", "finalizers": [finalizer] } }));
        let status = refused(maps.create(&PostParams::default(), &map).await);
        let cause = &status.details.as_ref().expect("details").causes[0];
        assert!(cause.field.starts_with("metadata.finalizers"), "{status:?}");
    }
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in ["a.b", &"a".repeat(64)] {
        let namespace = from(json!({ "metadata": { "name": name } }));
        let status = refused(namespaces.create(&PostParams::default(), &namespace).await);
        assert_eq!(status.code, 422, "{name}");
    }
    let budgets = Api::<PodDisruptionBudget>::default_namespaced(client);
    let budget: PodDisruptionBudget = from(json!({ "metadata": { "name": "b" } }));
    budgets.create(&PostParams::default(), &budget).await.expect("created");
    let status = refused(budgets.replace("b", &PostParams::default(), &budget).await);
    assert!(status.message.contains("must be specified for an update"), "{status:?}");
}
