//! Deletes objects, with preconditions, finalizers and grace periods.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{list_item, present, serve};
use super::{Cluster, Response, select};
use crate::kind::Kind;
use crate::metadata;
use crate::request::{Propagation, Request};
use crate::status::Failure;
use crate::store::Key;

/// The finalizer that keeps an object until its dependents are deleted.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer that keeps an object until its dependents no longer refer to it.
pub(super) const ORPHAN: &str = "orphan";

/// The namespaces that the API server refuses to delete.
const PERMANENT_NAMESPACES: [&str; 3] = ["default", "kube-public", "kube-system"];

/// The options of a deletion: the preconditions, the grace period and the treatment of
/// dependents.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletion {
    uid: Option<String>,
    version: Option<String>,
    grace_seconds: Option<i64>,
    propagation: Option<Propagation>,
    dry_run: bool,
}

/// The result of a deletion.
pub(super) enum Deleted {
    /// The object was removed. Contains its last state.
    Gone(Arc<Value>),
    /// The deletion has begun, but finalizers or a grace period keep the object.
    /// Contains its new state.
    Waits(Arc<Value>),
}

impl Deletion {
    /// Returns the options of a deletion without preconditions.
    pub(super) fn with(propagation: Propagation) -> Self {
        Self { propagation: Some(propagation), ..Self::default() }
    }

    /// Reads the options of a deletion from a request. Options in the body take
    /// precedence over those in the query.
    fn parse(request: &Request) -> Result<Self, Failure> {
        let (options, body) = (&request.options, &request.body);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut deletion = Self {
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            // Like the API server, this code replaces a negative grace period with one
            // second.
            grace_seconds: body["gracePeriodSeconds"]
                .as_i64()
                .or(options.grace_seconds)
                .map(|seconds| if seconds < 0 { 1 } else { seconds }),
            propagation: options.propagation,
            dry_run: options.dry_run,
        };
        if let Some(policy) = body["propagationPolicy"].as_str() {
            deletion.propagation = Some(Propagation::parse(policy)?);
        } else if let Some(orphans) = body["orphanDependents"].as_bool() {
            let policy = if orphans { Propagation::Orphan } else { Propagation::Background };
            deletion.propagation = Some(policy);
        }
        match body["dryRun"].as_array().map(Vec::as_slice) {
            None | Some([]) => {}
            Some([all]) if all == "All" => deletion.dry_run = true,
            Some(other) => {
                return Err(Failure::bad_request(format!("unknown dryRun: {other:?}")));
            }
        }
        Ok(deletion)
    }
}

impl Cluster {
    pub(super) fn delete(
        &mut self,
        now: Timestamp,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        let deletion = Deletion::parse(request)?;
        let (key, _) = self.stored(kind, &request.path)?;
        if kind.is_core("namespaces") && PERMANENT_NAMESPACES.contains(&key.name()) {
            return Err(Failure::forbidden(kind, key.name(), "this namespace may not be deleted"));
        }
        let deleted = self.delete_object(now, kind, &key, &deletion)?;
        let object = match &deleted {
            Deleted::Gone(object) if !kind.returns_deleted_object() => {
                return Ok(Response::Json(200, Arc::new(success(kind, object))));
            }
            Deleted::Gone(object) | Deleted::Waits(object) => object,
        };
        Ok(Response::Json(200, present(kind, request.projection, object)))
    }

    pub(super) fn delete_collection(
        &mut self,
        now: Timestamp,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        let deletion = Deletion::parse(request)?;
        let options = &request.options;
        options.selector.check_fields(kind)?;
        let namespace = request.path.namespace.as_deref();
        // The response contains the objects in the state before their deletion.
        let version = self.store.version();
        let found: Vec<_> =
            select(self.store.objects(), kind.storage_group(), &kind.plural, namespace)
                .map(|(key, object)| (key.clone(), serve(kind, object)))
                .filter(|(_, object)| options.selector.matches(object))
                .collect();
        for (key, _) in &found {
            self.delete_object(now, kind, key, &deletion)?;
        }
        let items = found.iter().map(|(_, object)| list_item(kind, request.projection, object));
        let mut list = json!({
            "kind": kind.list_kind(),
            "apiVersion": kind.api_version(),
            "metadata": { "resourceVersion": version.to_string() },
            "items": items.collect::<Vec<_>>(),
        });
        if kind.definition.is_some() {
            list["metadata"]["continue"] = json!("");
        }
        Ok(Response::Json(200, Arc::new(list)))
    }

    pub(super) fn delete_object(
        &mut self,
        now: Timestamp,
        kind: &Kind,
        key: &Key,
        deletion: &Deletion,
    ) -> Result<Deleted, Failure> {
        let Some(old) = self.store.get(key).cloned() else {
            return Err(Failure::not_found(kind, key.name()));
        };
        check_preconditions(&old, deletion, kind, key.name())?;
        let is_held_namespace = kind.is_core("namespaces")
            && !old["metadata"]["deletionTimestamp"].is_null()
            && old["spec"]["finalizers"].as_array().is_some_and(|it| !it.is_empty());
        if is_held_namespace {
            return Ok(Deleted::Waits(old));
        }
        let mut new = Value::clone(&old);
        let pending = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        if pending > 0 && deletion.grace_seconds.is_none_or(|seconds| seconds >= pending) {
            // A later deletion can shorten the grace period, but cannot extend it.
            return Ok(Deleted::Waits(old));
        }
        let finalizers = finalizers_of_deletion(&old["metadata"]["finalizers"], kind, deletion);
        let meta = &mut new["metadata"];
        if let Some(fields) = meta.as_object_mut() {
            if finalizers.is_empty() {
                fields.remove("finalizers");
            } else {
                fields.insert("finalizers".into(), json!(finalizers));
            }
        }
        let is_first = meta["deletionTimestamp"].is_null();
        if is_first {
            // The API server increases the generation, because a deletion changes the
            // desired state.
            if let Some(generation) = meta["generation"].as_i64() {
                meta["generation"] = json!(generation + 1);
            }
        }
        if is_first || pending > 0 {
            let (grace, start) = if is_first {
                (grace_seconds(&old, kind, deletion), now)
            } else {
                let end = meta["deletionTimestamp"].as_str().and_then(|end| end.parse().ok());
                let end: Timestamp = end.unwrap_or(now);
                let start = end.saturating_sub(Duration::from_secs(pending.unsigned_abs()));
                (deletion.grace_seconds.unwrap_or(0), start.unwrap_or(now))
            };
            let end = start.saturating_add(Duration::from_secs(grace.unsigned_abs()));
            meta["deletionTimestamp"] = json!(metadata::time(end.unwrap_or(now)));
            if !kind.is_core("namespaces") {
                meta["deletionGracePeriodSeconds"] = json!(grace);
            }
        }
        if kind.is_core("namespaces") {
            if !is_first {
                meta["deletionGracePeriodSeconds"] = json!(0);
            }
            new["status"]["phase"] = json!("Terminating");
        }
        if metadata::is_ready_to_go(&new) {
            // The server first stores the pod with its deletion time, because a kubelet
            // must see that change. It then removes the pod.
            let is_graceful = kind.is_core("pods") && is_first;
            if deletion.dry_run {
                return Ok(Deleted::Gone(if is_graceful { Arc::new(new) } else { old }));
            }
            if is_graceful {
                self.store.put(key.clone(), new);
            }
            return Ok(Deleted::Gone(self.remove_object(key).unwrap_or(old)));
        }
        if deletion.dry_run {
            return Ok(Deleted::Waits(Arc::new(new)));
        }
        if new == *old {
            return Ok(Deleted::Waits(old));
        }
        self.has_garbage = true;
        Ok(Deleted::Waits(self.store.put(key.clone(), new)))
    }

    /// Removes an object from the store. If its kind is a definition, also removes the
    /// kinds that it defines.
    pub(super) fn remove_object(&mut self, key: &Key) -> Option<Arc<Value>> {
        let last = self.store.remove(key)?;
        self.has_garbage = true;
        if key.group == "apiextensions.k8s.io" {
            self.remove_definition(&last);
        }
        Some(last)
    }
}

fn check_preconditions(
    old: &Value,
    deletion: &Deletion,
    kind: &Kind,
    name: &str,
) -> Result<(), Failure> {
    let meta = &old["metadata"];
    let preconditions = [
        ("UID", "uid", &deletion.uid, "deleted and then recreated"),
        ("ResourceVersion", "resourceVersion", &deletion.version, "modified"),
    ];
    for (what, field, sent, cause) in preconditions {
        if let Some(sent) = sent
            && meta[field] != **sent
        {
            let found = meta[field].as_str().unwrap_or_default();
            if kind.is_core("namespaces") {
                let why = format!(
                    "Precondition failed: {what} in precondition: {sent}, {what} in object meta: \
                     {found}"
                );
                return Err(Failure::conflict(kind, name, &why));
            }
            let why = format!(
                "the {what} in the precondition ({sent}) does not match the {what} in record \
                 ({found}). The object might have been {cause}"
            );
            return Err(Failure::deletion_conflict(kind, name, &why));
        }
    }
    Ok(())
}

/// Returns the grace period of a deletion in seconds. It is 0 unless the object is a
/// pod that runs on a node.
fn grace_seconds(object: &Value, kind: &Kind, deletion: &Deletion) -> i64 {
    if !kind.is_core("pods") {
        return 0;
    }
    let is_scheduled = object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let has_stopped =
        object["status"]["phase"] == "Succeeded" || object["status"]["phase"] == "Failed";
    if !is_scheduled || has_stopped {
        return 0;
    }
    let default = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    deletion.grace_seconds.unwrap_or(default).max(0)
}

fn finalizers_of_deletion(before: &Value, kind: &Kind, deletion: &Deletion) -> Vec<Value> {
    let before = before.as_array().map(Vec::as_slice).unwrap_or_default();
    if kind.is_core("events") || kind.is_new_event() {
        // The garbage collector ignores events, so their finalizers do not change.
        return before.to_vec();
    }
    let has = |finalizer: &str| before.iter().any(|it| it == finalizer);
    // If the deletion has no policy, the existing finalizers of the object determine
    // the policy.
    let policy = deletion.propagation.unwrap_or(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else if kind.orphans_by_default() {
        Propagation::Orphan
    } else {
        Propagation::Background
    });
    let mut finalizers: Vec<_> =
        before.iter().filter(|it| **it != *ORPHAN && **it != *FOREGROUND).cloned().collect();
    match policy {
        Propagation::Background => {}
        Propagation::Foreground => finalizers.push(json!(FOREGROUND)),
        Propagation::Orphan => finalizers.push(json!(ORPHAN)),
    }
    finalizers
}

fn success(kind: &Kind, object: &Value) -> Value {
    let meta = &object["metadata"];
    let mut details = json!({ "name": meta["name"], "kind": kind.plural, "uid": meta["uid"] });
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    })
}
