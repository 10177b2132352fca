//! Evaluates the rules of a schema in CEL (`x-kubernetes-validations`).

use serde_json::Value;
#[cfg(feature = "cel")]
use serde_json::json;

#[cfg(feature = "cel")]
use super::validate::type_of;
use crate::status::{Failure, FieldError};

const KEYWORD: &str = "x-kubernetes-validations";

/// Returns an error for each field of the object that breaks a rule.
///
/// # Errors
///
/// Returns an error if a rule uses a function that the evaluator does not implement.
#[cfg(feature = "cel")]
pub(super) fn check(
    schema: &Value,
    object: &Value,
    old: Option<&Value>,
) -> Result<Vec<FieldError>, Failure> {
    use kube::core::cel::{ErrorKind, Validator};
    let Err(errors) = Validator::new().validate(schema, object, old) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for error in errors.as_slice() {
        match error.kind {
            ErrorKind::ValidationFailure => {}
            // Like the API server, this code reports an error of the evaluation as a
            // broken rule.
            ErrorKind::EvaluationError => {}
            _ => {
                let what = format!("the rule {:?} in CEL: {}", error.rule, error.message);
                return Err(Failure::not_implemented(what));
            }
        }
        let parts = || error.field_path.split('.').filter(|part| !part.is_empty());
        let value = parts().fold(object, |value, part| &value[part]);
        // An unchanged value may break a rule that was added after the value was
        // stored.
        let before = old.map(|old| parts().fold(old, |value, part| &value[part]));
        if before.is_some_and(|before| !before.is_null() && before == value) {
            continue;
        }
        let field = &*error.field_path;
        found.push(match (&error.kind, error.reason.as_deref()) {
            (ErrorKind::EvaluationError, _) => {
                let why = error.message.trim_start_matches("rule evaluation error: ");
                let why = why.replacen("No such key", "no such key", 1);
                let rule = message_of(schema, &error.rule).unwrap_or(&error.rule);
                let why = format!("{why} evaluating rule: {rule}");
                FieldError::invalid(field, &json!(type_of(value)), &why)
            }
            (_, Some("FieldValueForbidden")) => FieldError::forbidden(field, &error.message),
            // The error of the API server does not contain the value if it is an object
            // or a list.
            _ if value.is_object() || value.is_array() => {
                FieldError::invalid_without_value(field, &error.message)
            }
            _ => FieldError::invalid(field, value, &error.message),
        });
    }
    Ok(found)
}

/// Returns the message that the schema contains for a rule.
#[cfg(feature = "cel")]
fn message_of<'a>(schema: &'a Value, rule: &str) -> Option<&'a str> {
    let own = schema[KEYWORD].as_array().into_iter().flatten();
    let mut own = own.filter(|it| it["rule"] == rule).filter_map(|it| it["message"].as_str());
    own.next().or_else(|| match schema {
        Value::Object(fields) => fields.values().find_map(|inner| message_of(inner, rule)),
        Value::Array(items) => items.iter().find_map(|inner| message_of(inner, rule)),
        _ => None,
    })
}

/// Does nothing, because without the feature `cel` the testkit accepts no definition
/// with rules.
#[cfg(not(feature = "cel"))]
pub(super) fn check(_: &Value, _: &Value, _: Option<&Value>) -> Result<Vec<FieldError>, Failure> {
    Ok(Vec::new())
}

/// Returns an error if the schema contains rules that cannot be evaluated.
pub(super) fn check_schema(schema: &Value) -> Result<(), Failure> {
    if !has_rules(schema) {
        return Ok(());
    }
    if cfg!(not(feature = "cel")) {
        let what = "rules in CEL without its feature \"cel\"";
        return Err(Failure::not_implemented(what));
    }
    #[cfg(feature = "cel")]
    {
        use kube::core::cel::compile_schema;
        if let Some(error) = first_error(&compile_schema(schema)) {
            return Err(Failure::not_implemented(error));
        }
    }
    Ok(())
}

#[cfg(feature = "cel")]
fn first_error(schema: &kube::core::cel::CompiledSchema) -> Option<String> {
    // The properties are sorted, because the maps of the compiled schema have no
    // defined order.
    let mut properties: Vec<_> = schema.properties.iter().collect();
    properties.sort_by_key(|(name, _)| *name);
    let inner = properties.into_iter().map(|(_, inner)| inner);
    let inner = inner.chain(schema.items.as_deref()).chain(schema.additional_properties.as_deref());
    let own = schema.compilation_errors().first().map(ToString::to_string);
    own.or_else(|| inner.filter_map(first_error).next())
}

pub(super) fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key(KEYWORD) || fields.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}
