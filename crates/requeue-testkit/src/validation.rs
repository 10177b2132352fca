//! Checks objects of built-in kinds as the API server does, beside their metadata and the types of their fields.
//!
//! It covers the kinds that controllers write most: ConfigMaps, Secrets, Leases, Events, Deployments and ReplicaSets.

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::status::FieldError;

/// Returns the fields that the API server refuses.
pub(crate) fn check(object: &Value, old: Option<&Value>, kind: &Kind) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match (&*kind.group, &*kind.plural) {
        ("", "configmaps") => {
            check_immutable(object, old, &["data", "binaryData"], &mut errors);
            check_keys(object, "data", &mut errors);
            check_keys(object, "binaryData", &mut errors);
        }
        ("", "secrets") => {
            if let Some(old) = old {
                check_same(object, old, "/type", &mut errors);
            }
            check_immutable(object, old, &["data"], &mut errors);
            check_keys(object, "data", &mut errors);
        }
        ("", "events") => check_event(object, &mut errors),
        ("coordination.k8s.io", "leases") => {
            let duration = &object["spec"]["leaseDurationSeconds"];
            if duration.as_i64().is_some_and(|seconds| seconds <= 0) {
                let field = "spec.leaseDurationSeconds";
                errors.push(FieldError::invalid(field, duration, "must be greater than 0"));
            }
        }
        ("apps", "deployments" | "replicasets") => check_workload(object, old, &mut errors),
        _ => {}
    }
    errors
}

/// Refuses another value of a field that never changes.
fn check_same(object: &Value, old: &Value, pointer: &str, errors: &mut Vec<FieldError>) {
    let value = |object: &Value| object.pointer(pointer).cloned().unwrap_or_default();
    if value(object) != value(old) {
        let field = pointer.trim_start_matches('/').replace('/', ".");
        errors.push(FieldError::invalid(field, &value(object), "field is immutable"));
    }
}

/// Refuses changes of an object that is marked as immutable.
fn check_immutable(
    object: &Value,
    old: Option<&Value>,
    fields: &[&str],
    errors: &mut Vec<FieldError>,
) {
    let Some(old) = old.filter(|old| old["immutable"] == true) else { return };
    let why = "field is immutable when `immutable` is set";
    if object["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", why));
    }
    for field in fields.iter().filter(|field| object[**field] != old[**field]) {
        errors.push(FieldError::forbidden(*field, why));
    }
}

fn check_keys(object: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let is_key = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key) {
        if key.is_empty() || !key.chars().all(is_key) {
            let why = "a valid config key must consist of alphanumeric characters, '-', '_' or \
                       '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for \
                       validation is '[-._a-zA-Z0-9]+')";
            errors.push(FieldError::invalid(format!("{field}[{key}]"), &json!(key), why));
        }
    }
}

/// An event of the old form is in the namespace of the object that it is about.
fn check_event(event: &Value, errors: &mut Vec<FieldError>) {
    if event["eventTime"].is_string() {
        return;
    }
    let own = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let involved = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    if involved != own && (!involved.is_empty() || own != "default") {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(involved), why));
    }
}

fn check_workload(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", &spec["replicas"], why));
    }
    let wanted = spec["selector"]["matchLabels"].as_object();
    let labels = &spec["template"]["metadata"]["labels"];
    if spec["selector"].is_null() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if wanted.into_iter().flatten().any(|(label, value)| labels[label] != *value) {
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
    }
    if let Some(old) = old {
        check_same(object, old, "/spec/selector", errors);
    }
}
