//! Parses a request: its path, its query, its body, and the requested form of the response.

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::kind::{is_known_group, qualify};
use crate::record::Record;
use crate::selector::Selector;
use crate::status::{Failure, FieldError};

/// The type of a patch, from the header `Content-Type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// The verb of a request, with the type of a patch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch(PatchType),
    Delete,
    DeleteCollection,
}

impl Verb {
    /// Returns the name of the verb in RBAC.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch(_) => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// The parts of a path that names a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Path {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Path {
    /// Parses a path. Returns `None` if it does not name a resource, such as `/version`.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<_> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // The path is that of a Namespace or of its subresource, and not that of an
            // object in the namespace.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some((*name).to_owned()), None),
            [plural, name, subresource @ ..] => {
                (plural, Some((*name).to_owned()), Some(subresource.join("/")))
            }
            [] => return None,
        };
        Some(Self {
            group: group.into(),
            version: version.into(),
            namespace,
            plural: (*plural).into(),
            name,
            subresource,
        })
    }

    /// Returns the namespace for the rules of RBAC. If the object is a Namespace, this is
    /// its own name.
    pub(crate) fn own_namespace(&self) -> &str {
        let is_namespace = self.group.is_empty() && self.plural == "namespaces";
        let namespace = if is_namespace { &self.name } else { &self.namespace };
        namespace.as_deref().unwrap_or_default()
    }
}

/// The rule that says which versions may answer a request with a resource version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Match {
    Exact,
    NotOlderThan,
    Unknown(String),
}

impl Match {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Exact => "Exact",
            Self::NotOlderThan => "NotOlderThan",
            Self::Unknown(text) => text,
        }
    }
}

/// The treatment of fields in a body that the schema does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// The treatment of the dependents of an object when the object is deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "Background" => Ok(Self::Background),
            "Foreground" => Ok(Self::Foreground),
            "Orphan" => Ok(Self::Orphan),
            other => {
                let policies = ["Foreground", "Background", "Orphan", "nil"].map(Value::from);
                let error =
                    FieldError::not_supported("propagationPolicy", &other.into(), &policies);
                Err(Failure::invalid_options("DeleteOptions", &[error]))
            }
        }
    }
}

/// The parsed options in the query of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) selector: Selector,
    pub(crate) limit: usize,
    pub(crate) page: Option<String>,
    /// The resource version as the client sent it, or an empty text if it sent none.
    pub(crate) version: String,
    pub(crate) version_match: Option<Match>,
    pub(crate) watch: bool,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) dry_run: bool,
    pub(crate) manager: Option<String>,
    pub(crate) force: bool,
    pub(crate) field_validation: FieldValidation,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) grace_seconds: Option<i64>,
}

impl Options {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut options = Self::default();
        let (mut labels, mut fields) = (String::new(), String::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
            let truth =
                || value.is_empty() || !matches!(&*value, "0" | "false" | "False" | "FALSE");
            match name {
                "labelSelector" => labels = value,
                "fieldSelector" => fields = value,
                "limit" => options.limit = usize::try_from(number(&value)?).unwrap_or(0),
                "continue" => options.page = Some(value).filter(|page| !page.is_empty()),
                "resourceVersion" => options.version = value,
                "resourceVersionMatch" => {
                    options.version_match = match &*value {
                        "Exact" => Some(Match::Exact),
                        "NotOlderThan" => Some(Match::NotOlderThan),
                        "" => None,
                        _ => Some(Match::Unknown(value)),
                    }
                }
                "watch" => options.watch = truth(),
                "timeoutSeconds" => {
                    // The server replaces a timeout of zero with its default.
                    let seconds = u64::try_from(number(&value)?).unwrap_or(0);
                    options.timeout_seconds = Some(seconds).filter(|it| *it > 0);
                }
                "allowWatchBookmarks" => options.bookmarks = truth(),
                "sendInitialEvents" => options.send_initial_events = Some(truth()),
                "dryRun" => match &*value {
                    "All" => options.dry_run = true,
                    "" => {}
                    other => {
                        let error =
                            FieldError::not_supported("dryRun", &other.into(), &["All".into()]);
                        return Err(Failure::invalid_options("ListOptions", &[error]));
                    }
                },
                "fieldManager" => options.manager = Some(value),
                "force" => options.force = truth(),
                "fieldValidation" => {
                    options.field_validation = match &*value {
                        "Ignore" => FieldValidation::Ignore,
                        "Warn" | "" => FieldValidation::Warn,
                        "Strict" => FieldValidation::Strict,
                        other => {
                            let why = format!("unknown fieldValidation: {other:?}");
                            return Err(Failure::bad_request(why));
                        }
                    }
                }
                "propagationPolicy" => options.propagation = Some(Propagation::parse(&value)?),
                "orphanDependents" => {
                    options.propagation =
                        Some(if truth() { Propagation::Orphan } else { Propagation::Background });
                }
                "gracePeriodSeconds" => options.grace_seconds = Some(number(&value)?),
                // These parameters change only the format of the response, or limit the time
                // of the request.
                "pretty" | "timeout" => {}
                other => {
                    return Err(Failure::not_implemented(format_args!(
                        "the query parameter {other:?}"
                    )));
                }
            }
        }
        options.selector = Selector::parse(&labels, &fields)?;
        Ok(options)
    }

    /// Returns the resource version in the query, or 0 if there is none.
    pub(crate) fn parsed_version(&self) -> Result<u64, FieldError> {
        let version = &self.version;
        let is_number = version.bytes().all(|it| it.is_ascii_digit());
        match version.parse() {
            _ if version.is_empty() => Ok(0),
            Ok(version) if is_number => Ok(version),
            _ => {
                let why = if is_number { "value out of range" } else { "invalid syntax" };
                let why = format!("strconv.ParseUint: parsing {version:?}: {why}");
                Err(FieldError::invalid("resourceVersion", &version.as_str().into(), &why))
            }
        }
    }
}

/// Parses a number. The text of the error is that of Go.
fn number(value: &str) -> Result<i64, Failure> {
    value.parse().map_err(|_| {
        Failure::bad_request(format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
    })
}

/// The part of the objects that a response contains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Projection {
    #[default]
    Whole,
    Metadata,
}

/// A parsed request for a resource.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) path: Path,
    pub(crate) options: Options,
    pub(crate) projection: Projection,
    /// The body as JSON, or null if the body is empty.
    pub(crate) body: Value,
    /// The reason why the body of a creation or an update is not an object, in the words of
    /// the API server.
    pub(crate) unread: Option<String>,
    /// The name of the client: the part of the header `User-Agent` before the first slash.
    /// It is the default field manager.
    pub(crate) agent: String,
}

impl Request {
    pub(crate) fn parse(path: Path, request: &http::Request<Bytes>) -> Result<Self, Failure> {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let content_type = header(CONTENT_TYPE).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().trim();
        let options = Options::parse(request.uri().query().unwrap_or_default())?;
        let verb = match (request.method(), &path.name) {
            (&Method::GET, None) if options.watch => Verb::Watch,
            (&Method::GET, Some(_)) if options.watch => {
                return Err(Failure::not_implemented("a watch of one name; use a field selector"));
            }
            (&Method::GET, None) => Verb::List,
            (&Method::GET, Some(_)) => Verb::Get,
            (&Method::POST, _) => Verb::Create,
            (&Method::PUT, Some(_)) => Verb::Update,
            (&Method::PATCH, Some(_)) => Verb::Patch(patch_type(content_type, &path.group)?),
            (&Method::DELETE, Some(_)) => Verb::Delete,
            (&Method::DELETE, None) => Verb::DeleteCollection,
            _ => return Err(Failure::method_not_allowed()),
        };
        let is_object = matches!(verb, Verb::Create | Verb::Update);
        if is_object && !matches!(content_type, "application/json" | "") {
            if matches!(content_type, "application/yaml" | "application/vnd.kubernetes.protobuf") {
                return Err(Failure::not_implemented(format_args!("bodies as {content_type}")));
            }
            let why = "the body of the request was in an unknown format - accepted media types \
                       include: application/json, application/yaml, \
                       application/vnd.kubernetes.protobuf";
            return Err(Failure::unsupported_media(why));
        }
        let read = serde_json::from_slice(request.body());
        let unread = if is_object { unread(request.body(), &read) } else { None };
        let body = match read {
            Ok(body) => body,
            Err(_) if unread.is_some() || request.body().is_empty() => Value::Null,
            Err(error) => {
                return Err(Failure::bad_request(format!(
                    "the body of the request is not JSON, the only form that requeue-testkit \
                     reads: {error}"
                )));
            }
        };
        let agent = header(USER_AGENT).unwrap_or("unknown");
        let agent = agent.split('/').next().unwrap_or_default().to_owned();
        let projection = projection(header(ACCEPT).unwrap_or_default())?;
        Ok(Self { verb, path, options, projection, body, unread, agent })
    }

    /// Copies the properties of the request to its record.
    pub(crate) fn describe(&self, record: &mut Record) {
        let path = &self.path;
        record.verb = self.verb.name().into();
        record.resource = qualify(&path.plural, &path.group);
        record.subresource.clone_from(&path.subresource);
        record.namespace.clone_from(&path.namespace);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        record.name = path.name.clone().or_else(|| text(&self.body["metadata"]["name"]));
        record.version_sent = match self.verb {
            Verb::Get | Verb::List | Verb::Watch => Some(self.options.version.clone()),
            Verb::Delete | Verb::DeleteCollection => {
                text(&self.body["preconditions"]["resourceVersion"])
            }
            _ => text(&self.body["metadata"]["resourceVersion"]),
        };
        record.version_sent = record.version_sent.take().filter(|version| !version.is_empty());
        let writes = matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch(_));
        record.manager = writes.then(|| self.manager());
        record.dry_run = self.options.dry_run;
    }

    /// Returns the group, the plural and the name of the resource. A list or a watch of a
    /// single object has the name in its selector.
    pub(crate) fn resource(&self) -> (&str, &str, &str) {
        let is_list = matches!(self.verb, Verb::List | Verb::Watch);
        let selected = if is_list { self.options.selector.name() } else { None };
        let name = self.path.name.as_deref().or(selected).unwrap_or_default();
        (&self.path.group, &self.path.plural, name)
    }

    /// Returns the name of the field manager that owns the fields which the request sets.
    pub(crate) fn manager(&self) -> String {
        let manager = self.options.manager.clone().filter(|manager| !manager.is_empty());
        manager.unwrap_or_else(|| self.agent.clone())
    }
}

/// Returns the reason why a body is not an object, and the beginning of the body. `read` is
/// the result of parsing the body as JSON.
fn unread(body: &[u8], read: &serde_json::Result<Value>) -> Option<String> {
    const SHOWN: usize = 30;
    let why = match read {
        Ok(Value::Object(_)) => return None,
        Ok(other) => {
            let found = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Number(_) => "number",
                _ => "bool",
            };
            format!(
                "json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                 \"json:\\\"kind,omitempty\\\"\" }}"
            )
        }
        Err(error) => json_error(body, error),
    };
    let begin = &body[..body.len().min(SHOWN)];
    let begin = match begin.first() {
        None => "<empty>".into(),
        Some(b'{') => String::from_utf8_lossy(begin).into_owned(),
        Some(_) => begin.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let rest = if body.len() > SHOWN { " ..." } else { "" };
    Some(format!("couldn't get version/kind; json parse error: {why} ({begin}{rest})"))
}

/// Returns an error of the JSON parser. If the corresponding text of Go is known, returns
/// that text.
pub(crate) fn json_error(text: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".into();
    }
    match text.first() {
        Some(first) if error.line() <= 1 && error.column() <= 1 && !first.is_ascii_control() => {
            format!("invalid character '{}' looking for beginning of value", char::from(*first))
        }
        _ => error.to_string(),
    }
}

fn patch_type(content_type: &str, group: &str) -> Result<PatchType, Failure> {
    match content_type {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchType::Strategic),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        "application/apply-patch+cbor" => {
            Err(Failure::not_implemented("the content type application/apply-patch+cbor"))
        }
        _ if is_known_group(group) => Err(Failure::unsupported_patch()),
        _ => Err(unsupported_custom_patch()),
    }
}

/// Returns the error for a strategic merge patch of a custom resource. Custom resources do
/// not support this type of patch.
pub(crate) fn unsupported_custom_patch() -> Failure {
    Failure::unsupported_media(
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
    )
}

/// Returns the first form in the header `Accept` that the testkit implements.
fn projection(accept: &str) -> Result<Projection, Failure> {
    let mut refused = None;
    for form in accept.split(',').map(str::trim).filter(|form| !form.is_empty()) {
        let (media, parameters) = form.split_once(';').unwrap_or((form, ""));
        let mut parameters = parameters.split(';').map(str::trim);
        let kind = parameters.find_map(|parameter| parameter.strip_prefix("as="));
        match (media.trim(), kind) {
            ("application/json" | "application/*" | "*/*", None) => return Ok(Projection::Whole),
            ("application/json", Some("PartialObjectMetadata" | "PartialObjectMetadataList")) => {
                return Ok(Projection::Metadata);
            }
            // This is the aggregated form of discovery.
            ("application/json", Some("APIGroupDiscoveryList")) => return Ok(Projection::Whole),
            _ => refused = refused.or(Some(form)),
        }
    }
    match refused {
        Some(form) => Err(Failure::not_implemented(format_args!("responses as {form:?}"))),
        None => Ok(Projection::Whole),
    }
}
