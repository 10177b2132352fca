//! Sets of fields in the form of `metadata.managedFields`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::schema::{List, Schema};

/// A set of fields, as a tree. The names of the nodes have the form of `fieldsV1`, such
/// as `f:spec` or `k:{"name":"a"}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FieldSet {
    /// True if the set contains the field of this node. It is always false for the root,
    /// which is not a field.
    is_member: bool,
    /// The child nodes. Each of them is a member of the set, or contains one.
    inner: BTreeMap<String, Self>,
}

impl FieldSet {
    /// Returns the set of all fields in a value.
    pub(super) fn of(value: &Value, schema: Schema<'_>) -> Self {
        Self { is_member: false, ..Self::node(value, schema) }
    }

    /// Returns the set that contains only the field with this path.
    pub(super) fn of_path(path: &[String]) -> Self {
        let Some((first, rest)) = path.split_first() else {
            return Self { is_member: true, ..Self::default() };
        };
        let mut set = Self::default();
        set.put(first.clone(), Self::of_path(rest));
        set
    }

    fn node(value: &Value, schema: Schema<'_>) -> Self {
        let mut node = Self::default();
        match value {
            Value::Object(fields) if !schema.is_atomic_map() => {
                for (name, field) in fields {
                    let mut inner = Self::node(field, schema.field(name));
                    let is_empty = field.is_null() || field.as_object().is_some_and(Map::is_empty);
                    inner.is_member |= is_empty || !schema.has_field(name);
                    node.put(field_element(name), inner);
                }
            }
            Value::Array(items) if schema.list() != List::Atomic => {
                for item in items {
                    let inner = match schema.list() {
                        List::Set => Self::default(),
                        _ => Self::node(item, schema.item()),
                    };
                    node.put(item_element(item, schema), Self { is_member: true, ..inner });
                }
            }
            _ => node.is_member = true,
        }
        node
    }

    fn put(&mut self, element: String, inner: Self) {
        if !inner.is_empty() {
            self.inner.entry(element).or_default().extend(inner);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.is_member && self.inner.is_empty()
    }

    /// Returns the child node with this name, if the set contains its field or a field
    /// inside it.
    pub(super) fn inside(&self, element: &str) -> Option<&Self> {
        self.inner.get(element)
    }

    /// Returns true if the set contains the field of this node.
    pub(super) fn is_member(&self) -> bool {
        self.is_member
    }

    pub(super) fn contains(&self, path: &[String]) -> bool {
        let node = path.iter().try_fold(self, |node, element| node.inside(element));
        node.is_some_and(Self::is_member)
    }

    /// Returns the paths of all fields, in the order of structured-merge-diff: all fields
    /// of one level precede the fields inside them.
    pub(super) fn in_order(&self) -> Vec<Vec<&str>> {
        let mut paths = Vec::new();
        self.add_in_order(&mut Vec::new(), &mut paths);
        paths
    }

    fn add_in_order<'a>(&'a self, path: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) {
        let members = self.inner.iter().filter(|(_, inner)| inner.is_member);
        paths.extend(members.map(|(element, _)| [&path[..], &[element]].concat()));
        for (element, inner) in &self.inner {
            path.push(element);
            inner.add_in_order(path, paths);
            path.pop();
        }
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.is_member |= other.is_member;
        if self.inner.is_empty() {
            self.inner = other.inner;
            return;
        }
        for (element, inner) in other.inner {
            self.put(element, inner);
        }
    }

    pub(super) fn subtract(&mut self, other: &Self) {
        self.is_member &= !other.is_member;
        self.change_common(other, Self::subtract);
    }

    /// Removes the fields that the other set contains. Also removes each field that
    /// contains a field of the other set.
    pub(super) fn subtract_parents(&mut self, other: &Self) {
        self.is_member = false;
        self.change_common(other, Self::subtract_parents);
    }

    fn change_common(&mut self, other: &Self, change: fn(&mut Self, &Self)) {
        if self.inner.is_empty() {
            return;
        }
        for (element, other) in &other.inner {
            if let Some(inner) = self.inner.get_mut(element) {
                change(inner, other);
                if inner.is_empty() {
                    self.inner.remove(element);
                }
            }
        }
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut common = Self { is_member: self.is_member && other.is_member, ..Self::default() };
        for (element, inner) in &self.inner {
            if let Some(other) = other.inside(element) {
                common.put(element.clone(), inner.intersection(other));
            }
        }
        common
    }

    /// Removes a field from the set, but not the fields inside it.
    pub(super) fn remove_member(&mut self, element: &str) {
        if let Some(inner) = self.inner.get_mut(element) {
            inner.is_member = false;
            if inner.is_empty() {
                self.inner.remove(element);
            }
        }
    }

    /// Removes a field from the set, and all fields inside it.
    pub(super) fn remove_all(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        if let Some(inner) = self.inner.get_mut(*first) {
            inner.remove_all(rest);
            if rest.is_empty() || inner.is_empty() {
                self.inner.remove(*first);
            }
        }
    }

    /// Converts the set to the form of `fieldsV1`.
    pub(super) fn into_json(self) -> Value {
        let inner = self.inner.into_iter();
        let mut fields: Map<_, _> = inner.map(|(name, inner)| (name, inner.into_json())).collect();
        // A field that contains no other fields of the set is represented by an empty
        // object. If it contains some, the key `.` says that the field itself is also in
        // the set.
        if self.is_member && !fields.is_empty() {
            fields.insert(".".into(), json!({}));
        }
        Value::Object(fields)
    }

    /// Converts a set from the form of `fieldsV1`.
    pub(super) fn from_json(json: &Value) -> Self {
        Self { is_member: false, ..Self::read(json) }
    }

    fn read(json: &Value) -> Self {
        let mut node = Self::default();
        let Some(fields) = json.as_object() else { return node };
        node.is_member = fields.is_empty();
        for (element, inner) in fields {
            match &**element {
                "." => node.is_member = true,
                element => node.put(canonical(element), Self::read(inner)),
            }
        }
        node
    }
}

pub(super) fn field_element(name: &str) -> String {
    format!("f:{name}")
}

/// Returns the name of the node of an item, in a list that is a set or a map.
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

/// Returns the name of a node with the keys of its JSON sorted.
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

/// The differences between an old and a new object: the added, the modified and the
/// removed fields.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    pub(super) fn of(old: &Value, new: &Value, schema: Schema<'_>) -> Self {
        let mut comparison = Self::of_node("", Some(old), Some(new), schema);
        comparison.modified.is_member = false;
        comparison
    }

    /// Compares the old and the new value of one node.
    fn of_node(
        element: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        schema: Schema<'_>,
    ) -> Self {
        let mut comparison = Self::default();
        if old == new {
            return comparison;
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
        if !is_leaf {
            comparison.add_inner(old, new, schema);
        }
        // An added or removed map, list or item is itself a member of the set. The list
        // of containers is an exception, because the server's empty object already
        // contains it.
        match (old, new) {
            _ if !is_leaf && element == "f:containers" => {}
            (None, _) => comparison.added.is_member = true,
            (_, None) => comparison.removed.is_member = true,
            _ => comparison.modified.is_member = is_leaf,
        }
        comparison
    }

    fn add_inner(&mut self, old: Option<&Value>, new: Option<&Value>, schema: Schema<'_>) {
        if let Some(Value::Object(_)) = new.or(old) {
            let empty = Map::new();
            let [old, new] = [old, new].map(|it| it.and_then(Value::as_object).unwrap_or(&empty));
            let gone = old.keys().filter(|name| !new.contains_key(*name));
            for name in new.keys().chain(gone) {
                let (old, new) = (old.get(name), new.get(name));
                if old != new {
                    let element = field_element(name);
                    let inner = Self::of_node(&element, old, new, schema.field(name));
                    self.put(&element, inner);
                }
            }
            return;
        }
        let [old, new] = [old, new].map(|value| items(value, schema));
        let gone = old.keys().filter(|element| !new.contains_key(*element));
        for element in new.keys().chain(gone) {
            let (old, new) = (old.get(element).copied(), new.get(element).copied());
            self.put(element, Self::of_node(element, old, new, schema.item()));
        }
    }

    fn put(&mut self, element: &str, inner: Self) {
        let sets = [&mut self.added, &mut self.modified, &mut self.removed];
        let inner = [inner.added, inner.modified, inner.removed];
        for (set, inner) in sets.into_iter().zip(inner).filter(|(_, inner)| !inner.is_empty()) {
            set.put(element.to_owned(), inner);
        }
    }
}

/// Returns the items of a list by the names of their nodes. If two items have the same
/// name, the first is returned.
fn items<'v>(list: Option<&'v Value>, schema: Schema<'_>) -> BTreeMap<String, &'v Value> {
    let items = list.and_then(Value::as_array).into_iter().flatten().rev();
    items.map(|item| (item_element(item, schema), item)).collect()
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// Returns true if the values have different types in JSON, so that they have no common
/// fields.
fn differ(old: Option<&Value>, new: Option<&Value>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => std::mem::discriminant(old) != std::mem::discriminant(new),
        _ => false,
    }
}
