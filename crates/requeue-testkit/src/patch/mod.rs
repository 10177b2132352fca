//! Patches: JSON, merge and server-side apply.

mod apply;
mod fields;
mod ownership;

use json_patch::PatchOperation;
use serde_json::Value;

pub(crate) use self::apply::apply;
pub(crate) use self::ownership::{Ownership, Part, is_unchanged, own_update};
use crate::status::Failure;

/// Applies a JSON patch (RFC 6902).
pub(crate) fn json(object: &Value, body: &Value) -> Result<Value, Failure> {
    let patch: json_patch::Patch = serde_json::from_value(body.clone())
        .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
    let mut object = object.clone();
    for operation in &patch.0 {
        if !is_test_of_missing_field(operation, &object) {
            json_patch::patch(&mut object, std::slice::from_ref(operation))
                .map_err(|_| Failure::unprocessable())?;
        }
    }
    Ok(object)
}

/// For the API server, a field that is missing is null. By the RFC, the test would fail.
fn is_test_of_missing_field(operation: &PatchOperation, object: &Value) -> bool {
    let PatchOperation::Test(test) = operation else { return false };
    let path = test.path.as_str();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
    test.value.is_null() && parent.is_some_and(Value::is_object) && object.pointer(path).is_none()
}

/// Applies a merge patch (RFC 7396).
pub(crate) fn merge(object: &Value, body: &Value) -> Result<Value, Failure> {
    if !body.is_object() {
        return Err(Failure::bad_request("error decoding patch: a merge patch must be an object"));
    }
    let mut object = object.clone();
    json_patch::merge(&mut object, body);
    Ok(object)
}

/// A form of patch that custom resources do not have.
pub(crate) fn unsupported() -> Failure {
    Failure::unsupported_media(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            .into(),
    )
}
