//! Refused requests: the codes, the messages and the causes of a real API server.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{define, from, maps, named, refused, thing, thing_api};

#[tokio::test]
async fn a_selector_is_refused_in_the_words_of_a_real_server() {
    let maps = maps(&ApiServer::new());
    for (selector, message) in [
        ("==", "found '==', expected: !, identifier, or 'end of string'"),
        ("a in x", "unable to parse requirement: found 'x' expected: '('"),
        ("a!", "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
    ] {
        let list = maps.list(&ListParams::default().labels(selector)).await;
        let status = refused(list);
        assert_eq!((status.code, &*status.message), (400, message), "{selector}");
    }
    let list = maps.list(&ListParams::default().fields("metadata.name")).await;
    let message = "invalid selector: 'metadata.name'; can't understand 'metadata.name'";
    assert_eq!(refused(list).message, message);
}

#[tokio::test]
async fn a_selector_accepts_all_operators() {
    let maps = maps(&ApiServer::new());
    let labelled = |name: &str, labels| -> ConfigMap {
        from(json!({ "metadata": { "name": name, "labels": labels } }))
    };
    for map in [labelled("x", json!({ "app": "x", "n": "7" })), labelled("y", json!({ "app": "" }))]
    {
        maps.create(&PostParams::default(), &map).await.expect("created");
    }
    for (selector, expected) in [
        ("app=x", "x"),
        ("app == x,n", "x"),
        ("app!=x", "y"),
        ("app in (x,,z)", "xy"),
        ("app in ()", "y"),
        ("app notin (x)", "y"),
        ("!n", "y"),
        ("n>5", "x"),
        ("n<5", ""),
        ("app=", "y"),
    ] {
        let list = maps.list(&ListParams::default().labels(selector)).await.expect("a list");
        let names: String = list.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, expected, "{selector}");
    }
}

#[tokio::test]
async fn an_update_reports_each_error_once() {
    let maps = maps(&ApiServer::new());
    let invalid: ConfigMap =
        from(json!({ "metadata": { "name": "a", "labels": { "app": "not valid!" } } }));
    let causes = |status: &kube::core::response::Status| {
        status.details.as_ref().map_or(0, |details| details.causes.len())
    };
    let created = refused(maps.create(&PostParams::default(), &invalid).await);
    assert_eq!((created.code, causes(&created)), (422, 1));
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let updated = refused(maps.replace("a", &PostParams::default(), &invalid).await);
    assert_eq!((updated.code, causes(&updated)), (422, 1));
    assert_eq!(updated.message, created.message);
}

#[tokio::test]
async fn a_pod_is_refused_for_what_its_containers_tolerations_and_gates_say() {
    let pods = Api::<Pod>::default_namespaced(ApiServer::new().client());
    let container = json!({ "name": "main", "image": "web" });
    let tolerates = |toleration| json!({ "tolerations": [toleration] });
    for (change, why) in [
        (
            json!({ "containers": [container, container] }),
            "spec.containers[1].name: Duplicate value: \"main\"",
        ),
        (
            json!({ "restartPolicy": "Sometimes" }),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \
             \"OnFailure\", \"Never\"",
        ),
        (
            tolerates(json!({ "key": "a", "operator": "Exists", "value": "x" })),
            "spec.tolerations[0].operator: Invalid value: \"x\": value must be empty when \
             `operator` is 'Exists'",
        ),
        (
            tolerates(json!({ "key": "a", "tolerationSeconds": 5 })),
            "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when \
             `tolerationSeconds` is set",
        ),
        (
            json!({ "schedulingGates": [{ "name": "g" }, { "name": "g" }] }),
            "spec.schedulingGates[1]: Duplicate value: \"g\"",
        ),
    ] {
        let mut pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [container] } });
        for (field, value) in change.as_object().expect("fields") {
            pod["spec"][field] = value.clone();
        }
        let status = refused(pods.create(&PostParams::default(), &from(pod)).await);
        assert_eq!(status.message, format!("Pod \"p\" is invalid: {why}"));
    }
}

#[tokio::test]
async fn a_pod_with_a_gate_accepts_more_node_labels_and_a_scheduled_one_does_not() {
    let pods = Api::<Pod>::default_namespaced(ApiServer::new().client());
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "containers": [{ "name": "main", "image": "web" }],
        "nodeSelector": { "zone": "a" },
        "schedulingGates": [{ "name": "g" }],
    } });
    let created = pods.create(&PostParams::default(), &from(pod)).await.expect("created");
    let conditions = created.status.and_then(|status| status.conditions).unwrap_or_default();
    assert_eq!(conditions[0].reason.as_deref(), Some("SchedulingGated"));
    assert_eq!(created.spec.and_then(|spec| spec.tolerations).unwrap_or_default().len(), 2);
    let patch = async |spec| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        pods.patch("p", &PatchParams::default(), &patch).await
    };
    patch(json!({ "nodeSelector": { "disk": "ssd" } })).await.expect("an addition");
    let changed = refused(patch(json!({ "nodeSelector": { "zone": "b" } })).await);
    assert!(changed.message.contains("only additions to spec.nodeSelector are allowed"));
    patch(json!({ "schedulingGates": null })).await.expect("no gate");
    let late = refused(patch(json!({ "nodeSelector": { "cpu": "new" } })).await);
    assert!(late.message.contains("pod updates may not change fields"), "{}", late.message);
}

#[tokio::test]
async fn a_deployment_makes_progress_and_its_pods_always_restart() {
    let deployments = Api::<Deployment>::default_namespaced(ApiServer::new().client());
    let deployment = json!({ "metadata": { "name": "d" }, "spec": {
        "selector": { "matchLabels": { "app": "d" } },
        "strategy": { "rollingUpdate": { "maxSurge": 0, "maxUnavailable": "0%" } },
        "template": { "metadata": { "labels": { "app": "d" } }, "spec": {
            "containers": [{ "name": "main", "image": "web" }], "restartPolicy": "Never",
        } },
    } });
    let created = deployments.create(&PostParams::default(), &from(deployment)).await;
    let causes = refused(created).details.map(|details| details.causes).unwrap_or_default();
    let fields: Vec<_> = causes.iter().map(|cause| &*cause.field).collect();
    let expected =
        ["spec.template.spec.restartPolicy", "spec.strategy.rollingUpdate.maxUnavailable"];
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn an_update_of_a_pod_changes_few_fields_and_in_one_direction() {
    let pods = Api::<Pod>::default_namespaced(ApiServer::new().client());
    let first = json!({ "key": "a", "operator": "Exists" });
    let second = json!({ "key": "b", "operator": "Exists" });
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "containers": [{ "name": "main", "image": "web" }],
        "activeDeadlineSeconds": 60,
        "schedulingGates": [{ "name": "g" }, { "name": "h" }],
        "terminationGracePeriodSeconds": -1,
        "tolerations": [first],
    } });
    let created = pods.create(&PostParams::default(), &from(pod)).await.expect("created");
    assert_eq!(created.spec.expect("a spec").termination_grace_period_seconds, Some(1));
    for (change, why) in [
        (
            json!({ "activeDeadlineSeconds": 61 }),
            "spec.activeDeadlineSeconds: Invalid value: 61: must be less than or equal to previous \
             value",
        ),
        (
            json!({ "activeDeadlineSeconds": null }),
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive \
             integer to nil value",
        ),
        (
            json!({ "tolerations": [second] }),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its \
             tolerationSeconds",
        ),
        (
            json!({ "schedulingGates": [{ "name": "g" }, { "name": "x" }] }),
            "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new \
             scheduling gate 'x'",
        ),
    ] {
        let patch = Patch::Merge(json!({ "spec": change }));
        let status = refused(pods.patch("p", &PatchParams::default(), &patch).await);
        assert_eq!(status.message, format!("Pod \"p\" is invalid: {why}"));
    }
    let allowed = Patch::Merge(json!({ "spec": {
        "activeDeadlineSeconds": 30,
        "schedulingGates": [{ "name": "h" }],
        "tolerations": [first, second],
    } }));
    pods.patch("p", &PatchParams::default(), &allowed).await.expect("patched");
}

#[tokio::test]
async fn an_address_names_an_object() {
    let addresses = Api::<IPAddress>::all(ApiServer::new().client());
    let address = from(json!({ "metadata": { "name": "2001:db8::1" } }));
    addresses.create(&PostParams::default(), &address).await.expect("created");
}

#[tokio::test]
async fn a_rule_is_about_resources_or_urls() {
    let client = ApiServer::new().client();
    let rules = |rule| json!({ "metadata": { "name": "r" }, "rules": [rule] });
    let urls = json!({ "nonResourceURLs": ["/a"], "verbs": ["get"] });
    let roles = Api::<Role>::default_namespaced(client.clone());
    let status = refused(roles.create(&PostParams::default(), &from(rules(urls.clone()))).await);
    let why = "namespaced rules cannot apply to non-resource URLs";
    let field = "rules[0].nonResourceURLs: Invalid value: [\"/a\"]";
    assert!(status.message.ends_with(&format!("{field}: {why}")), "{status:?}");
    let roles = Api::<ClusterRole>::all(client);
    let mut both = urls.clone();
    both["resources"] = json!(["pods"]);
    let status = refused(roles.create(&PostParams::default(), &from(rules(both))).await);
    let why = "rules cannot apply to both regular resources and non-resource URLs";
    assert!(status.message.ends_with(&format!("{field}: {why}")), "{status:?}");
    roles.create(&PostParams::default(), &from(rules(urls))).await.expect("created");
}

#[tokio::test]
async fn an_object_is_checked_before_its_name_is_taken() {
    let maps = maps(&ApiServer::new());
    let held: ConfigMap =
        from(json!({ "metadata": { "name": "a", "finalizers": ["example.com/hold"] } }));
    maps.create(&PostParams::default(), &held).await.expect("created");
    let invalid: ConfigMap = from(json!({ "metadata": { "name": "a" }, "data": { "/": "" } }));
    assert_eq!(refused(maps.create(&PostParams::default(), &invalid).await).code, 422);
    maps.delete("a", &DeleteParams::default()).await.expect("deleted");
    let status = refused(maps.create(&PostParams::default(), &held).await);
    let message = "object is being deleted: configmaps \"a\" already exists";
    assert_eq!((status.code, &*status.message), (409, message));
}

#[tokio::test]
async fn a_resource_version_must_be_a_number() {
    let maps = maps(&ApiServer::new());
    let why = "resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": \
               invalid syntax";
    let get = maps.get_with("a", &GetParams::at("abc")).await;
    let status = refused(get);
    assert_eq!((status.code, &*status.message), (500, why));
    let list = maps.list(&ListParams::default().at("abc")).await;
    let message = format!("invalid resource version: {why}");
    let status = refused(list);
    assert_eq!((status.code, status.message), (400, message));
}

#[tokio::test]
async fn an_apply_names_its_object_and_only_fields_that_exist() {
    let maps = maps(&ApiServer::new());
    let apply = PatchParams::apply("me");
    let nameless = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": {} });
    let status = refused(maps.patch("a", &apply, &Patch::Apply(nameless)).await);
    let message = "the name of the object (a based on URL) was undeterminable: name must be \
                   provided";
    assert_eq!((status.code, &*status.message), (400, message));
    let unknown = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "colour": "red",
    });
    let status = refused(maps.patch("a", &apply, &Patch::Apply(unknown)).await);
    let message = "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .colour: field \
                   not declared in schema";
    assert_eq!((status.code, &*status.message), (500, message));
}

#[tokio::test]
async fn a_page_may_be_followed_by_an_empty_one() {
    let maps = maps(&ApiServer::new());
    for (name, app) in [("a", "x"), ("b", "y")] {
        let map: ConfigMap =
            from(json!({ "metadata": { "name": name, "labels": { "app": app } } }));
        maps.create(&PostParams::default(), &map).await.expect("created");
    }
    let params = ListParams::default().labels("app=x").limit(1);
    let first = maps.list(&params).await.expect("a page");
    let next = first.metadata.continue_.expect("a token: the server has not looked at b");
    let rest = maps.list(&params.continue_token(&next)).await.expect("a page");
    assert!(rest.items.is_empty() && rest.metadata.continue_.is_none());
}

#[tokio::test]
async fn the_status_of_a_deployment_comes_with_annotations_but_not_with_labels() {
    let api = Api::<Deployment>::default_namespaced(ApiServer::new().client());
    let deployment: Deployment = from(json!({
        "metadata": { "name": "a" },
        "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "template": {
                "metadata": { "labels": { "app": "a" } },
                "spec": { "containers": [{ "name": "main", "image": "main" }] },
            },
        },
    }));
    api.create(&PostParams::default(), &deployment).await.expect("created");
    let change = json!({
        "metadata": { "annotations": { "note": "x" }, "labels": { "app": "b" } },
        "spec": { "replicas": 7 },
        "status": { "replicas": 3 },
    });
    let params = PatchParams::default();
    let changed = api.patch_status("a", &params, &Patch::Merge(change)).await.expect("changed");
    assert_eq!(changed.annotations()["note"], "x");
    assert!(changed.labels().is_empty());
    assert_eq!(changed.spec.replicas, Some(1));
    assert_eq!(changed.status.and_then(|status| status.replicas), Some(3));
}

#[tokio::test]
async fn the_deletion_of_a_pod_is_a_change_first() {
    let server = ApiServer::new();
    let pods = Api::<Pod>::default_namespaced(server.client());
    let pod: Pod = from(json!({
        "metadata": { "name": "a" },
        "spec": { "containers": [{ "name": "main", "image": "main" }] },
    }));
    let before = pods.create(&PostParams::default(), &pod).await.expect("created");
    let deleted = pods.delete("a", &DeleteParams::default()).await.expect("deleted");
    let deleted = deleted.left().expect("the pod");
    assert!(deleted.metadata.deletion_timestamp.is_some());
    let version = |pod: &Pod| -> u64 {
        pod.resource_version().expect("a version").parse().expect("a number")
    };
    assert_eq!(version(&deleted), version(&before) + 2);
}

#[tokio::test]
async fn rules_wait_for_a_valid_form() {
    let client = ApiServer::new().client();
    let spec = json!({
        "type": "object",
        "properties": {
            "color": { "type": "string", "enum": ["red"] },
            "size": { "type": "integer", "minimum": 1 },
        },
        "x-kubernetes-validations": [{ "rule": "self.size < 5", "message": "too large" }],
    });
    define(&client, spec).await;
    let things = thing_api(&client);
    let create = async |spec| {
        let created = things.create(&PostParams::default(), &thing("a", spec)).await;
        refused(created).details.expect("details").causes
    };
    let blocked = create(json!({ "color": "blue", "size": 9 })).await;
    let fields: Vec<_> = blocked.iter().map(|cause| &*cause.field).collect();
    assert_eq!(fields, ["spec.color", "<nil>"]);
    assert!(blocked[1].message.contains("some validation rules were not checked"));
    let checked = create(json!({ "color": "red", "size": 9 })).await;
    assert_eq!(checked[0].message, "Invalid value: too large");
}
