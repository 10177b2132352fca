//! Creates and changes objects.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{present, serve};
use super::{Cluster, Response};
use crate::access::Access;
use crate::crd;
use crate::defaults;
use crate::events;
use crate::kind::Kind;
use crate::metadata;
use crate::patch::{self, Ownership, Part};
use crate::request::{FieldValidation, PatchType, Request, Verb};
use crate::schema::{self, Schema};
use crate::status::{Failure, FieldError};
use crate::store::Key;

/// The circumstances of a write.
pub(super) struct Writing<'a> {
    pub(super) now: Timestamp,
    pub(super) kind: &'a Arc<Kind>,
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
            part: (kind.has_subresource("status") || part == Part::Status).then_some(part),
        };
        Self {
            now,
            kind,
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
        let object = self.create_object(&writing, object, None)?;
        Ok(Response::Json(201, present(kind, request.projection, &object)))
    }

    /// Creates an object, which is in the version of the kind. Returns it as it is stored.
    ///
    /// `managed_fields` is `None` unless an apply has computed them.
    fn create_object(
        &mut self,
        writing: &Writing<'_>,
        mut object: Value,
        managed_fields: Option<Value>,
    ) -> Result<Arc<Value>, Failure> {
        let kind = writing.kind;
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let meta = &object["metadata"];
        if meta["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            return Err(Failure::unknown(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let is_named = meta["name"].as_str().is_some_and(|name| !name.is_empty());
        if !is_named && let Some(prefix) = meta["generateName"].as_str().filter(|it| !it.is_empty())
        {
            // The API server shortens the prefix, so that the name is a valid label.
            let prefix: String = prefix.chars().take(58).collect();
            let name = format!("{prefix}{}", self.random.name_suffix());
            object["metadata"]["name"] = json!(name);
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if name.is_empty() {
            let error = FieldError::required("metadata.name", "name or generateName is required");
            return Err(Failure::invalid(kind, "", &[error]));
        }
        if let Some(namespace) = &namespace {
            self.check_open_namespace(kind, &name, namespace)?;
        }
        let key = Key::new(kind.storage_group(), &kind.plural, namespace.as_deref(), &name);
        if self.store.get(&key).is_some() {
            return Err(Failure::already_exists(kind, &name));
        }

        let uid = self.new_uid();
        metadata::begin(&mut object, kind, &uid, writing.now);
        // A kubelet registers its Node together with the status.
        let keeps_status = kind.is_definition() || kind.is_core("nodes");
        if kind.has_subresource("status") && !keeps_status {
            remove(&mut object, "status");
        }
        complete(&mut object, kind);
        let unknown = self.prepare(&mut object, None, writing)?;
        metadata::check(&object, None, kind)?;
        let managed_fields = match managed_fields {
            Some(managed_fields) => managed_fields,
            None if kind.is_core("namespaces") => {
                // The server adds the finalizer itself.
                let mut sent = object.clone();
                remove(&mut sent, "spec");
                patch::own_update(kind, None, &sent, &writing.ownership)
            }
            None => patch::own_update(kind, None, &object, &writing.ownership),
        };
        metadata::set_managed_fields(&mut object, managed_fields);
        debug_assert!(unknown.is_empty() || writing.validation != FieldValidation::Strict);

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
                let new = match form {
                    PatchType::Json => patch::json(&old, &request.body)?,
                    PatchType::Merge => patch::merge(&old, &request.body)?,
                    _ => patch::strategic(&old, &request.body, Schema::of(kind))?,
                };
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
        let namespace = request.path.namespace.as_deref();
        check_namespace(&mut new, namespace)?;
        check_name(&new, request)?;
        let key = match self.stored(kind, &request.path) {
            Ok((key, old)) => {
                check_uid(&old, &new, kind, &key)?;
                key
            }
            Err(_) if writing.part == Part::Main && kind.allows_create_on_update() => {
                check_may_create(access, request)?;
                return Ok((201, self.create_object(writing, new, None)?));
            }
            Err(failure) => return Err(failure),
        };
        let has_version =
            new["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty());
        if !has_version && !kind.allows_unconditional_update() {
            let error = FieldError::invalid(
                "metadata.resourceVersion",
                &json!(0),
                "must be specified for an update",
            );
            return Err(Failure::invalid(kind, key.name(), &[error]));
        }
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
        check_namespace(&mut config, request.path.namespace.as_deref())?;
        check_name(&config, request)?;
        if !config["metadata"]["managedFields"].is_null() {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        let force = request.options.force;
        match self.stored(kind, &request.path) {
            Ok((key, old)) => {
                let old = serve(kind, &old);
                let applied = patch::apply(kind, Some(&old), &config, &writing.ownership, force)?;
                Ok((
                    200,
                    self.replace(writing, &key, applied.object, Some(applied.managed_fields))?,
                ))
            }
            Err(_) if writing.part == Part::Main => {
                check_may_create(access, request)?;
                if !config["metadata"]["uid"].is_null() {
                    let name = request.path.name.as_deref().unwrap_or_default();
                    let why = format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        config["metadata"]["uid"].as_str().unwrap_or_default(),
                    );
                    return Err(Failure::conflict(kind, name, &why));
                }
                config["metadata"]["name"] = json!(request.path.name);
                let applied = patch::apply(kind, None, &config, &writing.ownership, force)?;
                let object =
                    self.create_object(writing, applied.object, Some(applied.managed_fields))?;
                Ok((201, object))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Replaces a stored object. Returns it as it is stored.
    ///
    /// `new` is in the version of the kind, and so is `managed_fields`, which an apply has computed.
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
        check_type(&mut new, kind)?;
        check_namespace(&mut new, key.namespace())?;
        check_version(&old, &new, kind, key.name())?;
        if writing.part == Part::Status {
            let status = new["status"].take();
            let sent = new["metadata"]["managedFields"].take();
            new = Value::clone(&old);
            new["metadata"]["managedFields"] = sent;
            set_or_remove(&mut new, "status", status);
        } else if kind.has_subresource("status") {
            set_or_remove(&mut new, "status", old["status"].clone());
        }
        if kind.is_core("namespaces") {
            // Only the subresource `finalize` changes the finalizers in the spec.
            set_or_remove(&mut new, "spec", old["spec"].clone());
        }
        metadata::keep(&mut new, &old, kind)?;
        self.prepare(&mut new, Some(&old), writing)?;
        metadata::check(&new, Some(&old), kind)?;
        let managed_fields = match managed_fields {
            Some(managed_fields) => managed_fields,
            None => patch::own_update(kind, Some(&old), &new, &writing.ownership),
        };
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

    /// Brings an object into the form of its kind, and checks it. Returns the fields that the kind does not have.
    fn prepare(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        writing: &Writing<'_>,
    ) -> Result<Vec<String>, Failure> {
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
            return Err(Failure::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
                kind.kind,
                kind.version,
                kind.kind,
                unknown.join(", ")
            )));
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let errors = match &kind.definition {
            Some(definition) => crd::check(definition, object, old, &kind.version)?,
            None if kind.is_definition() => crd::complete(object, old, writing.now)?,
            None => Vec::new(),
        };
        if errors.is_empty() { Ok(unknown) } else { Err(Failure::invalid(kind, &name, &errors)) }
    }

    /// Refuses a namespace that does not exist, or is being deleted.
    fn check_open_namespace(
        &self,
        kind: &Kind,
        name: &str,
        namespace: &str,
    ) -> Result<(), Failure> {
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

    /// Follows a write: a definition adds its kinds, and an owner may be gone.
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

/// A write that creates the object needs that permission, too.
fn check_may_create(access: &Access, request: &Request) -> Result<(), Failure> {
    match access.refusal(Verb::Create, request) {
        None => Ok(()),
        Some(why) => Err(Failure::denied(request.resource(), &why)),
    }
}

/// Completes a Namespace, as the API server does when it creates one.
pub(super) fn complete_namespace(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].clone();
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    namespace["spec"]["finalizers"] = json!(["kubernetes"]);
    namespace["status"] = json!({ "phase": "Active" });
}

/// Sets the few fields without which clients of these kinds do not work.
fn complete(object: &mut Value, kind: &Kind) {
    if !kind.group.is_empty() {
        return;
    }
    match &*kind.plural {
        "namespaces" => complete_namespace(object),
        "pods" => {
            let quality = defaults::quality_of_service(object);
            object["status"] = json!({ "phase": "Pending", "qosClass": quality });
        }
        "persistentvolumeclaims" | "persistentvolumes" => {
            object["status"] = json!({ "phase": "Pending" });
        }
        _ => {}
    }
}

/// Moves `stringData` of a Secret to `data`.
fn encode_string_data(secret: &mut Value) {
    use base64::Engine;
    let Some(Value::Object(texts)) = secret.as_object_mut().and_then(|it| it.remove("stringData"))
    else {
        return;
    };
    for (name, text) in texts {
        let text = text.as_str().unwrap_or_default();
        secret["data"][name] = json!(base64::prelude::BASE64_STANDARD.encode(text));
    }
}

/// Checks the kind in the body. A body may leave it out.
fn check_type(object: &mut Value, kind: &Kind) -> Result<(), Failure> {
    if !object.is_object() {
        return Err(Failure::bad_request("the body of the request is not a JSON object"));
    }
    let expected_version = kind.api_version();
    for (field, expected) in [("apiVersion", &expected_version), ("kind", &kind.kind)] {
        if object[field].as_str().is_none_or(str::is_empty) {
            object[field] = json!(expected);
        }
    }
    let found_version = object["apiVersion"].as_str().unwrap_or_default();
    let found_kind = object["kind"].as_str().unwrap_or_default();
    if found_version != expected_version || found_kind != kind.kind {
        return Err(wrong_type(kind, found_version, found_kind));
    }
    match &object["metadata"] {
        Value::Null => object["metadata"] = json!({}),
        Value::Object(_) => {}
        _ => return Err(Failure::bad_request("the metadata of the object is not a JSON object")),
    }
    match schema::find_wrong_type(object, kind) {
        None => Ok(()),
        Some((path, expected)) => Err(Failure::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: the field {path} must be of type \
             {expected}",
            kind.kind, kind.version, kind.kind
        ))),
    }
}

/// The body is an object of another kind.
fn wrong_type(kind: &Kind, found_version: &str, found_kind: &str) -> Failure {
    let expected_version = kind.api_version();
    if kind.definition.is_some() {
        if found_version != expected_version {
            return Failure::bad_request(format!(
                "the API version in the data ({found_version}) does not match the expected API \
                 version ({expected_version})"
            ));
        }
        let why = format!("must be {}", kind.kind);
        let error = FieldError::invalid("kind", &json!(found_kind), &why);
        return Failure::invalid(kind, "", &[error]);
    }
    let why = if (found_version, found_kind) == ("v1", "Status") {
        let group = kind.group.split('.').next().filter(|group| !group.is_empty());
        let group = if kind.is_new_event() { None } else { group };
        let expected = format!("{}.{}", group.unwrap_or("core"), kind.kind);
        format!("converting (v1.Status) to ({expected}): unknown conversion")
    } else {
        format!(
            "no kind \"{found_kind}\" is registered for version \"{found_version}\" in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    let version = found_version.rsplit('/').next().unwrap_or_default();
    let expected = &kind.kind;
    Failure::bad_request(format!(
        "{found_kind} in version \"{version}\" cannot be handled as a {expected}: {why}"
    ))
}

/// Refuses a body that is no object.
fn check_body(request: &Request, kind: &Kind) -> Result<(), Failure> {
    match &request.unread {
        None => Ok(()),
        Some(why) => Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {why}",
            kind.kind
        ))),
    }
}

fn check_namespace(object: &mut Value, namespace: Option<&str>) -> Result<(), Failure> {
    let found = object["metadata"]["namespace"].as_str().unwrap_or_default();
    match namespace {
        Some(namespace) if found.is_empty() => {
            object["metadata"]["namespace"] = json!(namespace);
            Ok(())
        }
        namespace if namespace.unwrap_or_default() != found => Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
        _ => {
            if namespace.is_none() {
                remove(&mut object["metadata"], "namespace");
            }
            Ok(())
        }
    }
}

pub(super) fn check_name(object: &Value, request: &Request) -> Result<(), Failure> {
    let name = request.path.name.as_deref().unwrap_or_default();
    match object["metadata"]["name"].as_str() {
        Some(found) if found != name => Err(Failure::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        ))),
        None if request.verb == Verb::Update => Err(Failure::bad_request(format!(
            "the name of the object () does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

/// Compares the uid that a PUT names with that of the stored object.
fn check_uid(old: &Value, new: &Value, kind: &Kind, key: &Key) -> Result<(), Failure> {
    let text = |value: &Value| value["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (sent, found) = (text(new), text(old));
    if sent.is_empty() || sent == found {
        return Ok(());
    }
    let group = kind.definition.as_ref().map(|_| format!("{}/", kind.group)).unwrap_or_default();
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {sent}, UID in object meta: \
         {found}",
        key.plural, key.place,
    );
    Err(Failure::conflict(kind, key.name(), &why))
}

/// Compares the version that a write names with that of the stored object.
fn check_version(old: &Value, new: &Value, kind: &Kind, name: &str) -> Result<(), Failure> {
    let version = &new["metadata"]["resourceVersion"];
    let is_set = version.as_str().is_some_and(|version| !version.is_empty());
    if is_set && old["metadata"]["resourceVersion"] != *version {
        return Err(Failure::modified(kind, name));
    }
    Ok(())
}

/// Returns whether a write changes what the generation counts.
fn is_new_generation(old: &Value, new: &Value, kind: &Kind) -> bool {
    if !kind.has_generation() {
        return false;
    }
    if kind.definition.is_none() {
        // A Deployment copies its annotations to its ReplicaSets.
        let counts_annotations = kind.plural == "deployments"
            && old["metadata"]["annotations"] != new["metadata"]["annotations"];
        let is_spec = kind.plural != "endpointslices" && kind.plural != "podtemplates";
        if is_spec {
            return old["spec"] != new["spec"] || counts_annotations;
        }
    }
    let counted = |object: &Value| {
        let mut object = object.clone();
        remove(&mut object, "metadata");
        if kind.has_subresource("status") {
            remove(&mut object, "status");
        }
        object
    };
    counted(old) != counted(new)
}

/// Returns an object in the version in which it is stored.
fn to_storage(mut object: Value, kind: &Kind) -> Value {
    if kind.is_new_event() {
        return events::to_core(&object);
    }
    if let Some(definition) = &kind.definition {
        object["apiVersion"] = json!(format!("{}/{}", kind.group, definition.storage_version()));
    }
    object
}

fn set_or_remove(object: &mut Value, field: &str, value: Value) {
    if value.is_null() {
        remove(object, field);
    } else {
        object[field] = value;
    }
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}
