//! Structural schemas: the check of their form, pruning, and defaults.

use serde_json::{Map, Value};

use crate::schema::join;
use crate::status::FieldError;

/// Removes the fields of an object that its schema does not contain. The metadata is kept. Adds the
/// paths of the removed fields to `pruned`.
pub(super) fn prune_object(
    object: &mut Value,
    schema: &Value,
    path: &str,
    pruned: &mut Vec<String>,
) {
    let kept = ["apiVersion", "kind", "metadata"];
    prune_fields(object, schema, path, &kept, pruned);
}

fn prune(value: &mut Value, schema: &Value, path: &str, pruned: &mut Vec<String>) {
    if schema["x-kubernetes-embedded-resource"] == true {
        return prune_object(value, schema, path, pruned);
    }
    match value {
        Value::Object(_) => prune_fields(value, schema, path, &[], pruned),
        Value::Array(items) if schema["items"].is_object() => {
            for (at, item) in items.iter_mut().enumerate() {
                prune(item, &schema["items"], &format!("{path}[{at}]"), pruned);
            }
        }
        _ => {}
    }
}

fn prune_fields(
    value: &mut Value,
    schema: &Value,
    path: &str,
    kept: &[&str],
    pruned: &mut Vec<String>,
) {
    let Some(fields) = value.as_object_mut() else { return };
    let properties = &schema["properties"];
    let additional = &schema["additionalProperties"];
    let keeps_unknown =
        schema["x-kubernetes-preserve-unknown-fields"] == true || additional == &Value::Bool(true);
    fields.retain(|name, field| {
        let path = join(path, name);
        if kept.contains(&&**name) {
            return true;
        }
        if let Some(schema) = properties.get(name) {
            prune(field, schema, &path, pruned);
        } else if additional.is_object() {
            prune(field, additional, &path, pruned);
        } else if !keeps_unknown {
            pruned.push(path);
            return false;
        }
        true
    });
}

/// Sets the defaults of fields that are missing, or are null although the schema does not permit
/// null.
pub(super) fn set_defaults(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let empty = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&empty);
            for (name, schema) in properties {
                let is_missing = match fields.get(name) {
                    None => true,
                    Some(value) => value.is_null() && schema["nullable"] != true,
                };
                if let Some(default) = schema.get("default")
                    && is_missing
                {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    // If the schema neither permits null nor has a default, a null field counts as
                    // missing.
                    if field.is_null() && schema["nullable"] != true {
                        fields.remove(name);
                    } else {
                        set_defaults(field, schema);
                    }
                }
            }
            let additional = &schema["additionalProperties"];
            if additional.is_object() {
                let others = fields.iter_mut().filter(|(name, _)| !properties.contains_key(*name));
                for (_, field) in others {
                    set_defaults(field, additional);
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for item in items {
                set_defaults(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

/// Returns the reasons why a schema is not structural.
pub(super) fn check_form(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if schema["type"].as_str().is_some_and(|found| !found.is_empty() && found != "object") {
        let why = "must be object at the root";
        errors.push(FieldError::invalid(join(path, "type"), &schema["type"], why));
    }
    check_node(schema, path, "at the root", &mut errors);
    errors
}

/// Checks a schema that is not inside `allOf`, `anyOf`, `oneOf` or `not`. `place` describes its
/// position in the text of errors.
fn check_node(schema: &Value, path: &str, place: &str, errors: &mut Vec<FieldError>) {
    let is_true = |keyword: &str| schema[keyword] == true;
    let has_type = schema["type"].as_str().is_some_and(|found| !found.is_empty());
    let needs_no_type =
        is_true("x-kubernetes-int-or-string") || is_true("x-kubernetes-preserve-unknown-fields");
    if !has_type && !needs_no_type {
        let why = format!("must not be empty {place}");
        errors.push(FieldError::required(join(path, "type"), &why));
    }
    let additional = &schema["additionalProperties"];
    let properties = schema["properties"].as_object();
    if !additional.is_null() && properties.is_some_and(|it| !it.is_empty()) {
        let why = "additionalProperties and properties are mutual exclusive";
        errors.push(FieldError::forbidden(join(path, "additionalProperties"), why));
    }
    if *additional == false {
        let why = "additionalProperties cannot be set to false";
        errors.push(FieldError::forbidden(join(path, "additionalProperties"), why));
    }
    check_unique(schema, path, errors);
    for (name, field) in properties.into_iter().flatten() {
        let path = format!("{}[{name}]", join(path, "properties"));
        check_node(field, &path, "for specified object fields", errors);
    }
    if additional.is_object() {
        let path = join(path, "additionalProperties");
        check_node(additional, &path, "for specified object fields", errors);
    }
    if schema["items"].is_object() {
        check_node(&schema["items"], &join(path, "items"), "for specified array items", errors);
    }
    let is_either = is_true("x-kubernetes-int-or-string");
    for (inner, inner_path) in alternatives(schema, path) {
        check_nested(inner, &inner_path, Some(schema), path, is_either, errors);
    }
}

/// Returns the schemas directly inside `allOf`, `anyOf`, `oneOf` and `not`, each with its path.
fn alternatives<'a>(schema: &'a Value, path: &str) -> Vec<(&'a Value, String)> {
    let mut found = Vec::new();
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let path = join(path, keyword);
        let list = schema[keyword].as_array().into_iter().flatten().enumerate();
        found.extend(list.map(|(at, inner)| (inner, format!("{path}[{at}]"))));
    }
    if schema["not"].is_object() {
        found.push((&schema["not"], join(path, "not")));
    }
    found
}

/// Checks a schema inside `allOf`, `anyOf`, `oneOf` or `not`. It may only restrict values that
/// `outer` describes.
///
/// `is_either` is true for the two alternatives of an integer or a string, because only they may
/// contain a type.
fn check_nested(
    schema: &Value,
    path: &str,
    outer: Option<&Value>,
    outer_path: &str,
    is_either: bool,
    errors: &mut Vec<FieldError>,
) {
    let Some(outer) = outer else {
        let why = format!("because it is defined in {path}");
        errors.push(FieldError::required(outer_path, &why));
        return;
    };
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let is_set = match keyword.as_str() {
            "type" if is_either => *value != "integer" && *value != "string",
            "type" | "title" | "description" | "default" | "additionalProperties" => {
                !value.is_null()
            }
            "x-kubernetes-validations" => false,
            "nullable" => *value == true,
            other => other.starts_with("x-kubernetes-") && *value != false,
        };
        if is_set {
            let why = "must be undefined to be structural";
            errors.push(FieldError::forbidden(join(path, keyword), why));
        }
    }
    check_unique(schema, path, errors);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let own_path = format!("{}[{name}]", join(path, "properties"));
        let additional = Some(&outer["additionalProperties"]).filter(|it| it.is_object());
        let found = outer["properties"].get(name).or(additional);
        let found_path = format!("{}[{name}]", join(outer_path, "properties"));
        check_nested(field, &own_path, found, &found_path, false, errors);
    }
    if schema["items"].is_object() {
        let found = Some(&outer["items"]).filter(|it| it.is_object());
        let (own_path, found_path) = (join(path, "items"), join(outer_path, "items"));
        check_nested(&schema["items"], &own_path, found, &found_path, false, errors);
    }
    for (inner, inner_path) in alternatives(schema, path) {
        check_nested(inner, &inner_path, Some(outer), outer_path, is_either, errors);
    }
}

fn check_unique(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if schema["uniqueItems"] == true {
        let why =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(join(path, "uniqueItems"), why));
    }
}
