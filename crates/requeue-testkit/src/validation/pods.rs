//! Validates pods, and the pods in templates.

use serde_json::{Value, json};

use super::names::{label_key_errors, label_value_errors};
use super::pod_diff;
use crate::status::FieldError;

/// The maximum value of the field `activeDeadlineSeconds` of a pod.
const LONGEST_LIMIT: i64 = i32::MAX as i64;

/// Checks the spec of a pod, or of a pod in a template.
pub(super) fn check_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    check_containers(spec, &format!("{path}.containers"), errors);
    check_tolerations(&spec["tolerations"], &format!("{path}.tolerations"), errors);
    check_restart_policy(spec, path, &["Always", "OnFailure", "Never"], errors);
    let mut seen = Vec::new();
    for (at, gate) in spec["schedulingGates"].as_array().into_iter().flatten().enumerate() {
        let (name, path) = (&gate["name"], format!("{path}.schedulingGates[{at}]"));
        for why in label_key_errors(name.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(path.as_str(), name, &why));
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(path, name));
        }
        seen.push(name);
    }
}

pub(super) fn check_restart_policy(
    spec: &Value,
    path: &str,
    supported: &[&str],
    errors: &mut Vec<FieldError>,
) {
    let policy = &spec["restartPolicy"];
    if policy.as_str().is_some_and(|policy| !supported.contains(&policy)) {
        let supported: Vec<_> = supported.iter().map(|policy| json!(policy)).collect();
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), policy, &supported));
    }
}

fn check_containers(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let containers = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    for (at, container) in containers.iter().enumerate() {
        let name = &container["name"];
        if containers[..at].iter().any(|other| other["name"] == *name) {
            errors.push(FieldError::duplicate(format!("{path}[{at}].name"), name));
        }
        for field in ["name", "image"] {
            if container[field].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(format!("{path}[{at}].{field}"), ""));
            }
        }
    }
}

fn check_tolerations(tolerations: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (at, toleration) in tolerations.as_array().into_iter().flatten().enumerate() {
        let text = |field: &str| toleration[field].as_str().unwrap_or_default();
        let (key, operator, effect) = (text("key"), text("operator"), text("effect"));
        let mut refuse = |field: &str, value: &str, why: &str| {
            errors.push(FieldError::invalid(format!("{path}[{at}].{field}"), &json!(value), why));
        };
        if key.is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all \
                       keys\"";
            refuse("operator", operator, why);
        }
        if !toleration["tolerationSeconds"].is_null() && effect != "NoExecute" {
            refuse("effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "Exists" if !text("value").is_empty() => {
                refuse(
                    "operator",
                    text("value"),
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Equal" | "" => {
                let why = label_value_errors(text("value"));
                if !why.is_empty() {
                    refuse("operator", text("value"), &why.join(";"));
                }
            }
            _ => {}
        }
        if !key.is_empty() {
            label_key_errors(key).iter().for_each(|why| refuse("key", key, why));
        }
        for (field, found, supported) in [
            ("operator", operator, &["Equal", "Exists"][..]),
            ("effect", effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]),
        ] {
            if !found.is_empty() && !supported.contains(&found) {
                let supported: Vec<_> = supported.iter().map(|value| json!(value)).collect();
                let path = format!("{path}[{at}].{field}");
                errors.push(FieldError::not_supported(path, &json!(found), &supported));
            }
        }
    }
}

/// Checks a pod. An update may change only its images and a few other fields.
pub(super) fn check_pod(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    check_spec(spec, "spec", errors);
    let limit = &spec["activeDeadlineSeconds"];
    if limit.as_i64().is_some_and(|seconds| !(1..=LONGEST_LIMIT).contains(&seconds)) {
        let why = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid("spec.activeDeadlineSeconds", limit, why));
    }
    let Some(old) = old.map(|old| &old["spec"]) else { return };
    for list in ["containers", "initContainers"] {
        let containers = |spec: &Value| spec[list].as_array().map_or(0, Vec::len);
        if containers(spec) != containers(old) {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{list}"), why));
            return;
        }
    }
    if let Some(why) = deadline_error(limit, &old["activeDeadlineSeconds"]) {
        errors.push(FieldError::invalid("spec.activeDeadlineSeconds", limit, why));
        if !limit.is_null() {
            return;
        }
    }
    check_kept_tolerations(&spec["tolerations"], &old["tolerations"], errors);
    check_gates(&spec["schedulingGates"], &old["schedulingGates"], errors);
    if spec != old {
        check_fixed_fields(spec, old, errors);
    }
}

/// Returns the reason why a change of a pod's time limit is refused. The limit can be
/// set and lowered, but not raised or removed.
fn deadline_error(new: &Value, old: &Value) -> Option<&'static str> {
    match (new.as_i64(), old.as_i64()) {
        (Some(new), _) if !(0..=LONGEST_LIMIT).contains(&new) => {
            Some("must be between 0 and 2147483647, inclusive")
        }
        (Some(new), Some(old)) if new > old => Some("must be less than or equal to previous value"),
        (None, Some(_)) => Some("must not update from a positive integer to nil value"),
        _ => None,
    }
}

/// Adds errors for tolerations that an update removes or changes. Only their time may
/// change.
fn check_kept_tolerations(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let without_time = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(fields) = toleration.as_object_mut() {
            fields.remove("tolerationSeconds");
        }
        toleration
    };
    let list = |value: &Value| -> Vec<_> {
        value.as_array().into_iter().flatten().map(without_time).collect()
    };
    let new = list(new);
    if list(old).iter().any(|toleration| !new.contains(toleration)) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
}

/// Adds errors for scheduling gates that an update adds. It may only remove them.
fn check_gates(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let old = list(old);
    for (at, gate) in list(new).iter().enumerate().filter(|(_, gate)| !old.contains(gate)) {
        let name = gate["name"].as_str().unwrap_or_default();
        let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        errors.push(FieldError::forbidden(format!("spec.schedulingGates[{at}].name"), &why));
    }
}

/// Adds errors for changes of fields that no update of a pod may change.
fn check_fixed_fields(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let mut new = new.clone();
    for list in ["containers", "initContainers"] {
        let new = new.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (new, old) in new.zip(old[list].as_array().into_iter().flatten()) {
            new["image"] = old["image"].clone();
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        match old.get(field) {
            Some(value) => new[field] = value.clone(),
            None => new.as_object_mut().into_iter().for_each(|spec| {
                spec.remove(field);
            }),
        }
    }
    let is_gated = old["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    if is_gated {
        check_gated(&mut new, old, errors);
    }
    if new != *old {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                   `spec.tolerations` (only additions to existing tolerations),\
                   `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)\n";
        let difference = pod_diff::diff(old, &new);
        errors.push(FieldError::forbidden("spec", &format!("{why}{difference}")));
    }
}

/// Checks the fields that an update may extend before the pod is scheduled. Then sets
/// these fields to their old values, so that the later comparison ignores them.
fn check_gated(new: &mut Value, old: &Value, errors: &mut Vec<FieldError>) {
    let labels = |spec: &Value| spec["nodeSelector"].as_object().cloned().unwrap_or_default();
    let (new_labels, old_labels) = (labels(new), labels(old));
    if old_labels.iter().any(|(label, value)| new_labels.get(label) != Some(value)) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid("spec.nodeSelector", &json!(new_labels), why));
    }
    check_node_affinity(&new["affinity"]["nodeAffinity"], &old["affinity"]["nodeAffinity"], errors);
    let mut affinity = new["affinity"].take();
    if let Some(fields) = affinity.as_object_mut() {
        fields.remove("nodeAffinity");
        if fields.is_empty() {
            affinity = Value::Null;
        }
    }
    let node_affinity = &old["affinity"]["nodeAffinity"];
    if !node_affinity.is_null() {
        affinity["nodeAffinity"] = node_affinity.clone();
    }
    for (field, value) in [("nodeSelector", old["nodeSelector"].clone()), ("affinity", affinity)] {
        match value {
            Value::Null => new.as_object_mut().into_iter().for_each(|spec| {
                spec.remove(field);
            }),
            value => new[field] = value,
        }
    }
}

fn check_node_affinity(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let rule = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms = |affinity: &Value| -> Vec<Value> {
        affinity[rule]["nodeSelectorTerms"].as_array().cloned().unwrap_or_default()
    };
    let (new, old) = (terms(new), terms(old));
    let path = format!("spec.affinity.nodeAffinity.{rule}.nodeSelectorTerms");
    if !old.is_empty() && old.len() != new.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid(path, &json!(new), why));
        return;
    }
    let list = |term: &Value, field: &str| term[field].as_array().cloned().unwrap_or_default();
    for (at, (new, old)) in new.iter().zip(&old).enumerate() {
        let is_extended = |field: &str| list(new, field).starts_with(&list(old, field));
        let fields = ["matchExpressions", "matchFields"];
        let is_empty = |term: &Value| fields.iter().all(|field| list(term, field).is_empty());
        if !fields.into_iter().all(is_extended) || is_empty(old) && !is_empty(new) {
            let why = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(format!("{path}[{at}]"), new, why));
        }
    }
}
