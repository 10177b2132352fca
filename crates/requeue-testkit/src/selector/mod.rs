//! Parses and evaluates label selectors and field selectors.

mod labels;

use serde_json::Value;

use self::labels::Requirement;
use crate::kind::Kind;
use crate::status::Failure;

/// The conditions on the labels and fields of the objects that a request selects.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    field: String,
    value: String,
    is_equal: bool,
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, Failure> {
        let labels = labels::parse(labels).map_err(Failure::bad_request)?;
        let fields = parse_fields(fields).map_err(Failure::bad_request)?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the name of the object, if the selector permits only one name.
    pub(crate) fn name(&self) -> Option<&str> {
        let mut terms = self.fields.iter();
        let term = terms.find(|term| term.field == "metadata.name" && term.is_equal)?;
        Some(&term.value).filter(|name| !name.is_empty()).map(String::as_str)
    }

    /// Returns an error if the selector contains a field by which this kind cannot be
    /// selected.
    pub(crate) fn check_fields(&self, kind: &Kind) -> Result<(), Failure> {
        let is_known = |field: &str| {
            field == "metadata.name"
                || (field == "metadata.namespace" && (kind.is_namespaced || !has_own_fields(kind)))
                || built_in_fields(kind).contains(&field)
                || kind.definition.as_ref().is_some_and(|definition| {
                    definition.selectable_fields(&kind.version).iter().any(|known| known == field)
                })
        };
        match self.fields.iter().find(|term| !is_known(&term.field)) {
            None => Ok(()),
            Some(term) if has_own_fields(kind) => {
                Err(Failure::bad_request(format!("field label not supported: {}", term.field)))
            }
            Some(term) => Err(Failure::bad_request(format!(
                "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                term.field
            ))),
        }
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.matches(&labels[&requirement.label]))
            && self
                .fields
                .iter()
                .all(|term| (field_text(object, &term.field) == term.value) == term.is_equal)
    }
}

/// Parses a field selector. The texts of the errors are those of the API server.
fn parse_fields(selector: &str) -> Result<Vec<FieldTerm>, String> {
    let mut terms: Vec<_> = selector.split(',').filter(|term| !term.is_empty()).collect();
    terms.sort_unstable();
    terms
        .into_iter()
        .map(|term| {
            parse_field(term)
                .ok_or_else(|| format!("invalid selector: '{selector}'; can't understand '{term}'"))
                .and_then(|term| match term.value.contains('=') {
                    true => Err("invalid field selector: unescaped character in value: 61".into()),
                    false => Ok(term),
                })
        })
        // A term with an empty field and an empty value is ignored, because it selects all
        // objects.
        .filter(|term| !matches!(term, Ok(term) if term.field.is_empty() && term.value.is_empty()))
        .collect()
}

fn parse_field(term: &str) -> Option<FieldTerm> {
    let at = term.find('=')?;
    let (field, value, is_equal) = match term[..at].strip_suffix('!') {
        Some(field) => (field, &term[at + 1..], false),
        None => (&term[..at], term[at + 1..].strip_prefix('=').unwrap_or(&term[at + 1..]), true),
    };
    // The split at commas does not recognize escaped commas. This is harmless, because the
    // values of the known fields contain no commas.
    Some(FieldTerm { field: field.into(), value: value.into(), is_equal })
}

/// Returns the value of a field as text. If the field is missing, returns an empty text, or
/// the zero value of its type in Go.
fn field_text(object: &Value, field: &str) -> String {
    let (field, default) = match (object["kind"].as_str().unwrap_or_default(), field) {
        ("Job", "status.successful") => ("status.succeeded", "0"),
        ("ReplicaSet" | "ReplicationController", "status.replicas") => (field, "0"),
        ("Node", "spec.unschedulable") | ("Pod", "spec.hostNetwork") => (field, "false"),
        _ => (field, ""),
    };
    let value = field.split('.').fold(object, |value, part| &value[part]);
    match value {
        Value::Null => default.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns true if the API server has a list of selectable fields for this kind, in addition
/// to the name and the namespace.
fn has_own_fields(kind: &Kind) -> bool {
    kind.definition.is_some() || !built_in_fields(kind).is_empty()
}

fn built_in_fields(kind: &Kind) -> &'static [&'static str] {
    match (&*kind.group, &*kind.plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "replicationcontrollers") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        _ => &[],
    }
}
