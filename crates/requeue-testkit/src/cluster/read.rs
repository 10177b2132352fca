//! Reads objects: one object by its name, or a list that can consist of several pages.

use std::sync::Arc;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Cluster, Response, select};
use crate::events;
use crate::kind::Kind;
use crate::request::{Match, Options, Projection, Request, json_error};
use crate::status::{Failure, FieldError};
use crate::store::Objects;

/// Decodes continue tokens as Go does: trailing bits need not be zero.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

impl Cluster {
    pub(super) fn get(&self, request: &Request, kind: &Kind) -> Result<Response, Failure> {
        self.check_version_of_get(request)?;
        let (_, object) = self.stored(kind, &request.path)?;
        Ok(Response::Json(200, present(kind, request.projection, &object)))
    }

    pub(super) fn list(&self, request: &Request, kind: &Kind) -> Result<Response, Failure> {
        let options = &request.options;
        check_list_options(options)?;
        options.selector.check_fields(kind)?;
        let namespace = request.path.namespace.as_deref();
        // A list of at most one object is read like a single object, so it has no pages.
        let is_single =
            options.selector.name().is_some() && (namespace.is_some() || !kind.is_namespaced);
        let page = options.page.as_deref().map(Page::parse).transpose()?;
        let page = page.filter(|_| !is_single);
        if page.is_some() && !options.version.is_empty() && options.version != "0" {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        // The version 0 permits a list from the cache of the API server, which ignores
        // the limit.
        let is_cached = options.version == "0" && kind.plural != "events";
        let has_pages = options.limit > 0 && !is_cached && !is_single;
        let (version, objects) = self.objects_of_list(options, page.as_ref(), has_pages)?;
        let objects = objects.as_ref().unwrap_or(self.store.objects());

        let start = page.as_ref().map_or("", |page| &page.start);
        let candidates: Vec<_> = select(objects, kind.storage_group(), &kind.plural, namespace)
            .filter(|(key, _)| *key.place >= *start)
            .map(|(key, object)| (key, serve(kind, object)))
            .collect();
        let matching = candidates.iter().enumerate();
        let matching = matching.filter(|(_, (_, object))| options.selector.matches(object));
        let limit = if has_pages { options.limit } else { usize::MAX };
        let found: Vec<_> = matching.take(limit).collect();

        let mut metadata = json!({ "resourceVersion": version.to_string() });
        let last = found.last().filter(|_| found.len() == limit);
        // If candidates remain, there is a next page, even if the selector matches none
        // of them.
        let last = last.filter(|(at, _)| at + 1 < candidates.len());
        let is_last = last.is_none();
        if let Some((_, (key, _))) = last {
            // The next page starts at the smallest place after the last object.
            let next = Page { version: version as i64, start: format!("{}\0", key.place) };
            metadata["continue"] = json!(next.to_token());
            if options.selector.is_empty() {
                metadata["remainingItemCount"] = json!(candidates.len() - found.len());
            }
        }
        // A list of whole custom resources contains the field `continue` even if it is
        // empty.
        if is_last && kind.definition.is_some() && request.projection == Projection::Whole {
            metadata["continue"] = json!("");
        }
        let items = found.iter();
        let items = items.map(|(_, (_, object))| list_item(kind, request.projection, object));
        let items: Vec<_> = items.collect();
        let (api_version, list_kind) = match request.projection {
            Projection::Whole => (kind.api_version(), kind.list_kind()),
            Projection::Metadata => ("meta.k8s.io/v1".into(), "PartialObjectMetadataList".into()),
        };
        let mut list = json!({
            "kind": list_kind,
            "apiVersion": api_version,
            "metadata": metadata,
            "items": items,
        });
        if request.projection == Projection::Metadata && found.is_empty() {
            list["items"] = Value::Null;
        }
        Ok(Response::Json(200, Arc::new(list)))
    }

    /// Returns the version of a list, and its objects. The objects are `None` if the
    /// list contains the current ones.
    fn objects_of_list(
        &self,
        options: &Options,
        page: Option<&Page>,
        has_pages: bool,
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
        let version = options
            .parsed_version()
            .map_err(|error| Failure::bad_request(format!("invalid resource version: {error}")))?;
        self.check_reached(version)?;
        // If the list has a limit but no rule for the version, it must have exactly the
        // given version.
        let is_exact = match &options.version_match {
            Some(rule) => *rule == Match::Exact,
            None => has_pages && version > 0,
        };
        if !is_exact || version == current {
            return Ok((current, None));
        }
        match self.store.at(version) {
            Some(objects) => Ok((version, Some(objects))),
            None => Err(Failure::expired("The resourceVersion for the provided list is too old.")),
        }
    }

    /// Returns an error if the resource version in a read of one object is invalid or in
    /// the future.
    pub(super) fn check_version_of_get(&self, request: &Request) -> Result<(), Failure> {
        let version = request.options.parsed_version();
        let version = version.map_err(|error| match request.path.plural.as_str() {
            // The API server does not read events from a cache, so the error is another
            // one.
            "events" => Failure::bad_request(format!("invalid resource version: {error}")),
            // The error of the cache has no reason.
            _ => Failure::unknown(&error.to_string()),
        })?;
        self.check_reached(version)
    }

    /// Returns an error if the version is in the future.
    pub(super) fn check_reached(&self, version: u64) -> Result<(), Failure> {
        if version > self.store.version() {
            return Err(Failure::version_too_large(version, self.store.version()));
        }
        Ok(())
    }
}

fn check_list_options(options: &Options) -> Result<(), Failure> {
    let mut errors = Vec::new();
    let mut refuse = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
    let rule = "resourceVersionMatch";
    if let Some(found) = &options.version_match {
        if options.version.is_empty() {
            refuse(rule, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if options.page.is_some() {
            refuse(rule, "resourceVersionMatch is forbidden when continue is provided");
        }
        if let Match::Unknown(found) = found {
            let supported = ["Exact".into(), "NotOlderThan".into(), "".into()];
            errors.push(FieldError::not_supported(rule, &found.as_str().into(), &supported));
        }
        let mut refuse = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
        if *found == Match::Exact && options.version == "0" {
            refuse(rule, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if options.send_initial_events.is_some() {
        let why = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden("sendInitialEvents", why));
    }
    if !errors.is_empty() {
        return Err(Failure::invalid_options("ListOptions", &errors));
    }
    Ok(())
}

/// The position at which the next page of a list begins.
struct Page {
    /// The version of the list. If it is -1, the page has the current version.
    version: i64,
    start: String,
}

impl Page {
    fn parse(token: &str) -> Result<Self, Failure> {
        let invalid = |why: &str| {
            let why = format!("invalid continue token: continue key is not valid{why}");
            Failure::bad_request(why)
        };
        let text = LENIENT.decode(token).map_err(|error| {
            let at = match error {
                base64::DecodeError::InvalidByte(at, _) => at,
                _ => token.len() / 4 * 4,
            };
            invalid(&format!(": illegal base64 data at input byte {at}"))
        })?;
        let json: Value = serde_json::from_slice(&text)
            .map_err(|error| invalid(&format!(": {}", json_error(&text, &error))))?;
        let version = json["rv"].as_i64().filter(|version| *version != 0);
        let start = json["start"].as_str().filter(|start| !start.is_empty());
        match (json["v"].as_str().unwrap_or_default(), version, start) {
            ("meta.k8s.io/v1", Some(version), Some(start)) => {
                Ok(Self { version, start: start.into() })
            }
            ("meta.k8s.io/v1", None, _) => {
                Err(invalid(": incorrect encoded start resourceVersion (version meta.k8s.io/v1)"))
            }
            ("meta.k8s.io/v1", ..) => {
                Err(invalid(": encoded start key empty (version meta.k8s.io/v1)"))
            }
            (other, ..) => {
                Err(invalid(&format!(": server does not recognize this encoded version {other}")))
            }
        }
    }

    fn to_token(&self) -> String {
        let json = json!({ "v": "meta.k8s.io/v1", "rv": self.version, "start": self.start });
        BASE64_URL_SAFE_NO_PAD.encode(json.to_string())
    }
}

/// Converts a stored object to the version of the requested kind.
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

/// Converts a stored object to the form in which a response contains it.
pub(super) fn present(kind: &Kind, projection: Projection, object: &Arc<Value>) -> Arc<Value> {
    let object = serve(kind, object);
    match projection {
        Projection::Whole => with_nulls(object, kind),
        Projection::Metadata => Arc::new(metadata_of(&object)),
    }
}

/// Adds the fields that a response contains although they are not set.
fn with_nulls(mut object: Arc<Value>, kind: &Kind) -> Arc<Value> {
    if kind.is_core("events")
        && let Some(fields) = Arc::make_mut(&mut object).as_object_mut()
    {
        for field in ["eventTime", "firstTimestamp", "lastTimestamp"] {
            fields.entry(field).or_insert(Value::Null);
        }
    }
    let is_role = kind.group == "rbac.authorization.k8s.io" && kind.plural.ends_with("roles");
    if is_role && object["rules"].is_null() {
        Arc::make_mut(&mut object)["rules"] = Value::Null;
    }
    object
}

pub(super) fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// Returns an object as an item of a list. Items of built-in kinds contain neither
/// `kind` nor `apiVersion`.
pub(super) fn list_item(kind: &Kind, projection: Projection, object: &Arc<Value>) -> Value {
    if projection == Projection::Metadata {
        return metadata_of(object);
    }
    let mut item = Arc::unwrap_or_clone(with_nulls(Arc::clone(object), kind));
    if let (None, Some(fields)) = (&kind.definition, item.as_object_mut()) {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}
