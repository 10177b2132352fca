//! The metadata that only the server sets.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::temporal::DateTimePrinter;
use serde_json::{Value, json};

use crate::kind::Kind;

/// The fields of metadata that a client cannot set.
const OF_SERVER: [&str; 5] =
    ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "uid"];

/// Formats a time as in metadata: RFC 3339 with whole seconds.
pub(crate) fn time(now: Timestamp) -> String {
    DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&now)
}

/// Sets the metadata that the server sets in a new object, and removes values from the
/// client.
pub(crate) fn begin(object: &mut Value, kind: &Kind, uid: &str, now: Timestamp) {
    let Some(meta) = object["metadata"].as_object_mut() else { return };
    for field in OF_SERVER {
        meta.remove(field);
    }
    meta.remove("resourceVersion");
    meta.remove("selfLink");
    meta.insert("uid".into(), json!(uid));
    meta.insert("creationTimestamp".into(), json!(time(now)));
    if kind.has_generation() {
        meta.insert("generation".into(), json!(1));
    }
}

/// Copies the metadata that only the server sets from the stored object to the new
/// object.
pub(crate) fn keep(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let Some(new) = new["metadata"].as_object_mut() else { return };
    for field in ["creationTimestamp", "generation", "namespace", "resourceVersion"] {
        match &old[field] {
            Value::Null => new.remove(field),
            value => new.insert(field.into(), value.clone()),
        };
    }
    let is_empty = |value: Option<&Value>| value.is_none_or(|it| it.is_null() || it == "");
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let is_kept = field == "deletionTimestamp" || is_empty(new.get(field));
        if is_kept && !old[field].is_null() {
            new.insert(field.into(), old[field].clone());
        }
    }
    new.remove("selfLink");
}

/// Sets the managed fields. If the list is empty, removes the field.
pub(crate) fn set_managed_fields(object: &mut Value, managed_fields: Value) {
    let Some(meta) = object["metadata"].as_object_mut() else { return };
    match managed_fields.as_array() {
        Some(entries) if !entries.is_empty() => {
            meta.insert("managedFields".into(), managed_fields);
        }
        _ => {
            meta.remove("managedFields");
        }
    }
}

/// Returns true if an object is being deleted, and neither a finalizer nor a grace
/// period keeps it.
pub(crate) fn is_ready_to_go(object: &Value) -> bool {
    let meta = &object["metadata"];
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    let is_held_namespace = object["kind"] == "Namespace"
        && object["apiVersion"] == "v1"
        && !is_empty(&object["spec"]["finalizers"]);
    !meta["deletionTimestamp"].is_null()
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && is_empty(&meta["finalizers"])
        && !is_held_namespace
}
