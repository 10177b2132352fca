//! Implements strategic merge patches. They merge the items of some lists by a key.

use serde_json::{Map, Value, json};

use crate::schema::Schema;
use crate::status::Failure;

/// Applies a strategic merge patch to an object.
///
/// # Errors
///
/// Returns an error if the patch is not an object, or contains an unknown directive.
pub(crate) fn strategic(
    object: &Value,
    body: &Value,
    schema: Schema<'_>,
) -> Result<Value, Failure> {
    let (Some(object), Some(patch)) = (object.as_object(), body.as_object()) else {
        return Err(Failure::bad_request("error decoding patch: the patch must be an object"));
    };
    merge_fields(object, patch, schema).map(Value::Object)
}

fn merge_fields(
    object: &Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Schema<'_>,
) -> Result<Map<String, Value>, Failure> {
    let mut merged = object.clone();
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let mut patch = patch.clone();
            patch.remove("$patch");
            return Ok(patch);
        }
        Some("delete") => return Ok(Map::new()),
        Some("merge") | None => {}
        Some(other) => return Err(unknown_directive(other)),
    }
    if let Some(kept) = patch.get("$retainKeys").and_then(Value::as_array) {
        merged.retain(|name, _| kept.iter().any(|it| it == name));
    }
    for (name, removed) in patch {
        let Some(name) = name.strip_prefix("$deleteFromPrimitiveList/") else { continue };
        if let (Some(Value::Array(items)), Some(removed)) =
            (merged.get_mut(name), removed.as_array())
        {
            items.retain(|item| !removed.contains(item));
        }
    }
    for (name, value) in patch.iter().filter(|(name, _)| !name.starts_with('$')) {
        let inner = schema.field(name);
        let value = match (merged.get(name), value) {
            (_, Value::Null) => {
                merged.remove(name);
                continue;
            }
            (Some(Value::Object(old)), Value::Object(patch)) => {
                Value::Object(merge_fields(old, patch, inner)?)
            }
            (_, Value::Object(patch)) => Value::Object(merge_fields(&Map::new(), patch, inner)?),
            (old, Value::Array(patch)) if inner.merges_items() => {
                let old = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                Value::Array(merge_items(old, patch, inner)?)
            }
            (_, value) => value.clone(),
        };
        merged.insert(name.clone(), value);
    }
    for (name, order) in patch {
        let Some(name) = name.strip_prefix("$setElementOrder/") else { continue };
        if let (Some(Value::Array(items)), Some(order)) = (merged.get_mut(name), order.as_array()) {
            sort_items(items, order, schema.field(name));
        }
    }
    Ok(merged)
}

fn merge_items(old: &[Value], patch: &[Value], schema: Schema<'_>) -> Result<Vec<Value>, Failure> {
    let mut merged = old.to_vec();
    let Some(key) = schema.merge_key() else {
        for item in patch.iter().filter(|item| !old.contains(item)) {
            merged.push(item.clone());
        }
        return Ok(in_order(merged, old, patch, |item| item.clone()));
    };
    if patch.iter().any(|item| item["$patch"] == "replace") {
        return Ok(patch.iter().filter(|item| item["$patch"].is_null()).cloned().collect());
    }
    for item in patch {
        let Some(fields) = item.as_object() else { continue };
        let Some(identity) = fields.get(key) else {
            let why = format!("map: {item} does not contain declared merge key: {key}");
            return Err(Failure::internal(why));
        };
        let found = merged.iter().position(|it| it[key] == *identity);
        match (found, item["$patch"] == "delete") {
            (Some(at), true) => {
                merged.remove(at);
            }
            (None, true) => {}
            (Some(at), false) => {
                let old = merged[at].as_object().cloned().unwrap_or_default();
                merged[at] = Value::Object(merge_fields(&old, fields, schema.item())?);
            }
            (None, false) => {
                let new = merge_fields(&Map::new(), fields, schema.item())?;
                merged.push(Value::Object(new));
            }
        }
    }
    Ok(in_order(merged, old, patch, |item| item[key].clone()))
}

/// Sorts a merged list. The items of the patch have the order of the patch. Old items stay
/// before the item of the patch that they preceded.
fn in_order(
    merged: Vec<Value>,
    old: &[Value],
    patch: &[Value],
    identity: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let place =
        |list: &[Value], item: &Value| list.iter().position(|it| identity(it) == identity(item));
    let (mut patched, others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| place(patch, item).is_some());
    patched.sort_by_key(|item| place(patch, item));
    let mut patched = patched.into_iter().peekable();
    let mut sorted = Vec::new();
    for other in others {
        while let Some(next) = patched.peek() {
            let is_before = place(old, next).is_some_and(|at| place(old, &other) < Some(at));
            if is_before {
                break;
            }
            sorted.extend(patched.next());
        }
        sorted.push(other);
    }
    sorted.extend(patched);
    sorted
}

/// Sorts items. Items that `order` does not contain are first, in their old order. The others follow
/// in the order of `order`.
fn sort_items(items: &mut [Value], order: &[Value], schema: Schema<'_>) {
    let identity = |item: &Value| match schema.merge_key() {
        Some(key) => item[key].clone(),
        None => item.clone(),
    };
    let order: Vec<_> = order.iter().map(identity).collect();
    items.sort_by_key(|item| order.iter().position(|it| *it == identity(item)));
}

fn unknown_directive(directive: &str) -> Failure {
    Failure::bad_request(format!("Unknown patch type: {}", json!(directive)))
}
