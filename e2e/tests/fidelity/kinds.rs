//! The kinds of the sequences, and objects of each.

use fastrand::Rng;
use serde_json::{Value, json};

/// A resource that the sequences use.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The path of the group and version.
    pub(crate) root: &'static str,
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) is_namespaced: bool,
    pub(crate) has_status: bool,
    pub(crate) has_scale: bool,
    /// How often a sequence uses the kind, beside the others.
    pub(crate) weight: u32,
}

const fn kind(
    root: &'static str,
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    weight: u32,
) -> Kind {
    let (is_namespaced, has_status, has_scale) = (true, false, false);
    Kind { root, api_version, kind, plural, is_namespaced, has_status, has_scale, weight }
}

impl Kind {
    const fn cluster_scoped(self) -> Self {
        Self { is_namespaced: false, ..self }
    }

    const fn with_status(self) -> Self {
        Self { has_status: true, ..self }
    }

    const fn with_scale(self) -> Self {
        Self { has_scale: true, ..self }
    }
}

const APPS: &str = "/apis/apps/v1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
/// The path of the custom resources.
pub(crate) const CUSTOM: &str = "/apis/fidelity.example.com/v1";

/// All kinds.
pub(crate) const KINDS: [Kind; 12] = [
    kind("/api/v1", "v1", "ConfigMap", "configmaps", 20),
    kind("/api/v1", "v1", "Secret", "secrets", 10),
    kind("/api/v1", "v1", "Event", "events", 3),
    kind("/api/v1", "v1", "Pod", "pods", 5).with_status(),
    kind("/api/v1", "v1", "Namespace", "namespaces", 5).cluster_scoped().with_status(),
    kind("/apis/coordination.k8s.io/v1", "coordination.k8s.io/v1", "Lease", "leases", 10),
    kind(APPS, "apps/v1", "Deployment", "deployments", 10).with_status().with_scale(),
    kind(APPS, "apps/v1", "ReplicaSet", "replicasets", 5).with_status().with_scale(),
    kind(RBAC, "rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", 5).cluster_scoped(),
    kind(RBAC, "rbac.authorization.k8s.io/v1", "Role", "roles", 3),
    kind(CUSTOM, "fidelity.example.com/v1", "Widget", "widgets", 20).with_status().with_scale(),
    kind(CUSTOM, "fidelity.example.com/v1", "Gadget", "gadgets", 7).cluster_scoped(),
];

/// Returns the definitions of the custom resources: Widget has defaults, rules, `status` and `scale`; Gadget is
/// cluster-scoped, and has lists that are merged by keys.
pub(crate) fn definitions() -> [Value; 2] {
    let definition = |kind: &str, plural: &str, scope: &str, version: Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.fidelity.example.com") },
            "spec": {
                "group": "fidelity.example.com",
                "names": { "kind": kind, "plural": plural },
                "scope": scope,
                "versions": [version],
            },
        })
    };
    let widget = json!({
        "name": "v1", "served": true, "storage": true,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["size"],
                    "properties": {
                        "size": { "type": "integer", "minimum": 0, "maximum": 100 },
                        "replicas": { "type": "integer", "default": 1 },
                        "color": { "type": "string", "enum": ["red", "green"], "default": "red" },
                        "name": { "type": "string", "maxLength": 10, "pattern": "^[a-z]*$" },
                        "limit": { "type": "integer", "nullable": true },
                        "parts": {
                            "type": "array",
                            "maxItems": 4,
                            "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["name"],
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": { "type": "string" },
                                    "count": { "type": "integer", "default": 1 },
                                },
                            },
                        },
                        "tags": {
                            "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" },
                        },
                    },
                    "x-kubernetes-validations": [{
                        "rule": "self.replicas <= self.size", "message": "more replicas than the size",
                    }],
                },
                "status": {
                    "type": "object",
                    "properties": {
                        "replicas": { "type": "integer" },
                        "selector": { "type": "string" },
                        "phase": { "type": "string" },
                    },
                },
            },
        }},
    });
    let gadget = json!({
        "name": "v1", "served": true, "storage": true,
        "selectableFields": [{ "jsonPath": ".color" }],
        "schema": { "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "color": { "type": "string" },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "ports": { "type": "object", "additionalProperties": { "type": "integer" } },
                "fixed": {
                    "type": "string",
                    "x-kubernetes-validations": [{ "rule": "self == oldSelf", "message": "fixed cannot change" }],
                },
                "status": { "type": "object", "properties": { "phase": { "type": "string" } } },
            },
        }},
    });
    [
        definition("Widget", "widgets", "Namespaced", widget),
        definition("Gadget", "gadgets", "Cluster", gadget),
    ]
}

/// Returns the fields of a new object apart from its metadata. Some of them are not valid.
pub(crate) fn content(rng: &mut Rng, kind: &Kind) -> Value {
    let mut content = json!({});
    let text = |rng: &mut Rng| ["red", "green", "blue", ""][rng.usize(..4)];
    let number = |rng: &mut Rng| [0, 1, 1, 2, 2, 5, 5, 5, -1][rng.usize(..9)];
    match kind.kind {
        "ConfigMap" => {
            let key =
                if rng.u8(..20) == 0 { "not/valid" } else { ["a", "b", "c.d"][rng.usize(..3)] };
            content["data"] = json!({ key: text(rng), "other": text(rng) });
            if rng.u8(..6) == 0 {
                content["binaryData"] = json!({ "bin": "AAEC" });
            }
            if rng.u8(..12) == 0 {
                content["immutable"] = json!(true);
            }
        }
        "Secret" => {
            content["stringData"] = json!({ "user": text(rng) });
            if rng.bool() {
                content["data"] = json!({ "token": "YWJj" });
            }
            if rng.u8(..4) == 0 {
                content["type"] = json!("example.com/token");
            }
        }
        "Event" => {
            let mut object =
                json!({ "kind": "ConfigMap", "name": "a", "namespace": "{{namespace}}" });
            if rng.u8(..8) == 0 {
                object["namespace"] = json!("elsewhere");
            }
            content["involvedObject"] = object;
            content["reason"] = json!("Made");
            content["message"] = json!(text(rng));
            content["type"] = Value::from(["Normal", "Warning"][rng.usize(..2)]);
            content["firstTimestamp"] = json!("2026-01-02T03:04:05Z");
            content["count"] = json!(1);
        }
        "Pod" => content["spec"] = pod_spec(rng),
        "Lease" => {
            content["spec"] = json!({ "holderIdentity": text(rng), "leaseDurationSeconds": 15 });
            if rng.bool() {
                content["spec"]["renewTime"] = json!("2026-01-02T03:04:05.123456Z");
            }
            if rng.u8(..12) == 0 {
                content["spec"]["leaseDurationSeconds"] = json!(number(rng));
            }
        }
        "Deployment" | "ReplicaSet" => {
            let label = if rng.u8(..12) == 0 { "other" } else { "web" };
            content["spec"] = json!({
                "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": label } }, "spec": pod_spec(rng) },
            });
            if rng.bool() {
                content["spec"]["replicas"] = json!(number(rng));
            }
            if kind.kind == "Deployment" && rng.u8(..8) == 0 {
                let most = [json!(0), json!("0%"), json!(1)][rng.usize(..3)].clone();
                let update = json!({ "maxSurge": 0, "maxUnavailable": most });
                content["spec"]["strategy"] = json!({ "rollingUpdate": update });
            }
        }
        "ClusterRole" | "Role" => {
            content["rules"] =
                json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]);
            if rng.u8(..6) == 0 {
                let field = ["verbs", "apiGroups", "resources", "nonResourceURLs"][rng.usize(..4)];
                content["rules"][0][field] =
                    [json!([]), json!(["/healthz"])][rng.usize(..2)].clone();
            }
        }
        "Widget" => {
            content["spec"] = json!({ "size": number(rng) });
            let spec = &mut content["spec"];
            for field in 0..5_u8 {
                if rng.u8(..3) > 0 {
                    continue;
                }
                match field {
                    0 => spec["color"] = json!(text(rng)),
                    1 => spec["name"] = Value::from(["abc", "ABC", "abcdefghijkl"][rng.usize(..3)]),
                    2 => spec["replicas"] = json!(number(rng)),
                    3 => {
                        spec["parts"] =
                            json!([{ "name": "p" }, { "name": "q", "count": number(rng) }])
                    }
                    _ => spec["tags"] = json!(["x", "y"]),
                }
            }
            if rng.u8(..10) == 0 {
                spec["limit"] = Value::Null;
            }
            if rng.u8(..10) == 0 {
                content["status"] = json!({ "phase": "sent" });
            }
            if rng.u8(..20) == 0 {
                content["spec"] = json!({ "size": "large" });
            }
        }
        "Gadget" => {
            content["color"] = json!(text(rng));
            if rng.bool() {
                content["free"] = json!({ "any": [1, { "thing": null }], "color": text(rng) });
            }
            if rng.bool() {
                content["ports"] = json!({ "http": number(rng) });
            }
            if rng.u8(..3) == 0 {
                content["fixed"] = json!(text(rng));
            }
        }
        _ => {}
    }
    if rng.u8(..25) == 0 {
        content["unknown"] = json!("field");
    }
    content
}

/// Returns the fields of an object that every server accepts.
pub(crate) fn valid_content(kind: &Kind) -> Value {
    let pod = json!({ "containers": [{ "name": "main", "image": "web" }] });
    match kind.kind {
        "Event" => json!({ "involvedObject": { "namespace": "{{namespace}}" } }),
        "Pod" => json!({ "spec": pod }),
        "Deployment" | "ReplicaSet" => json!({ "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "template": { "metadata": { "labels": { "app": "web" } }, "spec": pod },
        }}),
        "ClusterRole" | "Role" => json!({ "rules": [] }),
        "Widget" => json!({ "spec": { "size": 5 } }),
        _ => json!({}),
    }
}

/// Returns a pod whose optional fields the server sets.
fn pod_spec(rng: &mut Rng) -> Value {
    let image = ["web", "web:1"][rng.usize(..2)];
    let mut container = json!({ "name": "main", "image": image });
    if rng.u8(..3) == 0 {
        container["ports"] = json!([{ "containerPort": 80 }]);
    }
    if rng.u8(..3) == 0 {
        container["env"] = json!([{ "name": "COLOR", "value": "red" }]);
    }
    if rng.u8(..4) == 0 {
        container["resources"] = json!({ "limits": { "cpu": "1", "memory": "64Mi" } });
    }
    let mut spec = json!({ "containers": [container] });
    if rng.u8(..15) == 0 {
        let other = json!({ "name": (["main", "side"][rng.usize(..2)]), "image": "web" });
        spec["containers"] = json!([spec["containers"][0], other]);
    }
    if rng.u8(..12) == 0 {
        spec["restartPolicy"] = json!(["Never", "OnFailure", "Sometimes"][rng.usize(..3)]);
    }
    if rng.u8(..4) == 0 {
        spec["tolerations"] = json!([toleration(rng)]);
    }
    if rng.u8(..5) == 0 {
        spec["schedulingGates"] = json!([{ "name": "example.com/gate" }]);
    }
    if rng.u8(..5) == 0 {
        spec["nodeSelector"] = json!({ "zone": "a" });
    }
    spec
}

/// Returns a toleration. Some are not valid.
pub(crate) fn toleration(rng: &mut Rng) -> Value {
    let mut toleration = json!({
        "key": (["example.com/slow", "node.kubernetes.io/not-ready"][rng.usize(..2)]),
        "operator": "Exists",
        "effect": (["NoExecute", "NoSchedule", ""][rng.usize(..3)]),
    });
    match rng.u8(..10) {
        0 => toleration["tolerationSeconds"] = json!(60),
        1 => toleration["value"] = json!("x"),
        2 => toleration["operator"] = json!(["Equal", "Similar"][rng.usize(..2)]),
        3 => toleration["key"] = json!(["", "not valid!"][rng.usize(..2)]),
        4 => toleration["effect"] = json!("Nothing"),
        _ => {}
    }
    toleration
}
