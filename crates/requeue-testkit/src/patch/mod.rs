//! Applies patches: JSON patches, merge patches, strategic merge patches and server-side
//! apply.

mod apply;
mod fields;
mod ownership;
mod strategic;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

pub(crate) use self::apply::apply;
pub(crate) use self::ownership::{Ownership, is_unchanged, own_scale, own_update};
pub(crate) use self::strategic::strategic;
use crate::status::Failure;

/// Applies a JSON patch (RFC 6902) to an object.
pub(crate) fn json(object: &Value, body: &Value) -> Result<Value, Failure> {
    if !body.as_array().is_some_and(|list| list.iter().all(Value::is_object)) {
        return Err(Failure::bad_request("error decoding patch: it is not a list of operations"));
    }
    // The parser rejects an unknown operation, like the API server when it applies the
    // patch.
    let patch: json_patch::Patch =
        serde_json::from_value(body.clone()).map_err(|_| Failure::unprocessable())?;
    let mut object = object.clone();
    for operation in &patch.0 {
        if is_test_of_missing_field(operation, &object) {
            continue;
        }
        let operation = match operation {
            // The API server adds the field if the field to replace is missing. RFC 6902
            // requires an error.
            PatchOperation::Replace(replace) if is_missing_field(&replace.path, &object) => {
                let (path, value) = (replace.path.clone(), replace.value.clone());
                PatchOperation::Add(AddOperation { path, value })
            }
            other => other.clone(),
        };
        json_patch::patch(&mut object, &[operation]).map_err(|_| Failure::unprocessable())?;
    }
    Ok(object)
}

/// Returns true if the parent of the path is an object that does not contain the last part
/// of the path.
fn is_missing_field(path: &PointerBuf, object: &Value) -> bool {
    let path = path.as_str();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
    parent.is_some_and(Value::is_object) && object.pointer(path).is_none()
}

/// Returns true if the operation tests that a missing field is null. The API server accepts
/// this test. RFC 6902 requires an error.
fn is_test_of_missing_field(operation: &PatchOperation, object: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    test.value.is_null() && is_missing_field(&test.path, object)
}

/// Applies a merge patch (RFC 7396) to an object.
pub(crate) fn merge(object: &Value, body: &Value) -> Result<Value, Failure> {
    if !body.is_object() {
        return Err(Failure::bad_request("error decoding patch: a merge patch must be an object"));
    }
    let mut object = object.clone();
    json_patch::merge(&mut object, body);
    Ok(object)
}
