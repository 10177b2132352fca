//! Sets of fields, as in `metadata.managedFields`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::schema::{List, Schema};

/// The path of a field: its elements in the form of `fieldsV1`, such as `f:spec` or `k:{"name":"a"}`.
pub(super) type FieldPath = Vec<String>;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldSet(BTreeSet<FieldPath>);

impl FieldSet {
    /// Returns the fields that a configuration sets.
    pub(super) fn of(value: &Value, schema: Schema<'_>) -> Self {
        let mut set = Self::default();
        set.add(value, schema, &mut Vec::new());
        set
    }

    fn add(&mut self, value: &Value, schema: Schema<'_>, path: &mut FieldPath) {
        match value {
            Value::Object(_) if schema.is_atomic_map() => self.insert(path),
            Value::Object(fields) => {
                for (name, field) in fields {
                    path.push(field_element(name));
                    self.add(field, schema.field(name), path);
                    let is_empty = field.is_null() || field.as_object().is_some_and(Map::is_empty);
                    if is_empty || !schema.has_field(name) {
                        self.insert(path);
                    }
                    path.pop();
                }
            }
            Value::Array(items) if schema.list() != List::Atomic => {
                for item in items {
                    path.push(item_element(item, schema));
                    if schema.list() != List::Set {
                        self.add(item, schema.item(), path);
                    }
                    self.insert(path);
                    path.pop();
                }
            }
            _ => self.insert(path),
        }
    }

    pub(super) fn insert(&mut self, path: &[String]) {
        if !path.is_empty() {
            self.0.insert(path.to_vec());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, path: &[String]) -> bool {
        self.0.contains(path)
    }

    /// Returns whether the set has the field, or a field inside it.
    pub(super) fn contains_inside(&self, path: &[String]) -> bool {
        self.0.range(path.to_vec()..).next().is_some_and(|found| found.starts_with(path))
    }

    /// Returns the fields in the order of structured-merge-diff: those of a level before those inside them.
    pub(super) fn in_order(&self) -> Vec<&FieldPath> {
        let mut paths: Vec<_> = self.0.iter().collect();
        paths.sort_by(|left, right| {
            let same = left.iter().zip(*right).take_while(|(left, right)| left == right).count();
            let key = |path: &FieldPath| (path.len() != same + 1, path.get(same).cloned());
            match left.len().min(right.len()) == same {
                true => left.len().cmp(&right.len()),
                false => key(left).cmp(&key(right)),
            }
        });
        paths
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).cloned().collect())
    }

    pub(super) fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).cloned().collect())
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).cloned().collect())
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&FieldPath) -> bool) {
        self.0.retain(keep);
    }

    /// Returns the set in the form of `fieldsV1`.
    pub(super) fn to_json(&self) -> Value {
        let mut root = Map::new();
        for path in &self.0 {
            let mut place = &mut root;
            for element in path {
                let inner = place.entry(element.clone()).or_insert_with(|| json!({}));
                let Value::Object(inner) = inner else { unreachable!("all nodes are objects") };
                place = inner;
            }
            place.insert(".".into(), json!({}));
        }
        for node in root.values_mut() {
            remove_dots_of_leaves(node);
        }
        Value::Object(root)
    }

    /// Reads a set in the form of `fieldsV1`.
    pub(super) fn from_json(json: &Value) -> Self {
        let mut set = Self::default();
        set.read(json, &mut Vec::new());
        set
    }

    fn read(&mut self, json: &Value, path: &mut FieldPath) {
        let Some(fields) = json.as_object() else { return };
        if fields.is_empty() {
            self.insert(path);
        }
        for (element, inner) in fields {
            if element == "." {
                self.insert(path);
                continue;
            }
            path.push(canonical(element));
            self.read(inner, path);
            path.pop();
        }
    }
}

/// A leaf is an empty object. Only a member with fields inside has a dot.
fn remove_dots_of_leaves(node: &mut Value) {
    let Some(fields) = node.as_object_mut() else { return };
    if fields.len() == 1 {
        fields.remove(".");
    }
    for (name, inner) in fields {
        if name != "." {
            remove_dots_of_leaves(inner);
        }
    }
}

pub(super) fn field_element(name: &str) -> String {
    format!("f:{name}")
}

/// Returns the element of an item of a list that is a set or a map.
pub(super) fn item_element(item: &Value, schema: Schema<'_>) -> String {
    match schema.list() {
        List::Map(keys) => {
            let inner = schema.item();
            let keys = keys.into_iter().filter_map(|key| {
                let value = item.get(key).or_else(|| inner.default_of(key))?;
                Some((key.to_owned(), value.clone()))
            });
            let keys: std::collections::BTreeMap<_, _> = keys.collect();
            format!("k:{}", json!(keys))
        }
        _ => format!("v:{item}"),
    }
}

/// Returns the element with the keys of its JSON in order.
fn canonical(element: &str) -> String {
    let Some((kind @ ("k" | "v"), json)) = element.split_once(':') else {
        return element.to_owned();
    };
    match serde_json::from_str::<Value>(json) {
        Ok(Value::Object(keys)) => {
            let keys: std::collections::BTreeMap<_, _> = keys.into_iter().collect();
            format!("{kind}:{}", json!(keys))
        }
        Ok(value) => format!("{kind}:{value}"),
        Err(_) => element.to_owned(),
    }
}

/// The fields in which two objects differ.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    pub(super) fn of(old: &Value, new: &Value, schema: Schema<'_>) -> Self {
        let mut comparison = Self::default();
        comparison.compare(Some(old), Some(new), schema, &mut Vec::new());
        comparison
    }

    fn compare<'v>(
        &mut self,
        old: Option<&'v Value>,
        new: Option<&'v Value>,
        schema: Schema<'_>,
        path: &mut FieldPath,
    ) {
        if old == new {
            return;
        }
        let is_leaf = match new.or(old) {
            Some(Value::Object(_)) => {
                schema.is_atomic_map() || (is_empty(old) && is_empty(new)) || differ(old, new)
            }
            Some(Value::Array(_)) => {
                schema.list() == List::Atomic
                    || (is_empty(old) && is_empty(new))
                    || differ(old, new)
            }
            _ => true,
        };
        if is_leaf {
            match (old, new) {
                (None, _) => self.added.insert(path),
                (_, None) => self.removed.insert(path),
                (old, new) if old != new => self.modified.insert(path),
                _ => {}
            }
            return;
        }
        if let Some(Value::Object(_)) = new.or(old) {
            let empty = Map::new();
            let fields = |value: Option<&'v Value>| value.and_then(Value::as_object);
            let (old_fields, new_fields) =
                (fields(old).unwrap_or(&empty), fields(new).unwrap_or(&empty));
            let names: BTreeSet<_> = old_fields.keys().chain(new_fields.keys()).collect();
            for name in names {
                path.push(field_element(name));
                self.compare(old_fields.get(name), new_fields.get(name), schema.field(name), path);
                path.pop();
            }
        } else {
            let items = |value: Option<&'v Value>| -> Vec<(String, &'v Value)> {
                let items = value.and_then(Value::as_array).into_iter().flatten();
                items.map(|item| (item_element(item, schema), item)).collect()
            };
            let (old_items, new_items) = (items(old), items(new));
            let elements: BTreeSet<_> =
                old_items.iter().chain(&new_items).map(|(element, _)| element).collect();
            let find = |items: &[(String, &'v Value)], wanted: &str| {
                items.iter().find(|(element, _)| element == wanted).map(|(_, item)| *item)
            };
            for element in elements {
                path.push(element.clone());
                let (old, new) = (find(&old_items, element), find(&new_items, element));
                self.compare(old, new, schema.item(), path);
                path.pop();
            }
        }
        // A map, a list or an item that appears or disappears is itself a member. Containers are none: the server's empty
        // object has that list already.
        match (old, new) {
            _ if path.last().is_some_and(|field| field == "f:containers") => {}
            (None, _) => self.added.insert(path),
            (_, None) => self.removed.insert(path),
            _ => {}
        }
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// Returns whether the values have different forms, so that they have no common fields.
fn differ(old: Option<&Value>, new: Option<&Value>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => std::mem::discriminant(old) != std::mem::discriminant(new),
        _ => false,
    }
}
