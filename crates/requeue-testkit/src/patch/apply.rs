//! Implements server-side apply.

use serde_json::{Map, Value, json};

use super::fields::{Comparison, FieldSet, field_element, item_element};
use super::ownership::{Manager, Managers, Ownership, own_update};
use crate::kind::Kind;
use crate::schema::{List, Schema};
use crate::status::Failure;

/// The result of an apply: the merged object, and its managed fields.
pub(crate) struct Applied {
    pub(crate) object: Value,
    pub(crate) managed_fields: Value,
}

/// Applies a configuration to the object `live`. If `live` is `None`, creates the object.
///
/// # Errors
///
/// Returns an error if other managers own fields that the configuration would change, and
/// `force` is false.
pub(crate) fn apply(
    kind: &Kind,
    live: Option<&Value>,
    config: &Value,
    ownership: &Ownership,
    force: bool,
) -> Result<Applied, Failure> {
    let schema = Schema::of(kind);
    check_form(config, schema, kind)?;
    let empty =
        json!({ "apiVersion": config["apiVersion"], "kind": config["kind"], "metadata": {} });
    let live = live.unwrap_or(&empty);
    let mut managers = Managers::read(live);
    if managers.0.is_empty() && !live["metadata"]["uid"].is_null() {
        let before = Ownership { manager: "before-first-apply".into(), ..ownership.clone() };
        let tracked = own_update(kind, None, live, &before);
        managers = Managers::read(&json!({ "metadata": { "managedFields": tracked } }));
    }
    let applier = ownership.manager("Apply");

    let mut fields = FieldSet::of(config, schema);
    ownership.filter(&mut fields);
    let last = managers.0.get(&applier).map(|managed| managed.fields.clone());
    let mut merged = merge(live, config, schema);
    if let Some(mut abandoned) = last {
        // The fields that the manager applied the last time, and that neither this apply nor
        // another manager owns now.
        abandoned.subtract_parents(&fields);
        for (_, managed) in managers.0.iter().filter(|(manager, _)| **manager != applier) {
            abandoned.subtract_parents(&managed.fields);
        }
        remove(&mut merged, &abandoned, schema);
    }

    let mut comparison = Comparison::of(live, &merged, schema);
    for set in [&mut comparison.added, &mut comparison.modified, &mut comparison.removed] {
        ownership.filter(set);
    }
    let mut changed = comparison.modified.clone();
    changed.extend(comparison.added.clone());
    if !force {
        check_conflicts(&managers, &applier, &changed)?;
    }
    managers.take_from_others(&applier, &comparison);
    let is_same = managers.0.get(&applier).is_some_and(|managed| managed.fields == fields);
    if fields.is_empty() {
        managers.0.remove(&applier);
    } else if !is_same || !changed.is_empty() || !comparison.removed.is_empty() {
        let mut managed = ownership.managed(fields);
        if merged == *live {
            // The API server changes the time of the entry only if a value changes.
            managed.time = managers.0.get(&applier).map(|it| it.time.clone()).unwrap_or_default();
        }
        managers.0.insert(applier, managed);
    }
    Ok(Applied { object: merged, managed_fields: managers.into_json() })
}

fn check_conflicts(
    managers: &Managers,
    applier: &Manager,
    changed: &FieldSet,
) -> Result<(), Failure> {
    let mut causes = Vec::new();
    let mut by_manager = Vec::new();
    for (manager, managed) in managers.0.iter().filter(|(manager, _)| *manager != applier) {
        let conflicts = managed.fields.intersection(changed);
        let paths: Vec<_> = conflicts.in_order().iter().map(|path| shown(path)).collect();
        if paths.is_empty() {
            continue;
        }
        let mut who = format!("\"{}\"", manager.name);
        if let Some(subresource) = &manager.subresource {
            who += &format!(" with subresource \"{subresource}\"");
        }
        if manager.operation == "Update" {
            who += &format!(" using {}", manager.api_version);
        }
        causes.extend(paths.iter().map(|path| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {who}"),
                "field": path,
            })
        }));
        by_manager.push((who, paths));
    }
    if causes.is_empty() {
        return Ok(());
    }
    let noun = if causes.len() == 1 { "conflict" } else { "conflicts" };
    let listed: Vec<_> = by_manager
        .iter()
        .map(|(who, paths)| match paths.as_slice() {
            [path] if causes.len() == 1 => format!("conflict with {who}: {path}"),
            paths => format!("conflicts with {who}:\n- {}", paths.join("\n- ")),
        })
        .collect();
    let message = format!("Apply failed with {} {noun}: {}", causes.len(), listed.join("\n"));
    Err(Failure::apply_conflict(message, causes))
}

/// Formats a path as error messages contain it: `.spec.ports[name="http"].port`.
fn shown(path: &[&str]) -> String {
    let elements = path.iter().map(|element| match element.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some((_, value)) => format!("[={value}]"),
        None => (*element).to_owned(),
    });
    elements.collect()
}

/// Returns an error if the configuration does not fit the schema. The text is that of
/// structured-merge-diff.
fn check_form(config: &Value, schema: Schema<'_>, kind: &Kind) -> Result<(), Failure> {
    let mut errors = Vec::new();
    find_errors(config, schema, &String::new, &mut errors);
    let errors = match errors.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    let text = |field: &str| config["metadata"][field].as_str().unwrap_or_default();
    let group_version = match &*kind.group {
        "" => format!("/{}", kind.version),
        group => format!("{group}/{}", kind.version),
    };
    Err(Failure::unknown(&format!(
        "failed to create typed patch object ({}/{}; {group_version}, Kind={}): {errors}",
        text("namespace"),
        text("name"),
        kind.kind,
    )))
}

/// Adds an error for each part of `value` that does not fit the schema. `path` is called only
/// if there is an error.
fn find_errors(
    value: &Value,
    schema: Schema<'_>,
    path: &dyn Fn() -> String,
    errors: &mut Vec<String>,
) {
    if let Some(why) = schema.scalar_error(value) {
        errors.push(format!("{}: {why}", path()));
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let path = || format!("{}.{name}", path());
                if schema.is_declared(name) {
                    find_errors(field, schema.field(name), &path, errors);
                } else {
                    errors.push(format!("{}: field not declared in schema", path()));
                }
            }
        }
        Value::Array(items) if schema.list() == List::Atomic => {
            for (at, item) in items.iter().enumerate() {
                find_errors(item, schema.item(), &|| format!("{}[{at}]", path()), errors);
            }
        }
        Value::Array(items) => {
            let mut seen = std::collections::BTreeSet::new();
            for (at, item) in items.iter().enumerate() {
                if let List::Map(keys) = schema.list() {
                    let default = |key: &str| schema.item().default_of(key).is_some();
                    let missing = keys.iter().find(|key| item[**key].is_null() && !default(key));
                    if let Some(key) = missing {
                        errors.push(format!(
                            "{}: element {at}: associative list with keys has an element that \
                             omits key field \"{key}\" (and doesn't have default value)",
                            path(),
                        ));
                        return;
                    }
                }
                let element = item_element(item, schema);
                let shown = || shown(&[&element]);
                if !seen.insert(element.clone()) {
                    errors.push(format!("{}: duplicate entries for key {}", path(), shown()));
                }
                let path = || format!("{}{}", path(), shown());
                find_errors(item, schema.item(), &path, errors);
            }
        }
        _ => {}
    }
}

/// Returns the live value, with the fields that the configuration sets.
fn merge(live: &Value, config: &Value, schema: Schema<'_>) -> Value {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if !schema.is_atomic_map() => {
            let mut merged = live.clone();
            for (name, field) in config {
                let value = match live.get(name) {
                    Some(live) => merge(live, field, schema.field(name)),
                    None => field.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(config)) if schema.list() != List::Atomic => {
            Value::Array(merge_items(live, config, schema))
        }
        _ => config.clone(),
    }
}

/// Merges two lists, whose items are matched by their keys. The items of the configuration keep
/// their order.
fn merge_items(live: &[Value], config: &[Value], schema: Schema<'_>) -> Vec<Value> {
    let element = |item: &Value| item_element(item, schema);
    let configured: Vec<_> = config.iter().map(element).collect();
    let known: Vec<_> = live.iter().map(element).collect();
    let merged_item = |at: usize| {
        let live = known.iter().position(|it| *it == configured[at]).map(|at| &live[at]);
        match live {
            Some(live) if schema.list() != List::Set => merge(live, &config[at], schema.item()),
            _ => config[at].clone(),
        }
    };
    let mut merged = Vec::new();
    let mut next = 0;
    for (at, item) in live.iter().enumerate() {
        match configured.iter().position(|it| *it == known[at]) {
            // The item is in both lists. The items that precede it in the configuration must be
            // inserted first.
            Some(found) => {
                while next <= found {
                    merged.push(merged_item(next));
                    next += 1;
                }
            }
            None => merged.push(item.clone()),
        }
    }
    merged.extend((next..config.len()).map(merged_item));
    merged
}

/// Removes the fields and the items in `removed` from a value.
fn remove(value: &mut Value, removed: &FieldSet, schema: Schema<'_>) {
    match value {
        Value::Object(fields) if !schema.is_atomic_map() => {
            fields.retain(|name, field| {
                let Some(removed) = removed.inside(&field_element(name)) else { return true };
                if removed.is_member() {
                    return false;
                }
                let was_empty = is_empty(field);
                remove(field, removed, schema.field(name));
                // If a map or list loses its last entry, it is removed, too.
                was_empty || !is_empty(field)
            });
        }
        Value::Array(items) if schema.list() != List::Atomic => {
            items.retain_mut(|item| {
                let Some(removed) = removed.inside(&item_element(item, schema)) else {
                    return true;
                };
                if !removed.is_member() {
                    remove(item, removed, schema.item());
                }
                !removed.is_member()
            });
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
