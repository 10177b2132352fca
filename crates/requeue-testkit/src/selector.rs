//! Label and field selectors.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::kind::Kind;
use crate::status::Failure;

/// The objects that a list, a watch or a deletion is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    label: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    field: String,
    value: String,
    is_equal: bool,
}

impl Selector {
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, Failure> {
        let labels = split_terms(labels)
            .into_iter()
            .map(|term| {
                parse_requirement(term).ok_or_else(|| {
                    Failure::bad_request(format!("unable to parse requirement: {term:?}"))
                })
            })
            .collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .filter(|term| !term.is_empty())
            .map(|term| {
                parse_field(term).ok_or_else(|| {
                    Failure::bad_request(format!(
                        "invalid selector: '{term}'; can't understand '{term}'"
                    ))
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the only name that fits.
    pub(crate) fn name(&self) -> Option<&str> {
        let mut terms = self.fields.iter();
        let term = terms.find(|term| term.field == "metadata.name" && term.is_equal)?;
        Some(&term.value).filter(|name| !name.is_empty()).map(String::as_str)
    }

    /// Returns an error that names a field by which this kind cannot be selected.
    pub(crate) fn check_fields(&self, kind: &Kind) -> Result<(), Failure> {
        let is_known = |field: &str| {
            field == "metadata.name"
                || (field == "metadata.namespace" && kind.is_namespaced)
                || built_in_fields(kind).contains(&field)
                || kind.definition.as_ref().is_some_and(|definition| {
                    definition.selectable_fields(&kind.version).iter().any(|known| known == field)
                })
        };
        match self.fields.iter().find(|term| !is_known(&term.field)) {
            None => Ok(()),
            Some(term) => {
                Err(Failure::bad_request(format!("field label not supported: {}", term.field)))
            }
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

impl Requirement {
    fn matches(&self, label: &Value) -> bool {
        let value = label.as_str();
        let number = value.and_then(|value| value.parse::<i64>().ok());
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(bound) => number.is_some_and(|number| number > *bound),
            Operator::LessThan(bound) => number.is_some_and(|number| number < *bound),
        }
    }
}

/// Splits at the commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(text[start..].trim());
    terms.retain(|term| !term.is_empty());
    terms
}

fn parse_requirement(term: &str) -> Option<Requirement> {
    let one = |value: &str| BTreeSet::from([value.trim().to_owned()]);
    let number = |value: &str| value.trim().parse().ok();
    let (label, operator) = if let Some((label, value)) = term.split_once("!=") {
        (label, Operator::NotIn(one(value)))
    } else if let Some((label, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (label, Operator::In(one(value)))
    } else if let Some((label, value)) = term.split_once('>') {
        (label, Operator::GreaterThan(number(value)?))
    } else if let Some((label, value)) = term.split_once('<') {
        (label, Operator::LessThan(number(value)?))
    } else if let Some((head, values)) = term.split_once('(') {
        let values = values.trim().strip_suffix(')')?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (label, word) = head.trim().rsplit_once(char::is_whitespace)?;
        let operator = match word {
            "in" => Operator::In(values),
            "notin" => Operator::NotIn(values),
            _ => return None,
        };
        (label, operator)
    } else if let Some(label) = term.strip_prefix('!') {
        (label, Operator::DoesNotExist)
    } else {
        (term, Operator::Exists)
    };
    let label = label.trim().to_owned();
    let is_label =
        |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    let is_valid = !label.is_empty() && label.chars().all(is_label);
    is_valid.then_some(Requirement { label, operator })
}

fn parse_field(term: &str) -> Option<FieldTerm> {
    let (field, value, is_equal) = if let Some((field, value)) = term.split_once("!=") {
        (field, value, false)
    } else {
        let (field, value) = term.split_once("==").or_else(|| term.split_once('='))?;
        (field, value, true)
    };
    // A comma in a value, escaped, would be split above. No known field contains one.
    Some(FieldTerm { field: field.trim().into(), value: value.trim().into(), is_equal })
}

/// Returns a field as text. A missing field is empty, or has the zero value of its type in Go.
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
        ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        _ => &[],
    }
}
