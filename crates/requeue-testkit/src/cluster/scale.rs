//! Reads and writes the subresource `scale`.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::body::check_name;
use super::read::{metadata_of, serve};
use super::write::Writing;
use super::{Cluster, Response};
use crate::kind::Kind;
use crate::patch;
use crate::request::{PatchType, Projection, Request, Verb};
use crate::status::{Failure, FieldError};

/// The paths of the fields in an object that a Scale is computed from.
struct Paths {
    spec: String,
    status: String,
    selector: Option<String>,
}

impl Cluster {
    pub(super) fn get_scale(&self, request: &Request, kind: &Kind) -> Result<Response, Failure> {
        self.check_version_of_get(request)?;
        let (_, object) = self.stored(kind, &request.path)?;
        let scale = shown(scale_of(&serve(kind, &object), &paths(kind)), request);
        Ok(Response::Json(200, Arc::new(scale)))
    }

    pub(super) fn update_scale(
        &mut self,
        now: Timestamp,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        let paths = paths(kind);
        if request.verb == Verb::Update {
            check_body(request, kind)?;
        }
        let (key, old) = self.stored(kind, &request.path)?;
        let old = serve(kind, &old);
        let before = scale_of(&old, &paths);
        let scale = match request.verb {
            Verb::Patch(PatchType::Json) => patch::json(&before, &request.body)?,
            Verb::Patch(PatchType::Merge) => patch::merge(&before, &request.body)?,
            // A Scale contains no lists, so a strategic merge patch is the same as a merge
            // patch.
            Verb::Patch(PatchType::Strategic) => patch::merge(&before, &request.body)?,
            Verb::Patch(PatchType::Apply) => {
                return Err(Failure::not_implemented("apply of a scale"));
            }
            _ => request.body.clone(),
        };
        let replicas = &scale["spec"]["replicas"];
        if !replicas.is_null() && !replicas.is_i64() {
            let why = "the field spec.replicas of a Scale must be of type number";
            return Err(Failure::bad_request(why));
        }
        let replicas = replicas.as_i64().unwrap_or(0);
        if replicas < 0 && kind.definition.is_none() {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", &json!(replicas), why);
            return Err(Failure::invalid_scale(key.name(), &[error]));
        }
        let mut new = Value::clone(&old);
        set(&mut new, &paths.spec, json!(replicas));
        for field in ["uid", "resourceVersion"] {
            if let Some(sent) = scale["metadata"][field].as_str().filter(|it| !it.is_empty()) {
                new["metadata"][field] = json!(sent);
            }
        }
        let writing = Writing::new(now, request, kind);
        let is_changed = before["spec"]["replicas"].as_i64().unwrap_or(0) != replicas;
        let change = is_changed.then_some(replicas);
        let path: Vec<_> = parts(&paths.spec).collect();
        let managed_fields = patch::own_scale(&old, &path, change, &writing.ownership);
        Self::prepare(&mut new, &writing)?;
        let object = self.replace(&writing, &key, new, Some(managed_fields))?;
        let scale = shown(scale_of(&serve(kind, &object), &paths), request);
        Ok(Response::Json(200, Arc::new(scale)))
    }
}

/// Returns an error if the body of an update is not a Scale, or names another object. The
/// type may be missing.
fn check_body(request: &Request, kind: &Kind) -> Result<(), Failure> {
    let body = &request.body;
    if let Some(why) = &request.unread {
        return Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type Scale): {why}"
        )));
    }
    let text = |field: &str| body[field].as_str().filter(|text| !text.is_empty());
    let api_version = text("apiVersion").unwrap_or("autoscaling/v1");
    let found = text("kind").unwrap_or("Scale");
    if (api_version, found) != ("autoscaling/v1", "Scale") {
        if kind.definition.is_some() {
            let why = "no kind is registered for the type v1.Scale in scheme \
                       \"pkg/runtime/scheme.go:111\"";
            return Err(Failure::bad_request(why));
        }
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let why = if found == "Status" && body["status"].is_object() {
            "json: cannot unmarshal object into Go struct field Status.status of type string".into()
        } else {
            format!("converting ({version}.{found}) to (autoscaling.Scale): unknown conversion")
        };
        return Err(Failure::bad_request(format!(
            "{found} in version \"{version}\" cannot be handled as a Scale: {why}"
        )));
    }
    check_name(body, request)
}

fn paths(kind: &Kind) -> Paths {
    match &kind.definition {
        Some(definition) => {
            let scale = definition.scale(&kind.version);
            let path = |name: &str| scale[name].as_str().map(str::to_owned);
            Paths {
                spec: path("specReplicasPath").unwrap_or_default(),
                status: path("statusReplicasPath").unwrap_or_default(),
                selector: path("labelSelectorPath"),
            }
        }
        None => Paths {
            spec: ".spec.replicas".into(),
            status: ".status.replicas".into(),
            selector: None,
        },
    }
}

fn scale_of(object: &Value, paths: &Paths) -> Value {
    let meta = &object["metadata"];
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if !meta[field].is_null() {
            metadata[field] = meta[field].clone();
        }
    }
    let number = |path: &str| get(object, path).as_i64().unwrap_or(0);
    let replicas = number(&paths.spec);
    let mut status = json!({ "replicas": number(&paths.status) });
    let selector = match &paths.selector {
        Some(path) => get(object, path).as_str().map(str::to_owned),
        None => selector_text(&object["spec"]["selector"]),
    };
    if let Some(selector) = selector.filter(|selector| !selector.is_empty()) {
        status["selector"] = json!(selector);
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": if replicas == 0 { json!({}) } else { json!({ "replicas": replicas }) },
        "status": status,
    })
}

/// Converts the labels of a selector to text. The selector of a ReplicationController
/// consists of the labels themselves, without `matchLabels`.
fn selector_text(selector: &Value) -> Option<String> {
    let labels = selector["matchLabels"].as_object().or(selector.as_object())?;
    let terms =
        labels.iter().filter_map(|(label, value)| Some(format!("{label}={}", value.as_str()?)));
    Some(terms.collect::<Vec<_>>().join(","))
}

fn shown(scale: Value, request: &Request) -> Value {
    match request.projection {
        Projection::Whole => scale,
        Projection::Metadata => metadata_of(&scale),
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('.').filter(|part| !part.is_empty())
}

fn get<'a>(object: &'a Value, path: &str) -> &'a Value {
    parts(path).fold(object, |value, part| &value[part])
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for part in parts(path) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[part];
    }
    *place = value;
}
