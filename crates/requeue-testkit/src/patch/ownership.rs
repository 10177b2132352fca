//! Computes `metadata.managedFields`: which manager owns which fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::fields::{Comparison, FieldSet, field_element};
use crate::kind::Kind;
use crate::schema::Schema;

/// The manager that sends a write, and the properties of the write that affect managed fields.
#[derive(Clone, Debug)]
pub(crate) struct Ownership {
    pub(crate) manager: String,
    pub(crate) api_version: String,
    pub(crate) subresource: Option<String>,
    /// The time of the write, in the format of metadata.
    pub(crate) time: String,
    /// The fields that the write cannot change, so that the manager does not own them.
    pub(crate) reset: &'static [&'static [&'static str]],
}

/// The properties that identify a manager of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    pub(super) name: String,
    /// The operation with which the manager writes: `Apply` or `Update`.
    pub(super) operation: String,
    /// The API version of the object in the writes of the manager. It is empty for an applier,
    /// which is the same manager in all versions.
    pub(super) api_version: String,
    pub(super) subresource: Option<String>,
}

/// The fields that a manager owns, and the time and the version of its last write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Managed {
    pub(super) fields: FieldSet,
    pub(super) time: String,
    api_version: String,
}

/// All managers of an object, with the fields that they own.
#[derive(Clone, Debug, Default)]
pub(super) struct Managers(pub(super) BTreeMap<Manager, Managed>);

impl Ownership {
    pub(super) fn manager(&self, operation: &str) -> Manager {
        Manager {
            name: self.manager.clone(),
            operation: operation.into(),
            api_version: if operation == "Apply" {
                String::new()
            } else {
                self.api_version.clone()
            },
            subresource: self.subresource.clone(),
        }
    }

    pub(super) fn managed(&self, fields: FieldSet) -> Managed {
        Managed { fields, time: self.time.clone(), api_version: self.api_version.clone() }
    }

    /// Removes the fields that a manager can never own, and those that this write cannot
    /// change.
    pub(super) fn filter(&self, fields: &mut FieldSet) {
        for field in ["f:apiVersion", "f:kind", "f:metadata"] {
            fields.remove_member(field);
        }
        for field in [
            "f:name",
            "f:namespace",
            "f:creationTimestamp",
            "f:selfLink",
            "f:uid",
            "f:generation",
            "f:managedFields",
            "f:resourceVersion",
        ] {
            fields.remove_all(&["f:metadata", field]);
        }
        self.reset.iter().for_each(|path| fields.remove_all(path));
    }
}

impl Managers {
    pub(super) fn read(object: &Value) -> Self {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = entries.filter(|entry| entry["fieldsV1"].is_object()).map(|entry| {
            let operation = text(&entry["operation"]);
            let is_apply = operation == "Apply";
            let manager = Manager {
                name: text(&entry["manager"]),
                operation,
                api_version: if is_apply { String::new() } else { text(&entry["apiVersion"]) },
                subresource: entry["subresource"].as_str().map(str::to_owned),
            };
            let managed = Managed {
                fields: FieldSet::from_json(&entry["fieldsV1"]),
                time: text(&entry["time"]),
                api_version: text(&entry["apiVersion"]),
            };
            (manager, managed)
        });
        Self(entries.collect())
    }

    /// Converts the managers to the entries of the metadata. Appliers are first, and entries
    /// are then sorted by time.
    pub(super) fn into_json(self) -> Value {
        into_json(self.0.into_iter().collect())
    }

    /// Removes the fields that a write has changed, added or removed from all managers except
    /// the writer.
    pub(super) fn take_from_others(&mut self, writer: &Manager, comparison: &Comparison) {
        for (_, managed) in self.0.iter_mut().filter(|(manager, _)| *manager != writer) {
            for changed in [&comparison.modified, &comparison.added, &comparison.removed] {
                managed.fields.subtract(changed);
            }
        }
        self.0.retain(|_, managed| !managed.fields.is_empty());
    }
}

/// Returns the managed fields after a write other than an apply. The writer owns the fields
/// that it changed.
pub(crate) fn own_update(
    kind: &Kind,
    old: Option<&Value>,
    new: &Value,
    ownership: &Ownership,
) -> Value {
    let schema = Schema::of(kind);
    let mut empty = schema.empty();
    if kind.is_core("events") {
        // Go writes these texts even if they are empty, so their creation does not count as a
        // change.
        for field in ["reportingComponent", "reportingInstance"] {
            empty[field] = json!("");
        }
    }
    let sent = Managers::read(new);
    // A list with one empty entry, or an empty list, removes all managers. A client cannot
    // remove single managers.
    let is_reset =
        new["metadata"]["managedFields"].as_array().is_some_and(|entries| match &**entries {
            [] => true,
            [entry] => entry.as_object().is_some_and(Map::is_empty),
            _ => false,
        });
    let is_subresource = ownership.subresource.is_some();
    let mut managers = match old {
        _ if !is_subresource && (is_reset || !sent.0.is_empty()) => sent,
        Some(old) => Managers::read(old),
        None => Managers::default(),
    };
    // After a client has removed all managers, ownership is tracked again only from the next
    // apply.
    if old.is_some() && managers.0.is_empty() {
        return json!([]);
    }
    let mut comparison = Comparison::of(old.unwrap_or(&empty), new, schema);
    if old.is_none() {
        comparison.removed = FieldSet::default();
    }
    for set in [&mut comparison.added, &mut comparison.modified, &mut comparison.removed] {
        ownership.filter(set);
    }
    let writer = ownership.manager("Update");
    managers.take_from_others(&writer, &comparison);
    let Comparison { added, modified, removed } = comparison;
    if [&added, &modified, &removed].iter().any(|set| !set.is_empty()) {
        let before = managers.0.remove(&writer).map(|managed| managed.fields);
        let mut fields = before.unwrap_or_default();
        fields.subtract(&removed);
        fields.extend(modified);
        fields.extend(added);
        if !fields.is_empty() {
            managers.0.insert(writer, ownership.managed(fields));
        }
    }
    managers.into_json()
}

/// Returns the managed fields after a write of a Scale. The write changes the field at `path`,
/// or nothing.
///
/// If the field has no owner, a write without a change gives it none. If the field has an
/// owner, that owner gets a second entry, because the API server looks for it under the version
/// of the Scale.
pub(crate) fn own_scale(
    old: &Value,
    path: &[&str],
    change: Option<i64>,
    ownership: &Ownership,
) -> Value {
    let is_changed = change.is_some();
    let before = Managers::read(old);
    let path: Vec<_> = path.iter().map(|part| field_element(part)).collect();
    let is_owner = |managed: &Managed| managed.fields.contains(&path);
    if !before.0.values().any(is_owner) {
        return before.into_json();
    }
    let replicas = FieldSet::of_path(&path);
    // The entry that the API server creates contains no time.
    let entry = Managed { time: String::new(), ..ownership.managed(replicas.clone()) };
    let mut entries: Vec<(Manager, Managed)> = Vec::new();
    for (manager, mut managed) in before.0 {
        let keeps_entry = manager.operation == "Apply" && !is_changed;
        if !is_owner(&managed) || keeps_entry {
            entries.push((manager, managed));
            continue;
        }
        managed.fields.subtract(&replicas);
        if !managed.fields.is_empty() {
            entries.push((manager.clone(), managed));
        }
        if !is_changed {
            entries.push((manager, entry.clone()));
        }
    }
    // Go does not write the number 0, so no manager owns it.
    if change.is_some_and(|replicas| replicas != 0) {
        entries.push((ownership.manager("Update"), entry));
    }
    into_json(entries)
}

fn into_json(mut entries: Vec<(Manager, Managed)>) -> Value {
    entries.sort_by(|left, right| {
        let [left, right] = [left, right]
            .map(|(manager, managed)| (manager.operation != "Apply", &managed.time, &manager.name));
        left.cmp(&right)
    });
    let entries: Vec<_> = entries
        .into_iter()
        .map(|(manager, managed)| {
            let mut entry = json!({
                "manager": manager.name,
                "operation": manager.operation,
                "apiVersion": managed.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": managed.fields.into_json(),
            });
            if !managed.time.is_empty() {
                entry["time"] = json!(managed.time);
            }
            if let Some(subresource) = &manager.subresource {
                entry["subresource"] = json!(subresource);
            }
            entry
        })
        .collect();
    json!(entries)
}

/// Returns true if a write changes nothing, so that the stored object keeps its resource
/// version.
///
/// Differences in the times of managed fields are ignored.
pub(crate) fn is_unchanged(old: &Value, new: &Value) -> bool {
    equals_except(old, new, &["metadata", "managedFields", "time"])
}

/// Compares two values without the fields at `path`. If the path leads to a list, it applies to
/// each item.
fn equals_except(old: &Value, new: &Value, path: &[&str]) -> bool {
    match (old, new, path) {
        (Value::Object(old), Value::Object(new), [name, rest @ ..]) => {
            let is_excluded = |field: &str| field == *name && rest.is_empty();
            let count = |fields: &Map<String, Value>| {
                fields.keys().filter(|field| !is_excluded(field)).count()
            };
            let is_equal = |(field, old): (&String, &Value)| match new.get(field) {
                _ if is_excluded(field) => true,
                Some(new) if field == name => equals_except(old, new, rest),
                new => new == Some(old),
            };
            count(old) == count(new) && old.iter().all(is_equal)
        }
        (Value::Array(old), Value::Array(new), [_, ..]) => {
            old.len() == new.len()
                && old.iter().zip(new).all(|(old, new)| equals_except(old, new, path))
        }
        _ => old == new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_a_manager_is_no_change_and_all_else_is() {
        let object = |time: &str, manager: &str, data: &str| {
            json!({
                "metadata": { "managedFields": [{ "manager": manager, "time": time }] },
                "data": { "time": data },
            })
        };
        let old = object("1", "a", "1");
        assert!(is_unchanged(&old, &object("2", "a", "1")));
        assert!(!is_unchanged(&old, &object("1", "b", "1")));
        assert!(!is_unchanged(&old, &object("1", "a", "2")));
        let mut more = object("2", "a", "1");
        more["metadata"]["name"] = json!("a");
        assert!(!is_unchanged(&old, &more) && !is_unchanged(&more, &old));
    }
}
