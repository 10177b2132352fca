//! Reads objects: one by its name, or a list in pages.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Cluster, Response, select};
use crate::events;
use crate::kind::Kind;
use crate::request::{Match, Options, Projection, Request};
use crate::status::{Failure, FieldError};
use crate::store::Objects;

impl Cluster {
    pub(super) fn get(&self, request: &Request, kind: &Kind) -> Result<Response, Failure> {
        self.check_version(&request.options)?;
        let (_, object) = self.stored(kind, &request.path)?;
        Ok(Response::Json(200, present(kind, request.projection, &object)))
    }

    pub(super) fn list(&self, request: &Request, kind: &Kind) -> Result<Response, Failure> {
        let options = &request.options;
        options.selector.check_fields(kind)?;
        check_list_options(options)?;
        let page = options.page.as_deref().map(Page::parse).transpose()?;
        let (version, objects) = self.objects_of_list(options, page.as_ref())?;
        let objects = objects.as_ref().unwrap_or(self.store.objects());

        let namespace = request.path.namespace.as_deref();
        let start = page.as_ref().map_or("", |page| &page.start);
        let rest: Vec<_> = select(objects, kind.storage_group(), &kind.plural, namespace)
            .filter(|(key, _)| *key.place >= *start)
            .map(|(key, object)| (key, serve(kind, object)))
            .filter(|(_, object)| options.selector.matches(object))
            .collect();
        let is_last = options.limit == 0 || rest.len() <= options.limit;
        let count = if is_last { rest.len() } else { options.limit };

        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if !is_last {
            // The smallest place after the last one.
            let start = format!("{}\0", rest[count - 1].0.place);
            let next = Page { version: version as i64, start };
            metadata["continue"] = json!(next.to_token());
            // A real server does not count what a selector has yet to filter.
            if options.selector.is_empty() {
                metadata["remainingItemCount"] = json!(rest.len() - count);
            }
        }
        let items = rest[..count].iter();
        let items: Vec<_> = match request.projection {
            Projection::Metadata => items.map(|(_, object)| metadata_of(object)).collect(),
            Projection::Whole => items.map(|(_, object)| list_item(kind, object)).collect(),
        };
        let (api_version, list_kind) = match request.projection {
            Projection::Whole => (kind.api_version(), kind.list_kind()),
            Projection::Metadata => ("meta.k8s.io/v1".into(), "PartialObjectMetadataList".into()),
        };
        let list = json!({
            "kind": list_kind,
            "apiVersion": api_version,
            "metadata": metadata,
            "items": items,
        });
        Ok(Response::Json(200, list))
    }

    /// Returns the version of a list, and its objects unless they are the current ones.
    fn objects_of_list(
        &self,
        options: &Options,
        page: Option<&Page>,
    ) -> Result<(u64, Option<Objects>), Failure> {
        let current = self.store.version();
        if let Some(page) = page {
            if page.version < 0 {
                return Ok((current, None));
            }
            let objects = self.store.at(page.version as u64).ok_or_else(|| {
                let inconsistent = Page { version: -1, start: page.start.clone() };
                Failure::expired_page(inconsistent.to_token())
            })?;
            return Ok((page.version as u64, Some(objects)));
        }
        let version = self.check_version(options)?;
        // With a limit, a version without a rule means exactly that version.
        let is_exact = match options.version_match {
            Some(rule) => rule == Match::Exact,
            None => options.limit > 0 && version > 0,
        };
        if !is_exact || version == current {
            return Ok((current, None));
        }
        match self.store.at(version) {
            Some(objects) => Ok((version, Some(objects))),
            None => Err(Failure::expired("The resourceVersion for the provided list is too old.")),
        }
    }

    /// Returns the version in the query, or 0. It must not be in the future.
    pub(super) fn check_version(&self, options: &Options) -> Result<u64, Failure> {
        if options.version.is_empty() {
            return Ok(0);
        }
        let version = options.version.parse().map_err(|_| {
            let why = format!("invalid resource version: {:?}", options.version);
            Failure::bad_request(why)
        })?;
        if version > self.store.version() {
            return Err(Failure::version_too_large(version, self.store.version()));
        }
        Ok(version)
    }
}

fn check_list_options(options: &Options) -> Result<(), Failure> {
    let refuse = |why: &str| {
        let error = FieldError::forbidden("resourceVersionMatch", why);
        Err(Failure::invalid_options("ListOptions.meta.k8s.io", &error))
    };
    if options.send_initial_events.is_some() {
        let error =
            FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        return Err(Failure::invalid_options("ListOptions.meta.k8s.io", &error));
    }
    if options.page.is_some() && !options.version.is_empty() && options.version != "0" {
        return Err(Failure::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    match options.version_match {
        Some(_) if options.page.is_some() => {
            refuse("resourceVersionMatch is forbidden when continue is provided")
        }
        Some(_) if options.version.is_empty() => {
            refuse("resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        Some(Match::Exact) if options.version == "0" => {
            refuse("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        _ => Ok(()),
    }
}

/// The place at which a list continues.
struct Page {
    /// The version of the list, or -1 for the current one.
    version: i64,
    start: String,
}

impl Page {
    fn parse(token: &str) -> Result<Self, Failure> {
        let invalid = || Failure::bad_request("continue key is not valid");
        let json = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| invalid())?;
        let json: Value = serde_json::from_slice(&json).map_err(|_| invalid())?;
        let version = json["rv"].as_i64().filter(|version| *version != 0);
        let start = json["start"].as_str().filter(|start| !start.is_empty());
        match (json["v"].as_str(), version, start) {
            (Some("meta.k8s.io/v1"), Some(version), Some(start)) => {
                Ok(Self { version, start: start.into() })
            }
            _ => Err(invalid()),
        }
    }

    fn to_token(&self) -> String {
        let json = json!({ "v": "meta.k8s.io/v1", "rv": self.version, "start": self.start });
        BASE64_URL_SAFE_NO_PAD.encode(json.to_string())
    }
}

/// Returns a stored object in the version of the kind.
pub(super) fn serve(kind: &Kind, object: &Arc<Value>) -> Arc<Value> {
    if kind.is_new_event() {
        return Arc::new(events::to_new(object));
    }
    let api_version = kind.api_version();
    if object["apiVersion"] == *api_version {
        return Arc::clone(object);
    }
    let mut object = Value::clone(object);
    object["apiVersion"] = json!(api_version);
    Arc::new(object)
}

/// Returns a stored object as a response shows it.
pub(super) fn present(kind: &Kind, projection: Projection, object: &Arc<Value>) -> Value {
    let object = serve(kind, object);
    match projection {
        Projection::Whole => Value::clone(&object),
        Projection::Metadata => metadata_of(&object),
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// Items in lists of built-in kinds do not name their kind.
fn list_item(kind: &Kind, object: &Value) -> Value {
    let mut item = object.clone();
    if let (None, Some(fields)) = (&kind.definition, item.as_object_mut()) {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}
