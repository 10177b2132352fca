//! Sets the defaults that the API server sets in pods, in workloads, and in other built-in
//! kinds.

use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::schema::Schema;

/// Sets the missing fields that the server sets when it reads an object of this kind.
pub(crate) fn set(object: &mut Value, kind: &Kind) {
    match (&*kind.group, &*kind.plural) {
        ("", "events") => {
            let texts = [("reportingComponent", json!("")), ("reportingInstance", json!(""))];
            set_fields(object, &texts);
            set_fields(object, &[("source", json!({}))]);
            // Responses contain times that are not set as null, and clients send these nulls
            // back. They count as missing.
            if let Some(fields) = object.as_object_mut() {
                fields.retain(|_, field| !field.is_null());
            }
        }
        ("", "namespaces") => {
            set_fields(&mut object["status"], &[("phase", json!("Active"))]);
            let name = object["metadata"]["name"].clone();
            if name.as_str().is_some_and(|name| !name.is_empty()) {
                object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
        }
        ("", "secrets") => set_fields(object, &[("type", json!("Opaque"))]),
        ("coordination.k8s.io", "leases") => set_fields(object, &[("spec", json!({}))]),
        ("", "pods") => set_pod(object),
        ("", "podtemplates") => set_pod_spec(&mut object["template"]["spec"]),
        ("", "replicationcontrollers") | ("apps", "replicasets") => {
            set_workload(object, &[("replicas", json!(1))]);
            set_fields(&mut object["status"], &[("replicas", json!(0))]);
        }
        ("apps", "deployments") => set_deployment(object),
        ("apps", "statefulsets") => {
            let update = json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } });
            set_workload(
                object,
                &[
                    ("replicas", json!(1)),
                    ("podManagementPolicy", json!("OrderedReady")),
                    ("revisionHistoryLimit", json!(10)),
                    ("updateStrategy", update),
                ],
            );
            let counts = [("availableReplicas", json!(0)), ("replicas", json!(0))];
            set_fields(&mut object["status"], &counts);
        }
        ("apps", "daemonsets") => {
            let update = json!({
                "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 },
            });
            set_workload(
                object,
                &[("revisionHistoryLimit", json!(10)), ("updateStrategy", update)],
            );
            let counts = [
                ("currentNumberScheduled", json!(0)),
                ("desiredNumberScheduled", json!(0)),
                ("numberMisscheduled", json!(0)),
                ("numberReady", json!(0)),
            ];
            set_fields(&mut object["status"], &counts);
        }
        _ => {}
    }
}

/// Returns an object of a kind without values. It contains the fields that Go writes even if
/// they are empty.
pub(crate) fn zero(kind: &Kind) -> Value {
    let template = json!({ "metadata": {}, "spec": { "containers": null } });
    let mut object = match kind.definition {
        None => Schema::of(kind).empty(),
        Some(_) => json!({}),
    };
    let nulls = match (&*kind.group, &*kind.plural) {
        ("", "events") => json!({
            "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        }),
        ("", "pods") => json!({ "spec": { "containers": null } }),
        ("apps", "deployments") => json!({
            "spec": { "replicas": 0, "selector": null, "template": template, "strategy": {} },
        }),
        ("apps", "replicasets") => json!({
            "spec": { "replicas": 0, "selector": null, "template": template },
            "status": { "replicas": 0 },
        }),
        ("rbac.authorization.k8s.io", "clusterroles" | "roles") => json!({ "rules": null }),
        _ => json!({}),
    };
    for (name, value) in nulls.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    object
}

/// Sets the fields that are missing or null. If the object itself is null, it becomes an object
/// with these fields.
fn set_fields(object: &mut Value, defaults: &[(&str, Value)]) {
    if object.is_null() {
        *object = json!({});
    }
    let Some(fields) = object.as_object_mut() else { return };
    for (name, default) in defaults {
        if fields.get(*name).is_none_or(Value::is_null) {
            fields.insert((*name).into(), default.clone());
        }
    }
}

fn set_workload(object: &mut Value, defaults: &[(&str, Value)]) {
    set_fields(&mut object["spec"], defaults);
    let template = &mut object["spec"]["template"];
    set_fields(template, &[("metadata", json!({}))]);
    set_pod_spec(&mut template["spec"]);
}

fn set_deployment(deployment: &mut Value) {
    set_workload(
        deployment,
        &[
            ("replicas", json!(1)),
            ("revisionHistoryLimit", json!(10)),
            ("progressDeadlineSeconds", json!(600)),
            ("strategy", json!({})),
        ],
    );
    let strategy = &mut deployment["spec"]["strategy"];
    set_fields(strategy, &[("type", json!("RollingUpdate"))]);
    if strategy["type"] == "RollingUpdate" {
        let limits = [("maxSurge", json!("25%")), ("maxUnavailable", json!("25%"))];
        set_fields(&mut strategy["rollingUpdate"], &limits);
    }
    set_fields(deployment, &[("status", json!({}))]);
}

fn set_pod(pod: &mut Value) {
    if let Some(grace) = pod.pointer_mut("/spec/terminationGracePeriodSeconds")
        && grace.as_i64().is_some_and(|seconds| seconds < 0)
    {
        *grace = json!(1);
    }
    set_pod_spec(&mut pod["spec"]);
    set_fields(&mut pod["spec"], &[("enableServiceLinks", json!(true))]);
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        let resources = &mut container["resources"];
        let limits = resources["limits"].as_object().cloned().unwrap_or_default();
        if !limits.is_empty() {
            let limits: Vec<_> =
                limits.iter().map(|(name, limit)| (&**name, limit.clone())).collect();
            set_fields(&mut resources["requests"], &limits);
        }
    }
}

/// Sets the fields that the admission plugins of the API server set. The client does not own
/// these fields.
pub(crate) fn admit(object: &mut Value, kind: &Kind) {
    if !kind.is_core("pods") {
        return;
    }
    set_fields(
        &mut object["spec"],
        &[("preemptionPolicy", json!("PreemptLowerPriority")), ("priority", json!(0))],
    );
    let mut tolerations = object["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    for state in ["not-ready", "unreachable"] {
        let key = format!("node.kubernetes.io/{state}");
        let is_or_empty = |value: &Value, wanted: &str| {
            value.as_str().is_none_or(|value| value.is_empty() || value == wanted)
        };
        let tolerates = |toleration: &Value| {
            is_or_empty(&toleration["key"], &key) && is_or_empty(&toleration["effect"], "NoExecute")
        };
        if !tolerations.iter().any(tolerates) {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
    object["spec"]["tolerations"] = json!(tolerations);
}

/// Returns the class of service of a pod, which the API server computes from the resources of
/// its containers.
pub(crate) fn quality_of_service(pod: &Value) -> &'static str {
    let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let empty = Map::new();
    let amounts = |container: &Value, what: &str| {
        container["resources"][what].as_object().unwrap_or(&empty).clone()
    };
    let is_guaranteed = |container: &Value| {
        let (limits, requests) = (amounts(container, "limits"), amounts(container, "requests"));
        ["cpu", "memory"].iter().all(|name| {
            limits.contains_key(*name)
                && (limits.get(*name) == requests.get(*name) || !requests.contains_key(*name))
        })
    };
    let has_none = |container: &Value| {
        amounts(container, "limits").is_empty() && amounts(container, "requests").is_empty()
    };
    if containers.iter().all(has_none) {
        "BestEffort"
    } else if containers.iter().all(is_guaranteed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn set_pod_spec(spec: &mut Value) {
    set_fields(
        spec,
        &[
            ("dnsPolicy", json!("ClusterFirst")),
            ("restartPolicy", json!("Always")),
            ("schedulerName", json!("default-scheduler")),
            ("securityContext", json!({})),
            ("terminationGracePeriodSeconds", json!(30)),
        ],
    );
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            set_container(container);
        }
    }
    if spec["initContainers"].is_null()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("initContainers");
    }
}

fn set_container(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !name.contains('@')
        && name.split_once(':').is_none_or(|(_, tag)| tag.is_empty() || tag == "latest");
    let policy = if is_latest { "Always" } else { "IfNotPresent" };
    set_fields(
        container,
        &[
            ("imagePullPolicy", json!(policy)),
            ("resources", json!({})),
            ("terminationMessagePath", json!("/dev/termination-log")),
            ("terminationMessagePolicy", json!("File")),
        ],
    );
    for port in container["ports"].as_array_mut().into_iter().flatten() {
        set_fields(port, &[("protocol", json!("TCP"))]);
    }
    if container["ports"].is_null()
        && let Some(fields) = container.as_object_mut()
    {
        fields.remove("ports");
    }
}
