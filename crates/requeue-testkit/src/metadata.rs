//! The metadata that the server sets and checks.

use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::temporal::DateTimePrinter;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::status::{Failure, FieldError};
use crate::validation;

/// Metadata that only the server sets.
const OF_SERVER: [&str; 5] =
    ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "uid"];

/// Returns a time as in metadata: RFC 3339, in seconds.
pub(crate) fn time(now: Timestamp) -> String {
    DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&now)
}

/// Sets the metadata of a new object.
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

/// Takes the metadata that only the server sets from the stored object.
///
/// # Errors
///
/// The new object contradicts the stored one.
pub(crate) fn keep(new: &mut Value, old: &Value, kind: &Kind) -> Result<(), Failure> {
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let (old, new) = (&old["metadata"], &mut new["metadata"]);
    let mut errors = Vec::new();
    for field in ["name", "uid", "deletionTimestamp"] {
        // An object that is being deleted keeps its time, although the client sends another.
        let is_kept = field == "deletionTimestamp" && !old[field].is_null();
        if !is_kept && !new[field].is_null() && new[field] != old[field] {
            let path = format!("metadata.{field}");
            errors.push(FieldError::invalid(path, &new[field], "field is immutable"));
        }
    }
    if !old["deletionTimestamp"].is_null() {
        let before = old["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let added: Vec<_> = new["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|finalizer| !before.contains(finalizer))
            .map(Value::to_string)
            .collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new \
                 finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    if !errors.is_empty() {
        return Err(Failure::invalid(kind, name, &errors));
    }
    let Some(new) = new.as_object_mut() else { return Ok(()) };
    for field in OF_SERVER.iter().chain(&["name", "namespace", "resourceVersion"]) {
        match &old[*field] {
            Value::Null => new.remove(*field),
            value => new.insert((*field).into(), value.clone()),
        };
    }
    new.remove("selfLink");
    Ok(())
}

/// Sets the managed fields, or removes them if there are none.
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

/// Returns whether nothing holds an object that is being deleted.
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

/// Checks the metadata that clients set.
pub(crate) fn check(object: &Value, old: Option<&Value>, kind: &Kind) -> Result<(), Failure> {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if kind.group == "rbac.authorization.k8s.io" {
        if name.contains('/') || name.contains('%') || name == "." || name == ".." {
            let why = "may not contain '/' or '%', and may not be '.' or '..'";
            errors.push(FieldError::invalid("metadata.name", &json!(name), why));
        }
    } else if kind.is_core("namespaces") || kind.is_core("services") {
        if name.len() > 63 {
            let why = "must be no more than 63 bytes";
            errors.push(FieldError::invalid("metadata.name", &json!(name), why));
        }
        if name.contains('.') || !is_subdomain(name) {
            let why = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
                       characters or '-', and must start and end with an alphanumeric character \
                       (e.g. 'my-name',  or '123-abc', regex used for validation is \
                       '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
            errors.push(FieldError::invalid("metadata.name", &json!(name), why));
        }
    } else if !is_subdomain(name) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                   characters, '-' or '.', and must start and end with an alphanumeric character \
                   (e.g. 'example.com', regex used for validation is \
                   '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        errors.push(FieldError::invalid("metadata.name", &json!(name), why));
    }
    for (label, value) in meta["labels"].as_object().into_iter().flatten() {
        check_label(label, value, &mut errors);
    }
    for (annotation, value) in meta["annotations"].as_object().into_iter().flatten() {
        if !is_qualified_name(&annotation.to_lowercase()) {
            errors.push(not_qualified("metadata.annotations", annotation));
        }
        check_text("metadata.annotations", value, &mut errors);
    }
    check_finalizers(&meta["finalizers"], kind, &mut errors);
    check_owners(&meta["ownerReferences"], &mut errors);
    errors.extend(validation::check(object, old, kind));
    if errors.is_empty() { Ok(()) } else { Err(Failure::invalid(kind, name, &errors)) }
}

fn check_label(label: &str, value: &Value, errors: &mut Vec<FieldError>) {
    if !is_qualified_name(label) {
        errors.push(not_qualified("metadata.labels", label));
    }
    check_text("metadata.labels", value, errors);
    let text = value.as_str().unwrap_or_default();
    if !text.is_empty() && !is_name(text) {
        let why = "a valid label must be an empty string or consist of alphanumeric characters, \
                   '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
                   'MyValue',  or 'my_value',  or '12345', regex used for validation is \
                   '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        errors.push(FieldError::invalid("metadata.labels", value, why));
    }
}

fn check_text(field: &str, value: &Value, errors: &mut Vec<FieldError>) {
    if !value.is_string() {
        errors.push(FieldError::type_invalid(field, value, "must be a string"));
    }
}

fn not_qualified(field: &str, name: &str) -> FieldError {
    let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
               and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or \
               '123-abc', regex used for validation is \
               '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    FieldError::invalid(field, &json!(name), why)
}

fn check_finalizers(finalizers: &Value, kind: &Kind, errors: &mut Vec<FieldError>) {
    for (at, finalizer) in finalizers.as_array().into_iter().flatten().enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        if !is_qualified_name(name) {
            errors.push(not_qualified("metadata.finalizers", name));
        }
        let is_built_in = kind.definition.is_none() && !kind.is_definition();
        let is_standard = ["foregroundDeletion", "kubernetes", "orphan"].contains(&name);
        if is_built_in && !name.contains('/') && !is_standard {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            let field = format!("metadata.finalizers[{at}]");
            errors.push(FieldError::invalid(field, finalizer, why));
        }
    }
}

fn check_owners(owners: &Value, errors: &mut Vec<FieldError>) {
    let owners = owners.as_array().map(Vec::as_slice).unwrap_or_default();
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                let path = format!("metadata.ownerReferences.{field}");
                errors.push(FieldError::invalid(path, &owner[field], "must not be empty"));
            }
        }
    }
    let controllers = owners.iter().filter(|owner| owner["controller"] == true);
    let names: Vec<_> = controllers.map(|owner| &owner["name"]).collect();
    if let [first, .., last] = names.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {first} and {last}"
        );
        errors.push(FieldError::invalid("metadata.ownerReferences", &Value::Null, &why));
    }
}

fn is_subdomain(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 253
        && name.split('.').all(|part| {
            part.bytes().all(is_inner)
                && !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

/// Returns whether the text is the name part of a label: at most 63 characters.
fn is_name(text: &str) -> bool {
    let is_inner = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let is_edge = |character: char| character.is_ascii_alphanumeric();
    !text.is_empty()
        && text.len() <= 63
        && text.chars().all(is_inner)
        && text.starts_with(is_edge)
        && text.ends_with(is_edge)
}

fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_name(name),
        None => is_name(text),
    }
}
