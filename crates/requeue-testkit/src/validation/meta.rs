//! Validates metadata like the functions `ValidateObjectMeta` and
//! `ValidateObjectMetaUpdate` of apimachinery.

use serde_json::{Value, json};

use super::names::{
    dns_label_errors, label_key_errors, label_value_errors, segment_errors, subdomain_errors,
};
use crate::status::FieldError;

/// The rule for the names of the objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Names {
    /// Permits every name that can be a segment of a path.
    Segment,
    Subdomain,
    Label,
}

/// The rules for the finalizers of a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finalizers {
    /// The rules that apply to all kinds.
    Common,
    /// The additional rules of the kinds that Kubernetes validates like those of the
    /// core group.
    Core,
}

/// Returns the errors in the metadata of an object.
pub(super) fn check(object: &Value, names: Names, finalizers: Finalizers) -> Vec<FieldError> {
    let meta = &object["metadata"];
    let text = |field: &str| meta[field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    let prefix = text("generateName");
    // The prefix may end with a dash, because random characters follow it. As on the API server, the
    // dash and the character before it are replaced with a letter for the check.
    let prefix_as_name = match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() && names != Names::Segment => {
            let mut masked = rest.to_owned();
            masked.pop();
            masked + "a"
        }
        _ => prefix.to_owned(),
    };
    if !prefix.is_empty() {
        for why in name_errors(&prefix_as_name, names) {
            errors.push(FieldError::invalid("metadata.generateName", &json!(prefix), &why));
        }
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for why in name_errors(name, names) {
            errors.push(FieldError::invalid("metadata.name", &json!(name), &why));
        }
    }
    check_maps(meta, &mut errors);
    check_owners(&meta["ownerReferences"], &mut errors);
    check_finalizers(&meta["finalizers"], &mut errors);
    if finalizers == Finalizers::Core {
        check_core_finalizers(&meta["finalizers"], &mut errors);
    }
    errors
}

/// Returns the errors in a change of metadata.
pub(super) fn check_change(new: &Value, old: &Value, finalizers: Finalizers) -> Vec<FieldError> {
    let (new, old) = (&new["metadata"], &old["metadata"]);
    let mut errors = Vec::new();
    if !old["deletionTimestamp"].is_null() {
        check_no_new_finalizers(&new["finalizers"], &old["finalizers"], &mut errors);
    }
    for field in ["name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if new[field] != old[field] {
            let path = format!("metadata.{field}");
            errors.push(FieldError::invalid(path, &new[field], "field is immutable"));
        }
    }
    check_maps(new, &mut errors);
    check_owners(&new["ownerReferences"], &mut errors);
    if finalizers == Finalizers::Core {
        check_core_finalizers(&new["finalizers"], &mut errors);
    }
    errors
}

fn name_errors(name: &str, names: Names) -> Vec<String> {
    match names {
        Names::Segment => segment_errors(name),
        Names::Subdomain => subdomain_errors(name),
        Names::Label => dns_label_errors(name),
    }
}

fn check_maps(meta: &Value, errors: &mut Vec<FieldError>) {
    check_labels(&meta["labels"], "metadata.labels", errors);
    for (annotation, value) in meta["annotations"].as_object().into_iter().flatten() {
        for why in label_key_errors(&annotation.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &json!(annotation), &why));
        }
        check_text("metadata.annotations", value, errors);
    }
}

/// Checks the labels of an object or of a template. `field` is the path of the labels.
pub(super) fn check_labels(labels: &Value, field: &str, errors: &mut Vec<FieldError>) {
    for (label, value) in labels.as_object().into_iter().flatten() {
        for why in label_key_errors(label) {
            errors.push(FieldError::invalid(field, &json!(label), &why));
        }
        check_text(field, value, errors);
        for why in label_value_errors(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(field, value, &why));
        }
    }
}

fn check_text(field: &str, value: &Value, errors: &mut Vec<FieldError>) {
    if !value.is_string() {
        errors.push(FieldError::type_invalid(field, value, "must be a string"));
    }
}

fn check_finalizers(finalizers: &Value, errors: &mut Vec<FieldError>) {
    for finalizer in finalizers.as_array().into_iter().flatten() {
        for why in label_key_errors(finalizer.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, &why));
        }
    }
}

fn check_core_finalizers(finalizers: &Value, errors: &mut Vec<FieldError>) {
    for (at, finalizer) in finalizers.as_array().into_iter().flatten().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        let is_standard = ["foregroundDeletion", "kubernetes", "orphan"].contains(&name);
        if !name.contains('/') && !is_standard {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            let field = format!("metadata.finalizers[{at}]");
            errors.push(FieldError::invalid(field, finalizer, why));
        }
    }
}

fn check_no_new_finalizers(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let before = old.as_array().map(Vec::as_slice).unwrap_or_default();
    let added: std::collections::BTreeSet<_> = new
        .as_array()
        .into_iter()
        .flatten()
        .filter(|finalizer| !before.contains(finalizer))
        .map(Value::to_string)
        .collect();
    if !added.is_empty() {
        let added: Vec<_> = added.into_iter().collect();
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            added.join(", ")
        );
        errors.push(FieldError::forbidden("metadata.finalizers", &why));
    }
}

fn check_owners(owners: &Value, errors: &mut Vec<FieldError>) {
    let owners = owners.as_array().map(Vec::as_slice).unwrap_or_default();
    for (at, owner) in owners.iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences[{at}].{field}");
                errors.push(FieldError::required(path, "must not be empty"));
            }
        }
        if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
            let field = format!("metadata.ownerReferences[{at}]");
            // The API server prints the reference with the fields in the order of the
            // Go struct.
            let names = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
            let shown = names.into_iter().filter(|name| !owner[name].is_null());
            let shown: Vec<_> = shown.map(|name| format!("\"{name}\":{}", owner[name])).collect();
            let why = format!(
                "{{{}}}: /v1, Kind=Event is disallowed from being an owner",
                shown.join(",")
            );
            errors.push(FieldError::invalid_without_value(field, &why));
        }
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut controllers = owners.iter().filter(|owner| owner["controller"] == true);
    let shown = |owner: &Value| format!("{}/{}", text(&owner["kind"]), text(&owner["name"]));
    let first = controllers.next().map(shown);
    for other in controllers {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {} and {}",
            first.as_deref().unwrap_or_default(),
            shown(other),
        );
        errors.push(FieldError::invalid("metadata.ownerReferences", &json!(owners), &why));
    }
}
