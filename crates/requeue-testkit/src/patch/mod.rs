//! Patches: JSON, merge and server-side apply.

mod apply;
mod fields;
mod ownership;

use serde_json::Value;

pub(crate) use self::apply::apply;
pub(crate) use self::ownership::{Ownership, Part, is_unchanged, own_update};
use crate::status::Failure;

/// Applies a JSON patch (RFC 6902).
pub(crate) fn json(object: &Value, body: &Value) -> Result<Value, Failure> {
    let patch: json_patch::Patch = serde_json::from_value(body.clone())
        .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
    let mut object = object.clone();
    for operation in patch.0 {
        // For a server, a field that is missing equals null. kube's finalizer helper relies on it.
        if let json_patch::PatchOperation::Test(test) = &operation
            && test.value.is_null()
            && test.path.resolve(&object).is_err()
        {
            continue;
        }
        json_patch::patch(&mut object, &[operation]).map_err(|_| Failure::unprocessable())?;
    }
    Ok(object)
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
