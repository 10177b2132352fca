//! Completes objects before they are stored, as the strategies of the kinds do in
//! Kubernetes.

use serde_json::{Value, json};

use crate::defaults;
use crate::events;
use crate::kind::{Kind, Part};

/// Completes an object that a request creates.
pub(super) fn prepare_for_create(object: &mut Value, kind: &Kind) {
    remove_empty_rules(object, kind);
    // A kubelet creates its Node with a status, so that status is kept. The status of a
    // definition is also kept.
    let keeps_status = kind.is_definition() || kind.is_core("nodes");
    if kind.has_subresource("status") && !keeps_status {
        remove(object, "status");
    }
    complete(object, kind);
    if kind.definition.is_none() {
        // Go writes an empty status with its counters, so they are set too.
        defaults::set(object, kind);
    }
}

/// Replaces the fields that a write to this part of the object cannot change with those
/// of the stored object.
pub(super) fn prepare_for_update(new: &mut Value, old: &Value, kind: &Kind, part: Part) {
    remove_empty_rules(new, kind);
    if part == Part::Main {
        if kind.has_subresource("status") {
            set_or_remove(new, "status", old["status"].clone());
        }
        if kind.is_core("namespaces") {
            // The finalizers in the spec of a Namespace can be changed only by the
            // subresource `finalize`.
            set_or_remove(new, "spec", old["spec"].clone());
        }
        return;
    }
    if kind.definition.is_some() {
        let status = new["status"].take();
        let managed_fields = new["metadata"]["managedFields"].take();
        *new = old.clone();
        set_or_remove(new, "status", status);
        set_or_remove(&mut new["metadata"], "managedFields", managed_fields);
        return;
    }
    set_or_remove(new, "spec", old["spec"].clone());
    let kept: &[&str] = match &*kind.plural {
        "deployments" => &["labels"],
        "pods" => &["ownerReferences"],
        "customresourcedefinitions" | "csinodes" | "servicecidrs" | "volumeattachments" => {
            &["annotations", "finalizers", "labels", "ownerReferences"]
        }
        _ => &[],
    };
    for field in kept {
        set_or_remove(&mut new["metadata"], field, old["metadata"][*field].clone());
    }
    if kind.is_core("pods") && new["status"]["qosClass"].is_null() {
        new["status"]["qosClass"] = old["status"]["qosClass"].clone();
    }
}

/// The API server stores a role with an empty list of rules like a role without rules.
fn remove_empty_rules(role: &mut Value, kind: &Kind) {
    if kind.group == "rbac.authorization.k8s.io" && role["rules"] == json!([]) {
        remove(role, "rules");
    }
}

/// Sets the fields of a Namespace that the API server sets when it creates one.
pub(super) fn complete_namespace(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].clone();
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    let mut finalizers = namespace["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|it| it == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    namespace["spec"]["finalizers"] = json!(finalizers);
    namespace["status"] = json!({ "phase": "Active" });
}

/// Sets the fields without which typical clients of these kinds do not work.
fn complete(object: &mut Value, kind: &Kind) {
    if !kind.group.is_empty() {
        return;
    }
    match &*kind.plural {
        "namespaces" => complete_namespace(object),
        "pods" => {
            let quality = defaults::quality_of_service(object);
            object["status"] = json!({ "phase": "Pending", "qosClass": quality });
            if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                let message = "Scheduling is blocked due to non-empty scheduling gates";
                object["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": message, "lastProbeTime": null,
                    "lastTransitionTime": object["metadata"]["creationTimestamp"],
                }]);
            }
        }
        "persistentvolumeclaims" | "persistentvolumes" => {
            object["status"] = json!({ "phase": "Pending" });
        }
        _ => {}
    }
}

/// Encodes the texts in `stringData` of a Secret, and moves them to `data`.
pub(super) fn encode_string_data(secret: &mut Value) {
    use base64::Engine;
    let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|it| it.remove("stringData"))
    else {
        return;
    };
    for (name, text) in texts {
        let text = text.as_str().unwrap_or_default();
        secret["data"][name] = json!(base64::prelude::BASE64_STANDARD.encode(text));
    }
}

/// Returns true if the write must increase the generation of the object.
pub(super) fn is_new_generation(old: &Value, new: &Value, kind: &Kind) -> bool {
    if !kind.has_generation() {
        return false;
    }
    if kind.definition.is_none() {
        // The annotations of a Deployment affect its generation, because it copies them
        // to its ReplicaSets.
        let counts_annotations = kind.plural == "deployments"
            && old["metadata"]["annotations"] != new["metadata"]["annotations"];
        let is_spec = kind.plural != "endpointslices" && kind.plural != "podtemplates";
        if is_spec {
            return old["spec"] != new["spec"] || counts_annotations;
        }
    }
    let counted = |object: &Value| {
        let mut object = object.clone();
        remove(&mut object, "metadata");
        if kind.has_subresource("status") {
            remove(&mut object, "status");
        }
        object
    };
    counted(old) != counted(new)
}

/// Converts an object to the version in which it is stored.
pub(super) fn to_storage(mut object: Value, kind: &Kind) -> Value {
    if kind.is_new_event() {
        return events::to_core(&object);
    }
    if let Some(definition) = &kind.definition {
        object["apiVersion"] = json!(format!("{}/{}", kind.group, definition.storage_version()));
    }
    object
}

fn set_or_remove(object: &mut Value, field: &str, value: Value) {
    if value.is_null() {
        remove(object, field);
    } else {
        object[field] = value;
    }
}

pub(super) fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}
