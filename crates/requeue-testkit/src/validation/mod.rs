//! Validates objects like the API server.

mod kinds;
mod meta;
mod names;
mod pod_diff;
mod pods;

use serde_json::Value;

use self::meta::{Finalizers, Names};
pub(crate) use self::names::{label_key_errors, label_value_errors};
use crate::crd;
use crate::kind::{Kind, Part};
use crate::status::{Failure, FieldError};

/// Returns an error for each field that the API server would refuse, in the same order.
///
/// The API server repeats most checks of metadata in an update. For built-in kinds, it
/// reports each error only once.
///
/// # Errors
///
/// Returns an error if the schema of a custom resource contains a feature that the
/// testkit does not implement.
pub(crate) fn check(
    object: &Value,
    old: Option<&Value>,
    kind: &Kind,
    part: Part,
) -> Result<Vec<FieldError>, Failure> {
    let common = || meta::check(object, Names::Segment, Finalizers::Common);
    let mut errors = match old {
        None => Vec::new(),
        Some(old) => {
            let mut errors = common();
            errors.extend(meta::check_change(object, old, Finalizers::Common));
            errors
        }
    };
    errors.extend(of_kind(object, old, kind, part)?);
    if old.is_none() && errors.is_empty() {
        errors = common();
    }
    if kind.definition.is_some() {
        return Ok(errors);
    }
    let mut unique: Vec<FieldError> = Vec::new();
    for error in errors {
        if !unique.contains(&error) {
            unique.push(error);
        }
    }
    Ok(unique)
}

fn of_kind(
    object: &Value,
    old: Option<&Value>,
    kind: &Kind,
    part: Part,
) -> Result<Vec<FieldError>, Failure> {
    let Some(definition) = &kind.definition else {
        return Ok(kinds::check(object, old, kind, part));
    };
    let mut errors = match old {
        None => meta::check(object, Names::Subdomain, Finalizers::Common),
        Some(old) => meta::check_change(object, old, Finalizers::Common),
    };
    crd::check(definition, object, old, &kind.version, part, &mut errors)?;
    Ok(errors)
}
