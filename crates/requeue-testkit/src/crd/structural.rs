//! Pruning and defaulting by a structural schema.

use serde_json::{Map, Value};

use crate::schema::join;

/// Removes the fields that the schema of an object does not have. The metadata stays.
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

/// Sets the defaults of missing fields, and of nulls that the schema does not allow.
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
                    // A null that is neither allowed nor replaced means that the field is not set.
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
