//! Custom resources: the definitions of their kinds, and the validation by their schemas.

mod rules;
mod structural;
mod validate;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::definition::{Definition, text, versions};
use crate::kind::{Kind, Part};
use crate::metadata;
use crate::status::{Failure, FieldError};

/// The finalizer that keeps a definition until the objects of its kind are deleted.
pub(crate) const CUSTOM_RESOURCES: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Removes the fields that the schema does not contain, and sets defaults. Returns the paths of
/// the removed fields.
pub(crate) fn prune_and_default(
    definition: &Definition,
    object: &mut Value,
    version: &str,
) -> Vec<String> {
    let schema = definition.schema(version);
    let mut pruned = Vec::new();
    structural::prune_object(object, schema, "", &mut pruned);
    structural::set_defaults(object, schema);
    pruned
}

/// Adds an error for each field that the schema does not permit. If a field is unchanged in an
/// update, the schema need not permit it.
///
/// # Errors
///
/// Returns an error if the schema contains a feature that the testkit does not implement.
pub(crate) fn check(
    definition: &Definition,
    object: &Value,
    old: Option<&Value>,
    version: &str,
    part: Part,
    errors: &mut Vec<FieldError>,
) -> Result<(), Failure> {
    let schema = definition.schema(version);
    errors.extend(validate::check(object, old, schema, part));
    let scale = definition.scale(version);
    for (path, is_spec) in [("specReplicasPath", true), ("statusReplicasPath", false)] {
        let is_checked = !is_spec || part == Part::Main;
        if let (Some(path), true) = (scale[path].as_str(), is_checked) {
            check_replicas(object, path, errors);
        }
    }
    errors.extend(validate::check_lists(object, old, schema));
    if rules::has_rules(schema) {
        if errors.iter().any(blocks_rules) {
            let why = "some validation rules were not checked because the object was invalid; \
                       correct the existing errors to complete validation";
            errors.push(FieldError::invalid("<nil>", &Value::Null, why));
        } else {
            errors.extend(rules::check(schema, object, old)?);
        }
    }
    Ok(())
}

/// Returns the errors of an object whose body names another kind. The server checks it without
/// defaults and pruning.
pub(crate) fn check_foreign(
    definition: &Definition,
    object: &Value,
    version: &str,
) -> Result<Vec<FieldError>, Failure> {
    let mut schema = definition.schema(version).clone();
    remove_defaults(&mut schema);
    let mut errors = validate::check_lists(object, None, &schema);
    errors.extend(rules::check(&schema, object, None)?);
    Ok(errors)
}

/// Removes the defaults from a schema, because the evaluator of rules would set them.
fn remove_defaults(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // A property can have the name `default`. Its value is a schema, which contains a
            // type.
            fields.retain(|name, value| name != "default" || value["type"].is_string());
            fields.values_mut().for_each(remove_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_defaults),
        _ => {}
    }
}

/// Returns true if the API server does not evaluate the rules of an object that has this error.
fn blocks_rules(error: &FieldError) -> bool {
    matches!(
        error.reason,
        "FieldValueNotSupported"
            | "FieldValueRequired"
            | "FieldValueTooLong"
            | "FieldValueTooMany"
            | "FieldValueTypeInvalid"
    )
}

/// Checks a number of replicas, which the definition makes available in the subresource `scale` by
/// this path.
fn check_replicas(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let parts = path.split('.').filter(|part| !part.is_empty());
    let value = parts.fold(object, |value, part| &value[part]);
    let Some(replicas) = value.as_i64() else { return };
    let why = if replicas < 0 {
        "should be a non-negative integer"
    } else if replicas > i64::from(i32::MAX) {
        "should be less than or equal to 2147483647"
    } else {
        return;
    };
    errors.push(FieldError::invalid(path, value, why));
}

/// Returns the kinds that a definition defines, one for each served version.
pub(crate) fn kinds(definition: &Arc<Value>) -> Vec<Kind> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(text).collect()
    };
    let verbs = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
    versions(definition)
        .filter(|version| version["served"] == true)
        .map(|version| Kind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            kind: text(&names["kind"]),
            plural: text(&names["plural"]),
            singular: text(&names["singular"]),
            short_names: list(&names["shortNames"]),
            categories: list(&names["categories"]),
            is_namespaced: spec["scope"] == "Namespaced",
            subresources: ["status", "scale"]
                .into_iter()
                .filter(|name| version["subresources"][name].is_object())
                .map(str::to_owned)
                .collect(),
            verbs: verbs.map(str::to_owned).to_vec(),
            definition: Some(Arc::new(Definition::new(Arc::clone(definition)))),
        })
        .collect()
}

/// Returns the group and the plural of the resource that a definition defines.
pub(crate) fn resource_of(definition: &Value) -> (&str, &str) {
    let spec = &definition["spec"];
    let group = spec["group"].as_str().unwrap_or_default();
    (group, spec["names"]["plural"].as_str().unwrap_or_default())
}

/// Checks a definition, and sets the fields that the API server and its controllers set. Returns
/// the errors in fields.
///
/// # Errors
///
/// Returns an error if the definition contains a feature that the testkit does not implement.
pub(crate) fn complete(
    definition: &mut Value,
    old: Option<&Value>,
    now: Timestamp,
) -> Result<Vec<FieldError>, Failure> {
    let mut errors = check_definition(definition);
    if let Some(old) = old {
        check_change(definition, old, &mut errors);
    }
    if !errors.is_empty() {
        return Ok(errors);
    }
    let strategy = &definition["spec"]["conversion"]["strategy"];
    if strategy == "Webhook" {
        return Err(Failure::not_implemented("conversion of custom resources by webhooks"));
    }
    let checked: Vec<_> = versions(definition).cloned().collect();
    for version in &checked {
        let schema = &version["schema"]["openAPIV3Schema"];
        validate::check_schema(schema)?;
        rules::check_schema(schema)?;
    }
    let spec = &mut definition["spec"];
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({ "strategy": "None" });
    }
    let names = &mut spec["names"];
    let kind = text(&names["kind"]);
    if names["singular"].as_str().is_none_or(str::is_empty) {
        names["singular"] = json!(kind.to_lowercase());
    }
    if names["listKind"].as_str().is_none_or(str::is_empty) {
        names["listKind"] = json!(format!("{kind}List"));
    }
    let names = names.clone();
    // A new definition has no stored versions. Later, only a write of the status can remove stored
    // versions.
    let status = old.map_or(Value::Null, |_| definition["status"].clone());
    let mut stored = status["storedVersions"].as_array().cloned().unwrap_or_default();
    for version in checked.iter().filter(|version| version["storage"] == true) {
        if !stored.contains(&version["name"]) {
            stored.push(version["name"].clone());
        }
    }
    let since = status["conditions"][0]["lastTransitionTime"].as_str();
    let since = since.map_or_else(|| metadata::time(now), str::to_owned);
    definition["status"] = json!({
        "acceptedNames": names,
        "conditions": [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": since,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": since,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "storedVersions": stored,
    });
    if old.is_none() {
        let meta = &mut definition["metadata"];
        let mut finalizers = meta["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|it| it == CUSTOM_RESOURCES) {
            finalizers.push(json!(CUSTOM_RESOURCES));
        }
        meta["finalizers"] = json!(finalizers);
    }
    Ok(Vec::new())
}

/// Adds the errors of a change of a definition. After the change, the server must still be able to
/// read stored objects.
fn check_change(definition: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for (field, pointer) in [("spec.scope", "/spec/scope"), ("spec.names.kind", "/spec/names/kind")]
    {
        let value = |object: &Value| object.pointer(pointer).cloned().unwrap_or_default();
        if value(definition) != value(old) {
            errors.push(FieldError::invalid(field, &value(definition), "field is immutable"));
        }
    }
    let stored = definition["status"]["storedVersions"].as_array().map(Vec::as_slice);
    let stored = stored.unwrap_or_default();
    for (at, name) in stored.iter().enumerate() {
        if !versions(definition).any(|version| version["name"] == *name) {
            let why = "missing from spec.versions; it was previously a storage version, and must \
                       remain in spec.versions until a storage migration ensures no data remains \
                       persisted in it and removes it from status.storedVersions";
            errors.push(FieldError::invalid(format!("status.storedVersions[{at}]"), name, why));
        }
    }
    // A write of the spec adds the storage version to the stored versions. A write of the status
    // must not remove it.
    let is_same = definition["spec"]["versions"] == old["spec"]["versions"];
    let storage = versions(definition).filter(|version| version["storage"] == true && is_same);
    for version in storage.filter(|version| !stored.contains(&version["name"])) {
        let name = &version["name"];
        let why = format!("must have the storage version {}", text(name));
        errors.push(FieldError::invalid("status.storedVersions", name, &why));
    }
}

fn check_definition(definition: &Value) -> Vec<FieldError> {
    let spec = &definition["spec"];
    let mut errors = Vec::new();
    let (group, plural) = resource_of(definition);
    for (field, value) in [
        ("spec.group", &spec["group"]),
        ("spec.names.plural", &spec["names"]["plural"]),
        ("spec.names.kind", &spec["names"]["kind"]),
    ] {
        if value.as_str().is_none_or(str::is_empty) {
            errors.push(FieldError::required(field, ""));
        }
    }
    let name = &definition["metadata"]["name"];
    if *name != format!("{plural}.{group}") {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", name, why));
    }
    let scopes = [json!("Cluster"), json!("Namespaced")];
    if !scopes.contains(&spec["scope"]) {
        errors.push(FieldError::not_supported("spec.scope", &spec["scope"], &scopes));
    }
    if spec["preserveUnknownFields"] == true {
        let why = "must be false in order to use defaults in the schema";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    if versions(definition).filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", &json!([]), why));
    }
    for (at, version) in versions(definition).enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let field = format!("spec.versions[{at}].schema.openAPIV3Schema");
            errors.push(FieldError::required(field, "schemas are required"));
        } else {
            let schema = &version["schema"]["openAPIV3Schema"];
            let path = format!("spec.versions[{at}].schema.openAPIV3Schema");
            errors.extend(structural::check_form(schema, &path));
        }
    }
    errors
}
