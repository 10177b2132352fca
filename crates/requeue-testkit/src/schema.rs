//! The schemas of objects: those of the built-in kinds, and those in the definitions of custom
//! resources.

use std::fmt;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::kind::Kind;

/// The schemas of Kubernetes 1.37, without descriptions.
static BUILT_IN: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("builtin/schemas.json")).expect("the file is JSON")
});

static NULL: Value = Value::Null;

/// The schema of a value. If the value has no schema, `node` is null.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema<'a> {
    node: &'a Value,
    /// True if this is the schema of a whole object. Its metadata then has the built-in schema.
    is_object: bool,
}

/// The rule by which server-side apply merges the items of a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum List<'a> {
    Atomic,
    Set,
    Map(Vec<&'a str>),
}

impl<'a> Schema<'a> {
    /// Returns the schema of the objects of a kind.
    pub(crate) fn of(kind: &'a Kind) -> Self {
        match &kind.definition {
            Some(definition) => Self::custom(definition.schema(&kind.version)),
            None => {
                let id = format!("{}/{}", kind.api_version(), kind.kind);
                Self { node: definition(&BUILT_IN["kinds"][id]), is_object: true }
            }
        }
    }

    /// Returns the schema of a custom resource, from the schema in its definition.
    pub(crate) fn custom(node: &'a Value) -> Self {
        Self { node, is_object: true }
    }

    fn new(node: &'a Value) -> Self {
        let node = match node.get("$ref") {
            Some(name) => definition(name),
            None => node,
        };
        let is_object = node["x-kubernetes-embedded-resource"] == true;
        Self { node, is_object }
    }

    /// Returns the empty object of a built-in kind. Go writes a struct that is not behind a pointer
    /// even if the struct is empty.
    pub(crate) fn empty(self) -> Value {
        let fields = self.properties().into_iter().flatten();
        let fields = fields.filter(|(_, node)| node["default"].is_object());
        let fields = fields.map(|(name, _)| (name.clone(), self.field(name).empty()));
        Value::Object(fields.collect())
    }

    /// Returns true if there is a schema for the value.
    pub(crate) fn is_known(self) -> bool {
        !self.node.is_null()
    }

    pub(crate) fn properties(self) -> Option<&'a Map<String, Value>> {
        self.node["properties"].as_object()
    }

    /// Returns the schema of a field of a struct, or of an entry of a map.
    pub(crate) fn field(self, name: &str) -> Self {
        if self.is_object {
            match name {
                "metadata" => {
                    let node = &BUILT_IN["definitions"]["apis.meta.v1.ObjectMeta"];
                    return Self { node, is_object: false };
                }
                "apiVersion" | "kind" => return Self { node: &NULL, is_object: false },
                _ => {}
            }
        }
        match self.node["properties"].get(name) {
            Some(node) => Self::new(node),
            None if self.node["additionalProperties"].is_object() => {
                Self::new(&self.node["additionalProperties"])
            }
            None => Self::new(&NULL),
        }
    }

    /// Returns true if the struct has a field with this name. The entries of a map are not fields.
    pub(crate) fn has_field(self, name: &str) -> bool {
        (self.is_object && ["apiVersion", "kind", "metadata"].contains(&name))
            || self.properties().is_some_and(|properties| properties.contains_key(name))
    }

    /// Returns true if the schema permits an apply to set this field.
    pub(crate) fn is_declared(self, name: &str) -> bool {
        self.has_field(name)
            || !self.is_known()
            || self.node["additionalProperties"].is_object()
            || self.node["additionalProperties"] == true
            || self.node["x-kubernetes-preserve-unknown-fields"] == true
            || self.properties().is_none()
    }

    /// Returns the reason why an apply must not set this value, in the words of
    /// structured-merge-diff. Returns `None` if it may.
    pub(crate) fn scalar_error(self, value: &Value) -> Option<String> {
        if value.is_null() || self.node["x-kubernetes-int-or-string"] == true {
            return None;
        }
        let go_type = match value {
            Value::Number(number) if number.is_f64() => "float64",
            Value::Number(_) => "int64",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            Value::Array(_) => "[]interface {}",
            _ => "map[string]interface {}",
        };
        match self.node["type"].as_str() {
            Some("integer" | "number") if !value.is_number() => {
                Some(format!("expected numeric (int or float), got {go_type}"))
            }
            Some("boolean") if !value.is_boolean() => {
                Some(format!("expected boolean, got {value}"))
            }
            _ => None,
        }
    }

    pub(crate) fn item(self) -> Self {
        Self::new(&self.node["items"])
    }

    pub(crate) fn list(self) -> List<'a> {
        match self.node["x-kubernetes-list-type"].as_str() {
            Some("set") => List::Set,
            Some("map") => {
                let keys = self.node["x-kubernetes-list-map-keys"].as_array();
                let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                List::Map(keys.collect())
            }
            _ => List::Atomic,
        }
    }

    /// Returns true if a strategic merge patch merges the items of this list.
    pub(crate) fn merges_items(self) -> bool {
        let strategy = self.node["x-kubernetes-patch-strategy"].as_str();
        strategy.is_some_and(|strategy| strategy.split(',').any(|it| it == "merge"))
    }

    /// Returns the field by which a strategic merge patch matches the items of this list.
    pub(crate) fn merge_key(self) -> Option<&'a str> {
        self.node["x-kubernetes-patch-merge-key"].as_str()
    }

    /// Returns true if the value is a map, whose entries can have any names.
    fn is_map(self) -> bool {
        self.properties().is_none() && self.node["additionalProperties"].is_object()
    }

    pub(crate) fn is_atomic_map(self) -> bool {
        self.node["x-kubernetes-map-type"] == "atomic"
    }

    /// Returns the default value of a field. It is used if an item of a list lacks one of its keys.
    pub(crate) fn default_of(self, field: &str) -> Option<&'a Value> {
        self.node["properties"][field].get("default")
    }
}

fn definition(name: &Value) -> &'static Value {
    match name.as_str() {
        Some(name) => &BUILT_IN["definitions"][name],
        None => &NULL,
    }
}

/// Returns the path of the first field whose value has the wrong type, and the right type. The
/// server could not decode such an object.
///
/// In a custom resource, only the metadata is checked here. The schema in its definition validates
/// the other fields.
pub(crate) fn find_wrong_type(object: &Value, kind: &Kind) -> Option<(String, &'static str)> {
    let schema = Schema::of(kind);
    if kind.definition.is_some() {
        let metadata = schema.field("metadata");
        return wrong_type(&object["metadata"], metadata, &Place::Field(&Place::Root, "metadata"));
    }
    wrong_type(object, schema, &Place::Root)
}

/// The position of a value in an object. The path is built only if an error needs it.
enum Place<'a> {
    Root,
    Field(&'a Self, &'a str),
    Item(&'a Self, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

fn wrong_type(
    value: &Value,
    schema: Schema<'_>,
    place: &Place<'_>,
) -> Option<(String, &'static str)> {
    let expected = match schema.node["type"].as_str() {
        Some("object") if !value.is_object() => "object",
        Some("array") if !value.is_array() => "array",
        Some("string") if !value.is_string() => "string",
        Some("boolean") if !value.is_boolean() => "boolean",
        Some("integer" | "number") if !value.is_number() => "number",
        _ => "",
    };
    if !expected.is_empty() && !value.is_null() {
        return Some((place.to_string(), expected));
    }
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, field)| {
            wrong_type(field, schema.field(name), &Place::Field(place, name))
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(at, item)| wrong_type(item, schema.item(), &Place::Item(place, at))),
        _ => None,
    }
}

/// Removes the fields that a built-in kind does not have, as the server does when it decodes an
/// object.
///
/// Returns the paths of the removed fields.
pub(crate) fn remove_unknown_fields(object: &mut Value, kind: &Kind) -> Vec<String> {
    let mut unknown = Vec::new();
    let schema = Schema::of(kind);
    if schema.is_known() {
        remove_unknown(object, schema, &Place::Root, &mut unknown);
    }
    unknown
}

fn remove_unknown(
    value: &mut Value,
    schema: Schema<'_>,
    place: &Place<'_>,
    unknown: &mut Vec<String>,
) {
    match value {
        Value::Object(fields) => {
            let is_map = schema.node["additionalProperties"].is_object();
            let is_struct = schema.properties().is_some();
            if is_struct && !is_map {
                fields.retain(|name, _| {
                    let is_known = schema.has_field(name);
                    if !is_known {
                        unknown.push(Place::Field(place, name).to_string());
                    }
                    is_known
                });
            }
            if is_struct || is_map {
                for (name, field) in fields {
                    let inner = schema.field(name);
                    remove_unknown(field, inner, &Place::Field(place, name), unknown);
                }
            }
        }
        Value::Array(items) if schema.item().is_known() => {
            for (at, item) in items.iter_mut().enumerate() {
                remove_unknown(item, schema.item(), &Place::Item(place, at), unknown);
            }
        }
        _ => {}
    }
}

/// Removes the fields that Go omits when it encodes an object. These are optional fields that are
/// null, or an empty list or map.
///
/// An empty struct is kept. In a custom resource, only the metadata is changed, because Go has no
/// type for the other fields.
pub(crate) fn omit_empty(object: &mut Value, kind: &Kind) {
    let schema = Schema::of(kind);
    omit_in(&mut object["metadata"], schema.field("metadata"));
    if kind.definition.is_none() {
        omit_in(object, schema);
        omit_zeros(object, kind);
        for pointer in ["/spec/tolerations", "/spec/template/spec/tolerations"] {
            let tolerations = object.pointer_mut(pointer).and_then(Value::as_array_mut);
            for toleration in tolerations.into_iter().flatten().filter_map(Value::as_object_mut) {
                toleration.retain(|_, value| *value != "");
            }
        }
    }
}

/// Removes zeros and empty texts from fields that are not pointers in Go. The schemas do not
/// contain this property.
fn omit_zeros(object: &mut Value, kind: &Kind) {
    let (place, omitted): (&mut Value, &[&str]) = match (&*kind.group, &*kind.plural) {
        ("", "events") => (object, &["action", "count", "message", "reason", "type"]),
        ("", "pods") => {
            (&mut object["status"], &["message", "nominatedNodeName", "phase", "reason"])
        }
        ("apps", "deployments") => (
            &mut object["status"],
            &[
                "availableReplicas",
                "observedGeneration",
                "readyReplicas",
                "replicas",
                "unavailableReplicas",
                "updatedReplicas",
            ],
        ),
        ("apps", "replicasets") => (
            &mut object["status"],
            &["availableReplicas", "fullyLabeledReplicas", "observedGeneration", "readyReplicas"],
        ),
        _ => return,
    };
    let Some(fields) = place.as_object_mut() else { return };
    fields.retain(|name, value| {
        let is_zero = *value == 0 || value.as_str().is_some_and(str::is_empty);
        !is_zero || !omitted.contains(&&**name)
    });
}

fn omit_in(value: &mut Value, schema: Schema<'_>) {
    match value {
        Value::Object(fields) => {
            let required = schema.node["required"].as_array().map(Vec::as_slice);
            let required = required.unwrap_or_default();
            let is_struct = schema.properties().is_some();
            fields.retain(|name, field| {
                let inner = schema.field(name);
                omit_in(field, inner);
                // An empty list of managed fields is kept, because it removes all managers. The
                // empty rules of a role are kept, because a manager may own them. Go writes the
                // time of a probe even if it is not set.
                let is_kept = ["managedFields", "lastProbeTime"].contains(&&**name);
                if is_kept || name == "rules" && field.is_array() {
                    return true;
                }
                let is_empty = match &*field {
                    Value::Null => true,
                    Value::Array(items) => items.is_empty(),
                    Value::Object(entries) => entries.is_empty() && inner.is_map(),
                    _ => false,
                };
                !is_struct || !is_empty || required.iter().any(|it| it == name)
            });
        }
        Value::Array(items) => {
            for item in items {
                omit_in(item, schema.item());
            }
        }
        _ => {}
    }
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
