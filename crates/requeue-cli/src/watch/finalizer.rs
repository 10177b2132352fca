//! `--finalizer`: makes the server keep a deleted object until a run for its deletion has succeeded.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::json;

use super::access::Access;
use super::resource::Resource;
use crate::duration::format_exact;

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(30);
/// A write fails after this many conflicts in a row.
const MOST_RACES: usize = 10;

/// Adds a finalizer to objects of a resource, and removes it.
#[derive(Debug)]
pub(crate) struct Finalizer {
    name: String,
    access: Arc<Access>,
    resource: Resource,
}

impl Finalizer {
    pub(crate) fn new(name: String, access: &Arc<Access>, resource: &Resource) -> Self {
        Self { name, access: Arc::clone(access), resource: resource.clone() }
    }

    /// Adds the finalizer to an object. If the object is being deleted, removes the finalizer instead. The caller must
    /// then have run the command for the deletion.
    pub(crate) async fn write_next(&self, object: &[u8]) -> Result<(), String> {
        let object: DynamicObject = serde_json::from_slice(object).map_err(|e| e.to_string())?;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let name = object.metadata.name.clone().unwrap_or_default();
        let wanted = object.metadata.deletion_timestamp.is_none();
        self.write_finalizer(&namespace, &name, wanted, Some(object.metadata)).await
    }

    /// Removes the finalizer from an object that the selector no longer matches, if the object still exists.
    pub(crate) async fn let_go(&self, key: &[u8]) -> Result<(), String> {
        let key = String::from_utf8_lossy(key);
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        self.write_finalizer(namespace, name, false, None).await
    }

    /// Adds or removes the finalizer. If another writer changes the object at the same time, tries again. If the
    /// object has another uid than `seen`, it is another object, and is not changed.
    async fn write_finalizer(
        &self,
        namespace: &str,
        name: &str,
        wanted: bool,
        mut seen: Option<ObjectMeta>,
    ) -> Result<(), String> {
        let api: Api<DynamicObject> = self.access.api_in(&self.resource, namespace);
        let uid = seen.as_ref().and_then(|seen| seen.uid.clone());
        for _ in 0..MOST_RACES {
            let metadata = match seen.take() {
                Some(seen) => seen,
                None => {
                    // The object is read through a list with its name. `requeue watch` requires the right to list, but
                    // not the right to get.
                    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
                    let list =
                        self.answer_of("list", namespace, api.list_metadata(&by_name)).await?;
                    let Answer::Done(list) = list else { continue };
                    let Some(found) = list.items.into_iter().next() else { return Ok(()) };
                    found.metadata
                }
            };
            let is_another = uid.is_some() && metadata.uid != uid;
            let is_deleted = metadata.deletion_timestamp.is_some();
            let mut finalizers = metadata.finalizers.unwrap_or_default();
            let has_it = finalizers.contains(&self.name);
            // The server does not permit a new finalizer on an object that is being deleted.
            if is_another || has_it == wanted || wanted && is_deleted {
                return Ok(());
            }
            // A merge patch replaces the whole list. The patch therefore also contains the finalizers of other
            // programs.
            finalizers.retain(|finalizer| *finalizer != self.name);
            if wanted {
                finalizers.push(self.name.clone());
            }
            // With the resource version, the server refuses the patch if the object has changed meanwhile.
            let patch = json!({ "metadata": {
                "resourceVersion": metadata.resource_version,
                "finalizers": finalizers,
            } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let patched = api.patch_metadata(name, &params, &patch);
            let patched = self.answer_of("patch", namespace, patched).await?;
            if !matches!(patched, Answer::Raced) {
                return Ok(());
            }
        }
        let what = self.resource.name_in(namespace);
        Err(format!("patch {what}: lost {MOST_RACES} races in a row to other writers"))
    }

    async fn answer_of<T>(
        &self,
        verb: &str,
        namespace: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Answer<T>, String> {
        let what = self.resource.name_in(namespace);
        match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(answer)) => Ok(Answer::Done(answer)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(Answer::Gone),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(Answer::Raced),
            Ok(Err(error)) => Err(self.access.server.refusal(verb, &what, &error).message),
            Err(_) => {
                let server = &self.access.server;
                Err(format!("{verb} {what} at {server}: no answer in {}", format_exact(LIMIT)))
            }
        }
    }
}

enum Answer<T> {
    Done(T),
    /// The object does not exist.
    Gone,
    /// Another writer has changed the object since it was read.
    Raced,
}
