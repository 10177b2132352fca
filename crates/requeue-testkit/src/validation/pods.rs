//! The checks of pods, and of the pods in templates.

use serde_json::Value;

use super::pod_diff;
use crate::status::FieldError;

/// The longest time limit of a pod, in seconds.
const LONGEST_LIMIT: i64 = i32::MAX as i64;

pub(super) fn check_containers(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let containers = spec["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    for (at, container) in containers.iter().enumerate() {
        for field in ["name", "image"] {
            if container[field].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(format!("{path}[{at}].{field}"), ""));
            }
        }
    }
}

/// Checks a pod, and that an update changes little more than its images.
pub(super) fn check_pod(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    check_containers(spec, "spec.containers", errors);
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
    check_tolerations(&spec["tolerations"], &old["tolerations"], errors);
    check_gates(&spec["schedulingGates"], &old["schedulingGates"], errors);
    if spec != old {
        check_fixed_fields(spec, old, errors);
    }
}

/// Returns why a pod may not have another time limit. It may be set or lowered.
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

/// Refuses to remove or change tolerations, apart from their time.
fn check_tolerations(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
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

/// Refuses new scheduling gates.
fn check_gates(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let old = list(old);
    for (at, gate) in list(new).iter().enumerate().filter(|(_, gate)| !old.contains(gate)) {
        let name = gate["name"].as_str().unwrap_or_default();
        let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
        errors.push(FieldError::forbidden(format!("spec.schedulingGates[{at}].name"), &why));
    }
}

/// Refuses changes of the fields that no update of a pod may change.
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
