//! Checks the body of a write, and compares it with the path of the request.

use serde_json::{Value, json};

use super::strategy::remove;
use crate::crd;
use crate::kind::Kind;
use crate::request::Request;
use crate::schema;
use crate::status::{Failure, FieldError};
use crate::store::Key;

/// Returns an error if the body names another kind or version than the path. If the body does
/// not contain them, they are added.
pub(super) fn check_type(object: &mut Value, kind: &Kind) -> Result<(), Failure> {
    if !object.is_object() {
        return Err(Failure::bad_request("the body of the request is not a JSON object"));
    }
    let expected_version = kind.api_version();
    for (field, expected) in [("apiVersion", &expected_version), ("kind", &kind.kind)] {
        if object[field].as_str().is_none_or(str::is_empty) {
            object[field] = json!(expected);
        }
    }
    let found_version = object["apiVersion"].as_str().unwrap_or_default();
    let found_kind = object["kind"].as_str().unwrap_or_default();
    if found_version != expected_version || found_kind != kind.kind {
        return Err(wrong_type(kind, object, found_version, found_kind));
    }
    match &object["metadata"] {
        Value::Null => object["metadata"] = json!({}),
        Value::Object(_) => {}
        _ => return Err(Failure::bad_request("the metadata of the object is not a JSON object")),
    }
    match schema::find_wrong_type(object, kind) {
        None => Ok(()),
        Some((path, expected)) => Err(Failure::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: the field {path} must be of type \
             {expected}",
            kind.kind, kind.version, kind.kind
        ))),
    }
}

/// Returns the error for a body whose kind or version is not that of the path.
fn wrong_type(kind: &Kind, object: &Value, found_version: &str, found_kind: &str) -> Failure {
    let expected_version = kind.api_version();
    if kind.definition.is_some() {
        if found_version != expected_version {
            return Failure::bad_request(format!(
                "the API version in the data ({found_version}) does not match the expected API \
                 version ({expected_version})"
            ));
        }
        return wrong_kind(kind, object, found_kind);
    }
    let is_status = (found_version, found_kind) == ("v1", "Status");
    let why = if is_status && object["status"].is_object() {
        "json: cannot unmarshal object into Go struct field Status.status of type string".into()
    } else if is_status {
        let group = kind.group.split('.').next().filter(|group| !group.is_empty());
        let group = if kind.is_new_event() { None } else { group };
        let expected = format!("{}.{}", group.unwrap_or("core"), kind.kind);
        format!("converting (v1.Status) to ({expected}): unknown conversion")
    } else {
        format!(
            "no kind \"{found_kind}\" is registered for version \"{found_version}\" in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    let version = found_version.rsplit('/').next().unwrap_or_default();
    let expected = &kind.kind;
    Failure::bad_request(format!(
        "{found_kind} in version \"{version}\" cannot be handled as a {expected}: {why}"
    ))
}

/// Returns the error for a body whose version is that of the path, but whose kind is not.
fn wrong_kind(kind: &Kind, object: &Value, found_kind: &str) -> Failure {
    let why = format!("must be {}", kind.kind);
    let mut errors = vec![FieldError::invalid("kind", &json!(found_kind), &why)];
    let definition = kind.definition.as_ref();
    match definition.map(|it| crd::check_foreign(it, object, &kind.version)) {
        Some(Err(failure)) => return failure,
        Some(Ok(found)) => errors.extend(found),
        None => {}
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    Failure::invalid_foreign(found_kind, kind, name, &errors)
}

/// Returns an error if the body is not a JSON object.
pub(super) fn check_body(request: &Request, kind: &Kind) -> Result<(), Failure> {
    match &request.unread {
        None => Ok(()),
        Some(why) => Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why}",
            kind.kind
        ))),
    }
}

/// Sets the namespace of the object to that of the path. Returns an error if the object names
/// another namespace.
pub(super) fn check_namespace(object: &mut Value, namespace: Option<&str>) -> Result<(), Failure> {
    let Some(namespace) = namespace else {
        remove(&mut object["metadata"], "namespace");
        return Ok(());
    };
    let found = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if found.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    } else if found != namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Returns an error if the object does not have the name that the path contains.
pub(super) fn check_name(object: &Value, request: &Request) -> Result<(), Failure> {
    let name = request.path.name.as_deref().unwrap_or_default();
    match object["metadata"]["name"].as_str().unwrap_or_default() {
        "" => Err(Failure::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        found if found != name => Err(Failure::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// Returns an error if a PUT names a uid that the stored object does not have, or if there is
/// no stored object with this uid.
pub(super) fn check_uid(
    old: Option<&Value>,
    new: &Value,
    kind: &Kind,
    key: &Key,
    request: &Request,
) -> Result<(), Failure> {
    let text = |value: &Value| value["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (sent, found) = (text(new), old.map(text).unwrap_or_default());
    if sent.is_empty() || sent == found {
        return Ok(());
    }
    let root = if request.options.dry_run { "" } else { "/registry" };
    let group = kind.definition.as_ref().map(|_| format!("{}/", kind.group)).unwrap_or_default();
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {root}/{group}{}/{}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {sent}, UID in object meta: \
         {found}",
        key.plural, key.place,
    );
    Err(Failure::conflict(kind, key.name(), &why))
}

/// Returns an error if a write names a resource version that is not that of the stored object.
pub(super) fn check_version(
    old: &Value,
    new: &Value,
    kind: &Kind,
    name: &str,
) -> Result<(), Failure> {
    let version = &new["metadata"]["resourceVersion"];
    let version = version.as_str().unwrap_or_default();
    check_number(version)?;
    let is_set = !version.is_empty() && version != "0";
    if !is_set && !kind.allows_unconditional_update() {
        return Err(Failure::no_version(kind, name));
    }
    if is_set && old["metadata"]["resourceVersion"] != *version {
        return Err(Failure::modified(kind, name));
    }
    Ok(())
}

/// Returns an error if a resource version is not a number. As on the API server, this error
/// has no reason.
pub(super) fn check_number(version: &str) -> Result<(), Failure> {
    let is_number = version.bytes().all(|it| it.is_ascii_digit());
    if version.is_empty() || is_number && version.parse::<u64>().is_ok() {
        return Ok(());
    }
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    Err(Failure::unknown(&format!("strconv.ParseUint: parsing {version:?}: {why}")))
}
