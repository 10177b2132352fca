//! The failures of requests, with the reasons, codes and texts of the API server.

use serde_json::{Value, json};

use crate::kind::{Kind, qualify};

/// A failed request. The client receives the failure as a `Status`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    details: Value,
    /// The token with which the client can continue its list in the current version, after
    /// the version of the list has expired.
    next_page: Option<String>,
    /// True if the response is only the message as plain text, without a `Status`.
    is_text: bool,
}

/// An error in one field of an object, in the words of the API server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    pub(crate) reason: &'static str,
    pub(crate) field: String,
    pub(crate) message: String,
}

impl FieldError {
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {}: {why}", shown(value));
        Self { reason: "FieldValueInvalid", field: field.into(), message }
    }

    pub(crate) fn invalid_without_value(field: impl Into<String>, why: &str) -> Self {
        let message = format!("Invalid value: {why}");
        Self { reason: "FieldValueInvalid", field: field.into(), message }
    }

    pub(crate) fn type_invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {}: {why}", shown(value));
        Self { reason: "FieldValueTypeInvalid", field: field.into(), message }
    }

    pub(crate) fn required(field: impl Into<String>, why: &str) -> Self {
        let message =
            if why.is_empty() { "Required value".into() } else { format!("Required value: {why}") };
        Self { reason: "FieldValueRequired", field: field.into(), message }
    }

    pub(crate) fn forbidden(field: impl Into<String>, why: &str) -> Self {
        let message = format!("Forbidden: {why}");
        Self { reason: "FieldValueForbidden", field: field.into(), message }
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = format!("Duplicate value: {}", shown(value));
        Self { reason: "FieldValueDuplicate", field: field.into(), message }
    }

    pub(crate) fn not_supported(
        field: impl Into<String>,
        value: &Value,
        supported: &[Value],
    ) -> Self {
        let supported: Vec<_> = supported.iter().map(Value::to_string).collect();
        let message = format!(
            "Unsupported value: {}: supported values: {}",
            shown(value),
            supported.join(", "),
        );
        Self { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    pub(crate) fn too_long(field: impl Into<String>, limit: u64) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self { reason: "FieldValueTooLong", field: field.into(), message }
    }

    /// Returns the errors as one text. Equal messages occur only once in it.
    pub(crate) fn aggregate(errors: &[Self]) -> String {
        let mut listed: Vec<String> = Vec::new();
        for text in errors.iter().map(Self::to_string) {
            if !listed.contains(&text) {
                listed.push(text);
            }
        }
        match listed.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }

    pub(crate) fn too_many(field: impl Into<String>, count: usize, limit: u64) -> Self {
        let message = format!("Too many: {count}: must have at most {limit} items");
        Self { reason: "FieldValueTooMany", field: field.into(), message }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

fn details(name: &str, group: &str, kind: &str) -> Value {
    let fields = [("name", name), ("group", group), ("kind", kind)];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(fields.map(|(field, value)| (field.to_owned(), json!(value))).collect())
}

fn invalid_message(what: &str, name: &str, errors: &[FieldError]) -> String {
    format!("{what} \"{name}\" is invalid: {}", FieldError::aggregate(errors))
}

fn causes(errors: &[FieldError]) -> Value {
    let causes = errors.iter().map(
        |error| json!({ "reason": error.reason, "message": error.message, "field": error.field }),
    );
    Value::Array(causes.collect())
}

/// Go prints an object or a list with its type, which the testkit does not know. It prints
/// JSON instead.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        other => other.to_string(),
    }
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: Value::Null, next_page: None, is_text: false }
    }

    fn about(self, kind: &Kind, name: &str) -> Self {
        Self { details: details(name, &kind.group, &kind.plural), ..self }
    }

    /// Returns the failure for a path whose group the server does not have. The response is
    /// plain text.
    pub(crate) fn page_not_found() -> Self {
        Self { is_text: true, ..Self::new(404, "NotFound", "404 page not found\n".into()) }
    }

    /// Returns the message, if the response is plain text.
    pub(crate) fn text(&self) -> Option<&str> {
        self.is_text.then_some(&*self.message)
    }

    /// Returns the failure for a path whose group exists, but not its resource.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: json!({}), ..Self::new(404, "NotFound", message.into()) }
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.qualified());
        Self::new(404, "NotFound", message).about(kind, name)
    }

    /// Returns the failure for the creation of an existing object. `is_deleted` is true if
    /// that object is being deleted.
    pub(crate) fn already_exists(kind: &Kind, name: &str, is_deleted: bool) -> Self {
        let prefix = if is_deleted { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} \"{name}\" already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// Returns the failure for a deletion whose preconditions do not match the object. It
    /// contains the kind instead of the resource.
    pub(crate) fn deletion_conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let qualified = kind.qualified_kind();
        let message = format!("Operation cannot be fulfilled on {qualified} \"{name}\": {why}");
        let details = details(name, &kind.group, &kind.kind);
        Self { details, ..Self::new(409, "Conflict", message) }
    }

    /// Returns the failure for a write of an object that another write has changed in the
    /// meantime.
    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version \
                   and try again";
        Self::conflict(kind, name, why)
    }

    /// Returns the failure for an apply that would change fields of other managers.
    pub(crate) fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Self { details: json!({ "causes": causes }), ..Self::new(409, "Conflict", message) }
    }

    pub(crate) fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let qualified = kind.qualified();
        let message = if name.is_empty() {
            format!("{qualified} is forbidden: {why}")
        } else {
            format!("{qualified} \"{name}\" is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(kind, name)
    }

    /// Returns the failure for a request that RBAC forbids. The resource need not exist.
    pub(crate) fn denied((group, plural, name): (&str, &str, &str), why: &str) -> Self {
        let qualified = qualify(plural, group);
        let message = match name {
            "" => format!("{qualified} is forbidden: {why}"),
            name => format!("{qualified} \"{name}\" is forbidden: {why}"),
        };
        Self { details: details(name, group, plural), ..Self::new(403, "Forbidden", message) }
    }

    pub(crate) fn terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut failure = Self::forbidden(kind, name, &why);
        failure.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        failure
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: json!({}), ..Self::new(405, "MethodNotAllowed", message.into()) }
    }

    pub(crate) fn unsupported_media(message: &str) -> Self {
        Self::new(415, "UnsupportedMediaType", message.into())
    }

    /// Returns the failure for a patch of a type that built-in kinds do not support.
    pub(crate) fn unsupported_patch() -> Self {
        let message = "415: Unsupported Media Type";
        Self { details: json!({}), ..Self::unsupported_media(message) }
    }

    /// Returns the failure for a patch that cannot be applied to the object.
    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self { details: json!({}), ..Self::new(422, "Invalid", message.into()) }
    }

    pub(crate) fn invalid(kind: &Kind, name: &str, errors: &[FieldError]) -> Self {
        let message = invalid_message(&kind.qualified_kind(), name, errors);
        let mut failure = Self::new(422, "Invalid", message).about(kind, name);
        failure.details["kind"] = json!(kind.kind);
        failure.details["causes"] = causes(errors);
        failure
    }

    /// Returns the failure for an object whose kind is not that of the path.
    pub(crate) fn invalid_foreign(
        found: &str,
        kind: &Kind,
        name: &str,
        errors: &[FieldError],
    ) -> Self {
        let message = invalid_message(&qualify(found, &kind.group), name, errors);
        let mut details = details(name, &kind.group, found);
        details["causes"] = causes(errors);
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    /// Returns the failure for a patch whose result does not fit the kind. The failure does
    /// not contain the name of the kind.
    pub(crate) fn invalid_patch(patched: &Value, why: &str) -> Self {
        let errors = [FieldError::invalid("patch", &json!(patched.to_string()), why)];
        let details = json!({ "causes": causes(&errors) });
        Self { details, ..Self::new(422, "Invalid", invalid_message("", "", &errors)) }
    }

    pub(crate) fn invalid_scale(name: &str, errors: &[FieldError]) -> Self {
        let message = invalid_message("Scale.autoscaling", name, errors);
        let mut details = details(name, "autoscaling", "Scale");
        details["causes"] = causes(errors);
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    /// Returns the failure for an update without a resource version, if the kind requires
    /// one. It contains the resource instead of the kind.
    pub(crate) fn no_version(kind: &Kind, name: &str) -> Self {
        let why = "must be specified for an update";
        let errors = [FieldError::invalid("metadata.resourceVersion", &json!(0), why)];
        let message = invalid_message(&kind.qualified(), name, &errors);
        let mut failure = Self::new(422, "Invalid", message).about(kind, name);
        failure.details["causes"] = causes(&errors);
        failure
    }

    /// Returns the failure for options of a request that contradict each other, or have
    /// unknown values.
    pub(crate) fn invalid_options(options: &str, errors: &[FieldError]) -> Self {
        let message = invalid_message(&format!("{options}.meta.k8s.io"), "", errors);
        let details = json!({ "group": "meta.k8s.io", "kind": options, "causes": causes(errors) });
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    pub(crate) fn expired_page(next: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list \
                       result. You can start a new list without the continue parameter, or use the \
                       continue token in this response to retrieve the remainder of the results. \
                       Continuing with the provided token results in an inconsistent list - objects \
                       that were created, modified, or deleted between the time the first chunk was \
                       returned and now may show up in the list.";
        Self { next_page: Some(next), ..Self::expired(message) }
    }

    /// Returns the failure for a read of a version that is later than the current one.
    pub(crate) fn version_too_large(requested: u64, current: u64) -> Self {
        let message =
            format!("Timeout: Too large resource version: {requested}, current: {current}");
        let causes = json!([{
            "reason": "ResourceVersionTooLarge", "message": "Too large resource version",
        }]);
        let details = json!({ "retryAfterSeconds": 1, "causes": causes });
        Self { details, ..Self::new(504, "Timeout", message) }
    }

    pub(crate) fn internal(message: impl std::fmt::Display) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self::new(500, "InternalError", message)
    }

    /// Returns a failure without a reason, as the API server returns it for some errors.
    pub(crate) fn unknown(message: &str) -> Self {
        Self::new(500, "", message.into())
    }

    /// Returns the failure for a feature that real servers have, but the testkit does not.
    pub(crate) fn not_implemented(what: impl std::fmt::Display) -> Self {
        let message = format!("requeue-testkit does not implement {what}");
        Self::new(501, "NotImplemented", message)
    }

    /// Converts the failure to the `Status` that the client receives.
    pub(crate) fn to_status(&self) -> Value {
        let metadata = match &self.next_page {
            Some(token) => json!({ "continue": token }),
            None => json!({}),
        };
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
