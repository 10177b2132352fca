//! `--finalizer`: keeps a deleted object until a run for its deletion has succeeded.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{DynamicObject, PartialObjectMeta, Status};
use requeue_kube::controller::Action;
use requeue_kube::finalizer::{Error, finalizer};
use serde_json::json;

use super::access::Access;
use super::resource::Resource;
use crate::duration::exact;

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(30);
/// The number of lost races in a row that counts as a failure.
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

    /// Takes the next step for an object in this state: adds the finalizer, or removes it if the object is being deleted
    /// and its run has succeeded.
    pub(crate) async fn step(&self, object: &[u8]) -> Result<(), String> {
        let object: DynamicObject = serde_json::from_slice(object).map_err(|e| e.to_string())?;
        let metadata = object.metadata.clone();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let api = self.access.api_in(&self.resource, &namespace);
        let step = finalizer(&api, &self.name, Arc::new(object), async |_| {
            Ok::<_, Infallible>(Action::await_change())
        });
        let step = async {
            match step.await {
                Ok(_) => Ok(()),
                Err(Error::AddFinalizer(error) | Error::RemoveFinalizer(error)) => Err(error),
                // Not reached: the object has a name, and the other steps do nothing.
                Err(_) => Ok(()),
            }
        };
        match self.answer("patch", &namespace, step).await? {
            Answer::Done(()) | Answer::Gone => Ok(()),
            Answer::Raced => {
                let name = metadata.name.unwrap_or_default();
                let wanted = metadata.deletion_timestamp.is_none();
                self.write(&namespace, &name, wanted, metadata.uid.as_deref()).await
            }
        }
    }

    /// Removes the finalizer from an object that is no longer seen, if it still exists.
    pub(crate) async fn let_go(&self, key: &[u8]) -> Result<(), String> {
        let key = String::from_utf8_lossy(key);
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        self.write(namespace, name, false, None).await
    }

    /// Adds or removes the finalizer, and retries if others write to the object in the meantime. An object with another
    /// `uid` is another object, and stays unchanged.
    async fn write(
        &self,
        namespace: &str,
        name: &str,
        wanted: bool,
        uid: Option<&str>,
    ) -> Result<(), String> {
        let api: Api<DynamicObject> = self.access.api_in(&self.resource, namespace);
        for _ in 0..MOST_RACES {
            // `watch` requires the right to list, but not the right to get.
            let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
            let list = self.answer("list", namespace, api.list_metadata(&by_name)).await?;
            let Answer::Done(list) = list else { continue };
            let Some(PartialObjectMeta { metadata, .. }) = list.items.into_iter().next() else {
                return Ok(());
            };
            let is_another = uid.is_some() && metadata.uid.as_deref() != uid;
            let is_deleted = metadata.deletion_timestamp.is_some();
            let mut finalizers = metadata.finalizers.unwrap_or_default();
            let has_it = finalizers.contains(&self.name);
            if is_another || has_it == wanted || wanted && is_deleted {
                return Ok(());
            }
            finalizers.retain(|finalizer| *finalizer != self.name);
            if wanted {
                finalizers.push(self.name.clone());
            }
            // The resource version makes the server refuse the patch if the object has changed.
            let patch = json!({ "metadata": {
                "resourceVersion": metadata.resource_version,
                "finalizers": finalizers,
            } });
            let patch = Patch::Merge(patch);
            let patched = self.answer("patch", namespace, merge(&api, name, &patch)).await?;
            if !matches!(patched, Answer::Raced) {
                return Ok(());
            }
        }
        let what = self.resource.name_in(namespace);
        Err(format!("patch {what}: lost {MOST_RACES} races in a row to other writers"))
    }

    async fn answer<T>(
        &self,
        verb: &str,
        namespace: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Answer<T>, String> {
        let what = self.resource.name_in(namespace);
        match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(answer)) => Ok(Answer::Done(answer)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(Answer::Gone),
            Ok(Err(kube::Error::Api(status))) if is_lost_race(&status) => Ok(Answer::Raced),
            Ok(Err(error)) => Err(self.access.server.refusal(verb, &what, &error).message),
            Err(_) => {
                let server = &self.access.server;
                Err(format!("{verb} {what} at {server}: no answer in {}", exact(LIMIT)))
            }
        }
    }
}

enum Answer<T> {
    Done(T),
    /// The object does not exist.
    Gone,
    /// The object has changed since it was seen.
    Raced,
}

/// Returns true if a patch was refused because the object has changed. A failed test of a JSON patch has the same code
/// as an invalid object, and differs only in its message.
fn is_lost_race(status: &Status) -> bool {
    status.code == 409
        || status.code == 422
            && status.message.starts_with("the server rejected our request due to an error in our")
}

async fn merge(
    api: &Api<DynamicObject>,
    name: &str,
    patch: &Patch<serde_json::Value>,
) -> kube::Result<()> {
    api.patch_metadata(name, &PatchParams::default(), patch).await.map(|_| ())
}
