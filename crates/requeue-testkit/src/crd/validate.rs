//! Validates objects by a structural schema.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use regex::Regex;
use serde_json::{Value, json};

use crate::kind::Part;
use crate::schema::join;
use crate::status::{Failure, FieldError};

/// The keywords of schemas that this module checks, or that do not affect validation.
const KEYWORDS: [&str; 39] = [
    "$schema",
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "description",
    "enum",
    "example",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "externalDocs",
    "format",
    "id",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "uniqueItems",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// The formats of strings that a real server checks, but the testkit does not. A server ignores
/// unknown formats.
const UNCHECKED: [&str; 25] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "mac",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "k8s-long-name",
    "k8s-short-name",
];

/// Returns an error if the schema contains a keyword, a format or a pattern that the testkit does
/// not implement.
pub(super) fn check_schema(schema: &Value) -> Result<(), Failure> {
    let Some(fields) = schema.as_object() else { return Ok(()) };
    if let Some(keyword) = fields.keys().find(|keyword| !KEYWORDS.contains(&&***keyword)) {
        let what = format!("the keyword {keyword:?} in schemas of custom resources");
        return Err(Failure::not_implemented(what));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = Regex::new(pattern)
    {
        let what = format!("the pattern {pattern:?} in schemas of custom resources: {error}");
        return Err(Failure::not_implemented(what));
    }
    if let Some(format) = schema["format"].as_str().filter(|format| UNCHECKED.contains(format)) {
        let what = format!("the format {format:?} in schemas of custom resources");
        return Err(Failure::not_implemented(what));
    }
    for inner in schema["properties"].as_object().into_iter().flatten().map(|(_, it)| it) {
        check_schema(inner)?;
    }
    for field in ["additionalProperties", "items", "not"] {
        check_schema(&schema[field])?;
    }
    for field in ["allOf", "anyOf", "oneOf"] {
        schema[field].as_array().into_iter().flatten().try_for_each(check_schema)?;
    }
    Ok(())
}

/// Returns an error for each field of an object that its schema does not permit.
///
/// A value that is equal in the old object need not fit the schema. A write of the status checks
/// only the status.
pub(super) fn check(
    object: &Value,
    old: Option<&Value>,
    schema: &Value,
    part: Part,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match part {
        Part::Main => check_value(object, old, schema, "", &mut errors),
        Part::Status => {
            let (status, schema) = (object.get("status"), &schema["properties"]["status"]);
            if let (Some(status), true) = (status, schema.is_object()) {
                let old = old.and_then(|old| old.get("status"));
                check_value(status, old, schema, "status", &mut errors);
            }
        }
    }
    errors
}

/// Returns an error for each item that a list contains twice, if the schema says that the list is a
/// set or a map.
pub(super) fn check_lists(object: &Value, old: Option<&Value>, schema: &Value) -> Vec<FieldError> {
    let found = |object: &Value| {
        let mut errors = Vec::new();
        check_unique(object, schema, "", &mut errors);
        errors
    };
    match old.map(found) {
        Some(before) if !before.is_empty() => Vec::new(),
        _ => found(object),
    }
}

fn check_unique(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let inner = schema["properties"].get(name);
                let inner = inner.unwrap_or(&schema["additionalProperties"]);
                check_unique(field, inner, &join(path, name), errors);
            }
        }
        Value::Array(items) => {
            let mut seen = BTreeSet::new();
            for (at, item) in items.iter().enumerate() {
                let path = format!("{path}[{at}]");
                let identity = identity(item, schema);
                if let Some(identity) = identity
                    && !seen.insert(identity.to_string())
                {
                    errors.push(FieldError::duplicate(&path, &identity));
                }
                check_unique(item, &schema["items"], &path, errors);
            }
        }
        _ => {}
    }
}

/// Returns the part of an item that must be unique in its list: the keys of a map, or the whole
/// item of a set. Returns `None` for other lists.
fn identity(item: &Value, schema: &Value) -> Option<Value> {
    match schema["x-kubernetes-list-map-keys"].as_array() {
        Some(keys) => {
            let keys = keys.iter().filter_map(Value::as_str);
            let values = keys.map(|key| (key.to_owned(), item[key].clone()));
            Some(Value::Object(values.collect()))
        }
        None => (schema["x-kubernetes-list-type"] == "set").then(|| item.clone()),
    }
}

fn check_value(
    value: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(value) {
        return;
    }
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !has_type(value, schema) {
        let expected = schema["type"].as_str().unwrap_or("integer or string");
        let why = format!(
            "{} in body must be of type {expected}: \"{}\"",
            shown_path(path),
            type_of(value)
        );
        let shown = json!(type_of(value));
        errors.push(FieldError::type_invalid(path, &shown, &why));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        errors.push(FieldError::not_supported(path, value, allowed));
    }
    match value {
        Value::Object(_) => check_object(value, old, schema, path, errors),
        Value::Array(items) => check_list(items, old, schema, path, errors),
        Value::String(text) => check_string(text, schema, path, errors),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            check_number(value, number, schema, path, errors);
        }
        _ => {}
    }
    check_combinations(value, schema, path, errors);
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_string() || is_integer(value);
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => is_integer(value),
        Some("number") => value.is_number(),
        _ => true,
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check_object(
    value: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(fields) = value.as_object() else { return };
    for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(required) {
            errors.push(FieldError::required(join(path, required), ""));
        }
    }
    let count = fields.len() as u64;
    if let Some(limit) = schema["maxProperties"].as_u64().filter(|limit| count > *limit) {
        errors.push(FieldError::too_many(path, fields.len(), limit));
    }
    if let Some(limit) = schema["minProperties"].as_u64().filter(|limit| count < *limit) {
        let why = format!("{} in body should have at least {limit} properties", shown_path(path));
        errors.push(FieldError::invalid(path, &json!(fields.len()), &why));
    }
    for (name, field) in fields {
        let inner = match schema["properties"].get(name) {
            Some(inner) => inner,
            // The metadata is checked elsewhere.
            None if path.is_empty() && name == "metadata" => continue,
            None => &schema["additionalProperties"],
        };
        if inner.is_object() && !(path.is_empty() && name == "metadata") {
            let old = old.and_then(|old| old.get(name));
            check_value(field, old, inner, &join(path, name), errors);
        }
    }
}

fn check_list(
    items: &[Value],
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let count = items.len() as u64;
    if let Some(limit) = schema["maxItems"].as_u64().filter(|limit| count > *limit) {
        errors.push(FieldError::too_many(path, items.len(), limit));
    }
    if let Some(limit) = schema["minItems"].as_u64().filter(|limit| count < *limit) {
        let why = format!("{} in body should have at least {limit} items", shown_path(path));
        errors.push(FieldError::invalid(path, &json!(items.len()), &why));
    }
    if !schema["items"].is_object() {
        return;
    }
    let old = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let has_keys = schema["x-kubernetes-list-map-keys"].is_array();
    for (at, item) in items.iter().enumerate() {
        let wanted = identity(item, schema);
        let old = old.iter().find(|old| has_keys && identity(old, schema) == wanted);
        check_value(item, old, &schema["items"], &format!("{path}[{at}]"), errors);
    }
}

fn check_string(text: &str, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let count = text.chars().count() as u64;
    if let Some(limit) = schema["maxLength"].as_u64().filter(|limit| count > *limit) {
        errors.push(FieldError::too_long(path, limit));
    }
    let mut refuse = |why: String| {
        let why = format!("{} in body should {why}", shown_path(path));
        errors.push(FieldError::invalid(path, &json!(text), &why));
    };
    if let Some(limit) = schema["minLength"].as_u64().filter(|limit| count < *limit) {
        refuse(format!("be at least {limit} chars long"));
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && Regex::new(pattern).is_ok_and(|regex| !regex.is_match(text))
    {
        refuse(format!("match '{pattern}'"));
    }
    if let Some("date-time") = schema["format"].as_str()
        && text.parse::<Timestamp>().is_err()
    {
        let why = format!("{} in body must be of type date-time: {text:?}", shown_path(path));
        errors.push(FieldError::invalid(path, &json!(text), &why));
    }
}

fn check_number(
    value: &Value,
    number: f64,
    schema: &Value,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let mut refuse = |why: String| {
        let why = format!("{} in body should be {why}", shown_path(path));
        errors.push(FieldError::invalid(path, value, &why));
    };
    if let Some(limit) = schema["minimum"].as_f64() {
        if schema["exclusiveMinimum"] == true && number <= limit {
            refuse(format!("greater than {limit}"));
        } else if number < limit {
            refuse(format!("greater than or equal to {limit}"));
        }
    }
    if let Some(limit) = schema["maximum"].as_f64() {
        if schema["exclusiveMaximum"] == true && number >= limit {
            refuse(format!("less than {limit}"));
        } else if number > limit {
            refuse(format!("less than or equal to {limit}"));
        }
    }
    if let Some(divisor) = schema["multipleOf"].as_f64().filter(|divisor| *divisor != 0.0) {
        let quotient = number / divisor;
        if (quotient - quotient.round()).abs() > 1e-9 {
            refuse(format!("a multiple of {divisor}"));
        }
    }
    let is_out_of_range = match schema["format"].as_str() {
        Some("int32") => value.as_i64().is_none_or(|number| i32::try_from(number).is_err()),
        Some("int64") => value.as_i64().is_none() && value.is_u64(),
        _ => false,
    };
    if is_out_of_range && is_integer(value) {
        refuse(format!("of the format {}", schema["format"].as_str().unwrap_or_default()));
    }
}

fn check_combinations(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let schemas = |field: &str| schema[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let fits = |schema: &&Value| {
        let mut errors = Vec::new();
        check_value(value, None, schema, path, &mut errors);
        errors.is_empty()
    };
    for inner in schemas("allOf") {
        check_value(value, None, inner, path, errors);
    }
    let mut refuse = |why: &str| {
        let why = format!("{} in body {why}", shown_path(path));
        errors.push(FieldError::invalid(path, value, &why));
    };
    let any = schemas("anyOf");
    if !any.is_empty() && !any.iter().any(|schema| fits(&schema)) {
        refuse("must validate at least one schema (anyOf)");
    }
    let one = schemas("oneOf");
    if !one.is_empty() && one.iter().filter(fits).count() != 1 {
        refuse("must validate one and only one schema (oneOf)");
    }
    if schema["not"].is_object() && fits(&&schema["not"]) {
        refuse("must not validate the schema (not)");
    }
}

fn shown_path(path: &str) -> &str {
    path
}
