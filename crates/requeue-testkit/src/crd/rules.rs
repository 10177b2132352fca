//! Rules in CEL (`x-kubernetes-validations`).

use serde_json::Value;

use crate::status::{Failure, FieldError};

const KEYWORD: &str = "x-kubernetes-validations";

/// Returns the objects' fields that break a rule.
///
/// # Errors
///
/// A rule uses a function that the evaluator does not have.
#[cfg(feature = "cel")]
pub(super) fn check(
    schema: &Value,
    object: &Value,
    old: Option<&Value>,
) -> Result<Vec<FieldError>, Failure> {
    use kube::core::cel::{ErrorKind, Validator};
    if !has_rules(schema) {
        return Ok(Vec::new());
    }
    let Err(errors) = Validator::new().validate(schema, object, old) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for error in errors.as_slice() {
        match error.kind {
            ErrorKind::ValidationFailure => {}
            // A real server reports an error during the evaluation as a broken rule.
            ErrorKind::EvaluationError => {}
            _ => {
                let what = format!("the rule {:?} in CEL: {}", error.rule, error.message);
                return Err(Failure::not_implemented(what));
            }
        }
        let value = error
            .field_path
            .split('.')
            .filter(|part| !part.is_empty())
            .fold(object, |value, part| &value[part]);
        let mut error_of_field = FieldError::invalid(&*error.field_path, value, &error.message);
        if let Some("FieldValueForbidden") = error.reason.as_deref() {
            error_of_field = FieldError::forbidden(&*error.field_path, &error.message);
        }
        found.push(error_of_field);
    }
    Ok(found)
}

/// Without the evaluator, no definition with rules is accepted.
#[cfg(not(feature = "cel"))]
pub(super) fn check(_: &Value, _: &Value, _: Option<&Value>) -> Result<Vec<FieldError>, Failure> {
    Ok(Vec::new())
}

/// Refuses a schema with rules that cannot be evaluated.
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
    // The maps of the compiled schema have no order.
    let mut properties: Vec<_> = schema.properties.iter().collect();
    properties.sort_by_key(|(name, _)| *name);
    let inner = properties.into_iter().map(|(_, inner)| inner);
    let inner = inner.chain(schema.items.as_deref()).chain(schema.additional_properties.as_deref());
    let own = schema.compilation_errors().first().map(ToString::to_string);
    own.or_else(|| inner.filter_map(first_error).next())
}

fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.contains_key(KEYWORD) || fields.values().any(has_rules),
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}
