//! Validates objects of built-in kinds. The types of their fields are checked elsewhere.
//!
//! Only the kinds that controllers write most often are validated: ConfigMaps, Secrets, Leases,
//! Events, Pods, Deployments, ReplicaSets and roles.

use serde_json::{Value, json};

use super::meta::{self, Finalizers, Names};
use super::names::config_key_errors;
use super::pods::{check_pod, check_restart_policy, check_spec};
use crate::kind::{Kind, Part};
use crate::status::FieldError;

/// Returns an error for each field that the API server would refuse.
pub(super) fn check(
    object: &Value,
    old: Option<&Value>,
    kind: &Kind,
    part: Part,
) -> Vec<FieldError> {
    let mut errors = check_meta(object, old, kind, part);
    if part == Part::Status {
        check_status(object, kind, &mut errors);
        return errors;
    }
    match (&*kind.group, &*kind.plural) {
        ("", "configmaps") => {
            check_keys(object, "data", &mut errors);
            check_keys(object, "binaryData", &mut errors);
        }
        ("", "secrets") => check_keys(object, "data", &mut errors),
        ("", "events") => check_event(object, &mut errors),
        ("coordination.k8s.io", "leases") => {
            let duration = &object["spec"]["leaseDurationSeconds"];
            if duration.as_i64().is_some_and(|seconds| seconds <= 0) {
                let field = "spec.leaseDurationSeconds";
                errors.push(FieldError::invalid(field, duration, "must be greater than 0"));
            }
        }
        ("rbac.authorization.k8s.io", "clusterroles" | "roles") => {
            check_rules(object, kind, &mut errors);
        }
        ("", "pods") => check_pod(object, old, &mut errors),
        ("apps", "deployments" | "replicasets") => check_workload(object, old, &mut errors),
        _ => {}
    }
    errors
}

/// Checks the metadata. The checks, their order and their repetitions are those of the
/// validation functions in Kubernetes.
fn check_meta(object: &Value, old: Option<&Value>, kind: &Kind, part: Part) -> Vec<FieldError> {
    let finalizers = match &*kind.plural {
        "leases" | "customresourcedefinitions" => Finalizers::Common,
        _ => Finalizers::Core,
    };
    let names = match (&*kind.group, &*kind.plural) {
        ("rbac.authorization.k8s.io", _) => Names::Segment,
        // The API server also requires that the name is an IP address, which the testkit does
        // not check.
        ("networking.k8s.io", "ipaddresses") => Names::Segment,
        ("", "namespaces" | "services") => Names::Label,
        _ => Names::Subdomain,
    };
    if kind.is_core("events") {
        // The metadata of Events is checked only by the common checks.
        return Vec::new();
    }
    let Some(old) = old else { return meta::check(object, names, finalizers) };
    let change = meta::check_change(object, old, finalizers);
    let whole = || meta::check(object, names, finalizers);
    if part == Part::Status {
        return change;
    }
    let mut of_kind = Vec::new();
    match &*kind.plural {
        "configmaps" => check_immutable(object, old, &["data", "binaryData"], &mut of_kind),
        "secrets" => {
            check_same(object, old, "/type", &mut of_kind);
            check_immutable(object, old, &["data"], &mut of_kind);
        }
        _ => {}
    }
    match &*kind.plural {
        "deployments" | "replicasets" | "leases" => change,
        "namespaces" | "clusterroles" | "roles" | "clusterrolebindings" | "rolebindings" => {
            [whole(), change].concat()
        }
        _ => [change, of_kind, whole()].concat(),
    }
}

fn check_status(object: &Value, kind: &Kind, errors: &mut Vec<FieldError>) {
    let status = &object["status"];
    if kind.is_core("namespaces") {
        let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
        let (phase, is) =
            if is_deleted { ("Terminating", "is not empty") } else { ("Active", "is empty") };
        if status["phase"] != phase {
            let why = format!("may only be '{phase}' if `deletionTimestamp` {is}");
            let found = json!(status["phase"].as_str().unwrap_or_default());
            errors.push(FieldError::invalid("status.Phase", &found, &why));
        }
    }
    if kind.group == "apps" {
        let counts = ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
        for field in counts.iter().filter(|field| status[**field].as_i64().is_some_and(|it| it < 0))
        {
            let path = format!("status.{field}");
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid(path, &status[*field], why));
        }
    }
}

/// Adds an error if a write changes a field that is immutable.
fn check_same(object: &Value, old: &Value, pointer: &str, errors: &mut Vec<FieldError>) {
    let value = |object: &Value| object.pointer(pointer).cloned().unwrap_or_default();
    if value(object) != value(old) {
        let field = pointer.trim_start_matches('/').replace('/', ".");
        errors.push(FieldError::invalid(field, &value(object), "field is immutable"));
    }
}

/// Adds errors for changes of an object whose field `immutable` is true.
fn check_immutable(object: &Value, old: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    if old["immutable"] != true {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if object["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", why));
    }
    for field in fields.iter().filter(|field| object[**field] != old[**field]) {
        errors.push(FieldError::forbidden(*field, why));
    }
}

fn check_keys(object: &Value, field: &str, errors: &mut Vec<FieldError>) {
    for key in object[field].as_object().into_iter().flatten().map(|(key, _)| key) {
        let path = || format!("{field}[{key}]");
        for why in config_key_errors(key) {
            errors.push(FieldError::invalid(path(), &json!(key), &why));
        }
        if field == "data" && object["binaryData"].get(key).is_some() {
            let why = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(path(), &json!(key), why));
        }
    }
}

/// Checks an event without `eventTime`, the old form. It must be in the namespace of its
/// involved object.
fn check_event(event: &Value, errors: &mut Vec<FieldError>) {
    if event["eventTime"].is_string() {
        return;
    }
    let own = event["metadata"]["namespace"].as_str().unwrap_or_default();
    let involved = event["involvedObject"]["namespace"].as_str().unwrap_or_default();
    if involved != own && (!involved.is_empty() || own != "default") {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(involved), why));
    }
}

fn check_workload(object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    if spec["replicas"].as_i64().is_some_and(|replicas| replicas < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", &spec["replicas"], why));
    }
    let selector = &spec["selector"];
    let wanted = selector["matchLabels"].as_object();
    let template = &spec["template"];
    let labels = &template["metadata"]["labels"];
    let has_terms = wanted.is_some_and(|labels| !labels.is_empty())
        || selector["matchExpressions"].as_array().is_some_and(|terms| !terms.is_empty());
    if selector.is_null() {
        errors.push(FieldError::required("spec.selector", ""));
    } else if !has_terms {
        let why = "empty selector is invalid for deployment";
        errors.push(FieldError::invalid("spec.selector", selector, why));
    } else {
        let selected = &selector["matchLabels"];
        meta::check_labels(selected, "spec.selector.matchLabels", errors);
    }
    // If the selector is missing, it selects no pods, and does not match the template. An empty
    // selector selects all pods.
    let is_mismatch = wanted.into_iter().flatten().any(|(label, value)| labels[label] != *value);
    if selector.is_null() || is_mismatch {
        let why = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid("spec.template.metadata.labels", labels, why));
    }
    meta::check_labels(labels, "spec.template.labels", errors);
    check_spec(&template["spec"], "spec.template.spec", errors);
    check_restart_policy(&template["spec"], "spec.template.spec", &["Always"], errors);
    let update = &spec["strategy"]["rollingUpdate"];
    let is_zero = |field: &str| update[field] == 0 || update[field] == "0%";
    if is_zero("maxUnavailable") && is_zero("maxSurge") {
        let field = "spec.strategy.rollingUpdate.maxUnavailable";
        let why = "may not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(field, &update["maxUnavailable"], why));
    }
    if let Some(old) = old {
        check_same(object, old, "/spec/selector", errors);
    }
}

fn check_rules(role: &Value, kind: &Kind, errors: &mut Vec<FieldError>) {
    for (at, rule) in role["rules"].as_array().into_iter().flatten().enumerate() {
        let is_empty = |field: &str| rule[field].as_array().is_none_or(Vec::is_empty);
        let path = |field: &str| format!("rules[{at}].{field}");
        let mut require = |field: &str, why: &str| {
            errors.push(FieldError::required(path(field), why));
        };
        if is_empty("verbs") {
            require("verbs", "");
        }
        if !is_empty("nonResourceURLs") {
            let mut refuse = |why: &str| {
                let urls = &rule["nonResourceURLs"];
                errors.push(FieldError::invalid(path("nonResourceURLs"), urls, why));
            };
            if kind.is_namespaced {
                refuse("namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !is_empty(field)) {
                refuse("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if is_empty("apiGroups") {
            require("apiGroups", "resource rules must supply at least one api group");
        }
        if is_empty("resources") {
            require("resources", "resource rules must supply at least one resource");
        }
    }
}
