//! Creates objects, and replaces stored objects.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::body::{
    check_body, check_name, check_namespace, check_number, check_type, check_uid, check_version,
};
use super::read::{present, serve};
use super::strategy::{
    encode_string_data, is_new_generation, prepare_for_create, prepare_for_update, to_storage,
};
use super::{Cluster, Response};
use crate::access::Access;
use crate::crd;
use crate::defaults;
use crate::kind::{Kind, Part};
use crate::metadata;
use crate::patch::{self, Ownership};
use crate::request::{FieldValidation, PatchType, Request, Verb};
use crate::schema::{self, Schema};
use crate::status::{Failure, FieldError};
use crate::store::Key;
use crate::validation;

/// The properties of a write that do not depend on the written object.
pub(super) struct Writing<'a> {
    pub(super) now: Timestamp,
    pub(super) kind: &'a Arc<Kind>,
    pub(super) verb: Verb,
    pub(super) part: Part,
    pub(super) dry_run: bool,
    pub(super) ownership: Ownership,
    pub(super) validation: FieldValidation,
}

impl<'a> Writing<'a> {
    pub(super) fn new(now: Timestamp, request: &Request, kind: &'a Arc<Kind>) -> Self {
        let part = match request.path.subresource.as_deref() {
            Some("status") => Part::Status,
            _ => Part::Main,
        };
        let ownership = Ownership {
            manager: request.manager(),
            api_version: kind.api_version(),
            subresource: request.path.subresource.clone(),
            time: metadata::time(now),
            reset: kind.reset_fields(part),
        };
        Self {
            now,
            kind,
            verb: request.verb,
            part,
            dry_run: request.options.dry_run,
            ownership,
            validation: request.options.field_validation,
        }
    }
}

impl Cluster {
    pub(super) fn create(
        &mut self,
        now: Timestamp,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        check_body(request, kind)?;
        let mut object = request.body.clone();
        check_type(&mut object, kind)?;
        let namespace = request.path.namespace.as_deref();
        check_namespace(&mut object, namespace)?;
        let writing = Writing::new(now, request, kind);
        Self::prepare(&mut object, &writing)?;
        let object = self.create_object(&writing, object, None)?;
        Ok(Response::Json(201, present(kind, request.projection, &object)))
    }

    /// Creates an object that was [prepared](Self::prepare). Returns the stored object.
    ///
    /// `managed_fields` contains the managed fields that an apply has computed. It is
    /// `None` for other writes.
    fn create_object(
        &mut self,
        writing: &Writing<'_>,
        mut object: Value,
        managed_fields: Option<Value>,
    ) -> Result<Arc<Value>, Failure> {
        let kind = writing.kind;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let prefix = text(&object["metadata"]["generateName"]);
        let is_named = !text(&object["metadata"]["name"]).is_empty();
        let managed_fields = match managed_fields {
            Some(managed_fields) => managed_fields,
            None => patch::own_update(kind, None, &object, &writing.ownership),
        };
        self.check_namespace_of(kind, &object)?;
        if !is_named && !prefix.is_empty() {
            // The API server cuts the prefix, so that the generated name is a valid label.
            let prefix: String = prefix.chars().take(58).collect();
            let name = format!("{prefix}{}", self.random.name_suffix());
            object["metadata"]["name"] = json!(name);
        }
        let name = text(&object["metadata"]["name"]);
        let version = text(&object["metadata"]["resourceVersion"]);
        let uid = self.new_uid();
        metadata::begin(&mut object, kind, &uid, writing.now);
        defaults::admit(&mut object, kind);
        prepare_for_create(&mut object, kind);
        let mut errors = validation::check(&object, None, kind, writing.part)?;
        if kind.is_definition() {
            errors.extend(crd::complete(&mut object, None, writing.now)?);
        }
        if !errors.is_empty() {
            return Err(Failure::invalid(kind, &name, &errors));
        }
        let has_version = version.parse().is_ok_and(|version: u64| version > 0);
        if writing.verb == Verb::Create && has_version {
            return Err(Failure::unknown(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let key = Key::new(kind.storage_group(), &kind.plural, namespace.as_deref(), &name);
        if let Some(found) = self.store.get(&key) {
            let is_deleted = !found["metadata"]["deletionTimestamp"].is_null();
            return Err(Failure::already_exists(kind, &name, is_deleted));
        }
        metadata::set_managed_fields(&mut object, managed_fields);

        let object = to_storage(object, kind);
        if writing.dry_run {
            return Ok(Arc::new(object));
        }
        let object = self.store.put(key.clone(), object);
        self.after_write(kind, &key, &object);
        Ok(object)
    }

    pub(super) fn update(
        &mut self,
        now: Timestamp,
        access: &Access,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        let writing = Writing::new(now, request, kind);
        let (code, object) = match request.verb {
            Verb::Patch(PatchType::Apply) => self.apply(&writing, access, request)?,
            Verb::Patch(form) => {
                let (key, old) = self.stored(kind, &request.path)?;
                let old = serve(kind, &old);
                let mut new = match form {
                    PatchType::Json => patch::json(&old, &request.body)?,
                    PatchType::Merge => patch::merge(&old, &request.body)?,
                    _ => patch::strategic(&old, &request.body, Schema::of(kind))?,
                };
                check_type(&mut new, kind)?;
                check_namespace(&mut new, request.path.namespace.as_deref())?;
                check_name(&new, request)?;
                Self::prepare(&mut new, &writing)?;
                (200, self.replace(&writing, &key, new, None)?)
            }
            _ => self.put(&writing, access, request)?,
        };
        Ok(Response::Json(code, present(kind, request.projection, &object)))
    }

    fn put(
        &mut self,
        writing: &Writing<'_>,
        access: &Access,
        request: &Request,
    ) -> Result<(u16, Arc<Value>), Failure> {
        let kind = writing.kind;
        check_body(request, kind)?;
        let mut new = request.body.clone();
        check_type(&mut new, kind)?;
        // The object is prepared before the stored object is looked up. An unknown field is
        // therefore the first error.
        Self::prepare(&mut new, writing)?;
        let namespace = request.path.namespace.as_deref();
        check_namespace(&mut new, namespace)?;
        check_name(&new, request)?;
        let key = match self.stored(kind, &request.path) {
            Ok((key, old)) => {
                check_uid(Some(&old), &new, kind, &key, request)?;
                key
            }
            Err(_) if writing.part == Part::Main && kind.allows_create_on_update() => {
                check_may_create(access, request)?;
                let name = request.path.name.as_deref().unwrap_or_default();
                let key = Key::new(kind.storage_group(), &kind.plural, namespace, name);
                check_uid(None, &new, kind, &key, request)?;
                self.check_namespace_of(kind, &new)?;
                check_number(new["metadata"]["resourceVersion"].as_str().unwrap_or_default())?;
                return Ok((201, self.create_object(writing, new, None)?));
            }
            Err(failure) => return Err(failure),
        };
        Ok((200, self.replace(writing, &key, new, None)?))
    }

    fn apply(
        &mut self,
        writing: &Writing<'_>,
        access: &Access,
        request: &Request,
    ) -> Result<(u16, Arc<Value>), Failure> {
        let kind = writing.kind;
        if request.options.manager.as_deref().is_none_or(str::is_empty) {
            let error = FieldError::required("fieldManager", "is required for apply patch");
            return Err(Failure::invalid_options("PatchOptions", &[error]));
        }
        let mut config = request.body.clone();
        for field in ["apiVersion", "kind"] {
            if !config[field].is_string() {
                let why = format!("the applied configuration has no {field}");
                return Err(Failure::bad_request(why));
            }
        }
        check_type(&mut config, kind)?;
        if !config["metadata"]["managedFields"].is_null() {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let force = request.options.force;
        match self.stored(kind, &request.path) {
            Ok((key, old)) => {
                let old = serve(kind, &old);
                let mut applied =
                    patch::apply(kind, Some(&old), &config, &writing.ownership, force)?;
                check_namespace(&mut applied.object, request.path.namespace.as_deref())?;
                check_name(&applied.object, request)?;
                Self::prepare(&mut applied.object, writing)?;
                Ok((
                    200,
                    self.replace(writing, &key, applied.object, Some(applied.managed_fields))?,
                ))
            }
            Err(_) if writing.part == Part::Main => {
                check_may_create(access, request)?;
                let mut applied = patch::apply(kind, None, &config, &writing.ownership, force)?;
                if let Some(uid) = config["metadata"]["uid"].as_str().filter(|it| !it.is_empty()) {
                    let name = request.path.name.as_deref().unwrap_or_default();
                    let why = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing \
                         object was found",
                    );
                    return Err(Failure::conflict(kind, name, &why));
                }
                check_namespace(&mut applied.object, request.path.namespace.as_deref())?;
                check_name(&applied.object, request)?;
                Self::prepare(&mut applied.object, writing)?;
                let object =
                    self.create_object(writing, applied.object, Some(applied.managed_fields))?;
                Ok((201, object))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Replaces a stored object. Returns the new stored object.
    ///
    /// `new` must be [prepared](Self::prepare). `managed_fields` contains the managed
    /// fields that an apply has computed, in the version of the request.
    pub(super) fn replace(
        &mut self,
        writing: &Writing<'_>,
        key: &Key,
        mut new: Value,
        managed_fields: Option<Value>,
    ) -> Result<Arc<Value>, Failure> {
        let kind = writing.kind;
        let Some(stored) = self.store.get(key).cloned() else {
            return Err(Failure::not_found(kind, key.name()));
        };
        let old = serve(kind, &stored);
        let managed_fields = match managed_fields {
            Some(managed_fields) => managed_fields,
            None => patch::own_update(kind, Some(&old), &new, &writing.ownership),
        };
        defaults::admit(&mut new, kind);
        check_version(&old, &new, kind, key.name())?;
        prepare_for_update(&mut new, &old, kind, writing.part);
        metadata::keep(&mut new, &old);
        let mut errors = validation::check(&new, Some(&old), kind, writing.part)?;
        if kind.is_definition() {
            errors.extend(crd::complete(&mut new, Some(&old), writing.now)?);
        }
        if !errors.is_empty() {
            return Err(Failure::invalid(kind, key.name(), &errors));
        }
        metadata::set_managed_fields(&mut new, managed_fields);
        if writing.part == Part::Main && is_new_generation(&old, &new, kind) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            new["metadata"]["generation"] = json!(generation + 1);
        }
        let new = to_storage(new, kind);
        if patch::is_unchanged(&stored, &new) {
            return Ok(stored);
        }
        if writing.dry_run {
            return Ok(Arc::new(new));
        }
        if metadata::is_ready_to_go(&new) {
            self.remove_object(key);
            return Ok(Arc::new(new));
        }
        let object = self.store.put(key.clone(), new);
        self.after_write(kind, key, &object);
        Ok(object)
    }

    /// Decodes an object as the server does when it reads a body: sets defaults, and
    /// removes unknown fields.
    pub(super) fn prepare(object: &mut Value, writing: &Writing<'_>) -> Result<(), Failure> {
        let kind = writing.kind;
        if kind.is_core("secrets") {
            encode_string_data(object);
        }
        let unknown = match &kind.definition {
            Some(definition) => crd::prune_and_default(definition, object, &kind.version),
            None => {
                let unknown = schema::remove_unknown_fields(object, kind);
                defaults::set(object, kind);
                unknown
            }
        };
        schema::omit_empty(object, kind);
        if writing.validation == FieldValidation::Strict && !unknown.is_empty() {
            let unknown: Vec<_> =
                unknown.iter().map(|field| format!("unknown field \"{field}\"")).collect();
            let why = format!("strict decoding error: {}", unknown.join(", "));
            if let Verb::Patch(_) = writing.verb {
                return Err(Failure::invalid_patch(object, &why));
            }
            return Err(Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: {why}",
                kind.kind, kind.version, kind.kind,
            )));
        }
        Ok(())
    }

    /// Returns an error if the namespace of the object does not exist or is being deleted.
    fn check_namespace_of(&self, kind: &Kind, object: &Value) -> Result<(), Failure> {
        let text = |field: &str| object["metadata"][field].as_str().filter(|it| !it.is_empty());
        let Some(namespace) = text("namespace") else { return Ok(()) };
        let name = text("name").or(text("generateName")).unwrap_or("Unknown");
        match self.store.get(&Key::new("", "namespaces", None, namespace)) {
            None => {
                let namespaces = &self.kinds[&("".into(), "v1".into(), "namespaces".into())];
                Err(Failure::not_found(namespaces, namespace))
            }
            Some(found) if !found["metadata"]["deletionTimestamp"].is_null() => {
                Err(Failure::terminating(kind, name, namespace))
            }
            Some(_) => Ok(()),
        }
    }

    /// Updates the state that depends on a written object: adds the kinds of a definition,
    /// and marks possible garbage.
    pub(super) fn after_write(&mut self, kind: &Kind, key: &Key, object: &Arc<Value>) {
        if kind.is_definition() {
            self.add_definition(object);
        }
        let meta = &object["metadata"];
        if !meta["ownerReferences"].is_null() || !meta["deletionTimestamp"].is_null() {
            self.has_garbage = true;
        }
        debug_assert_eq!(meta["name"], *key.name());
    }
}

/// Returns an error if the user may not create the object. A write that creates an object
/// needs this permission, too.
fn check_may_create(access: &Access, request: &Request) -> Result<(), Failure> {
    match access.refusal(Verb::Create, request) {
        None => Ok(()),
        Some(why) => Err(Failure::denied(request.resource(), &why)),
    }
}
