//! `--finalizer`: keeps an object from being gone before a run for its end has succeeded.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use requeue_kube::controller::Action;
use requeue_kube::finalizer::Error;
use serde_json::json;

use super::access::{Access, refusal};
use super::resource::Resource;

/// How long the server has to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// Puts a finalizer on objects of a resource, and takes it off.
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

    /// Does the next step for an object that was seen like this: puts the finalizer on, or takes
    /// it off where it is being deleted and all has been done for that.
    pub(crate) async fn step(&self, object: &[u8]) -> Result<(), String> {
        let object: DynamicObject = serde_json::from_slice(object).map_err(|e| e.to_string())?;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let api = self.access.api_in(&self.resource, &namespace);
        let step = requeue_kube::finalizer(&api, &self.name, Arc::new(object), async |_| {
            Ok::<_, Infallible>(Action::await_change())
        });
        let step = async {
            match step.await {
                Ok(_) => Ok(()),
                Err(Error::AddFinalizer(error) | Error::RemoveFinalizer(error)) => Err(error),
                // It has a name, and the other steps do nothing.
                Err(_) => Ok(()),
            }
        };
        self.answer("patch", &namespace, step).await.map(|_| ())
    }

    /// Takes it off an object that is no longer seen, if there is such an object.
    pub(crate) async fn let_go(&self, key: &[u8]) -> Result<(), String> {
        let key = String::from_utf8_lossy(key);
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        let api: Api<DynamicObject> = self.access.api_in(&self.resource, namespace);
        let object = self.answer("get", namespace, api.get_metadata(name)).await?;
        let Some(metadata) = object.map(|object| object.metadata) else { return Ok(()) };
        let finalizers = metadata.finalizers.unwrap_or_default();
        let others: Vec<_> = finalizers.iter().filter(|other| **other != self.name).collect();
        if others.len() == finalizers.len() {
            return Ok(());
        }
        // Refused if it has changed meanwhile.
        let patch = json!({ "metadata": {
            "resourceVersion": metadata.resource_version,
            "finalizers": others,
        } });
        self.answer("patch", namespace, merge(&api, name, &Patch::Merge(patch))).await.map(|_| ())
    }

    /// What the server answers; nothing if the object is gone.
    async fn answer<T>(
        &self,
        verb: &str,
        namespace: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Option<T>, String> {
        let what = self.resource.name_in(namespace);
        match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(refusal(verb, &what, &error).message),
            Err(_) => Err(format!("{verb} {what}: no answer in {LIMIT:?}")),
        }
    }
}

async fn merge(
    api: &Api<DynamicObject>,
    name: &str,
    patch: &Patch<serde_json::Value>,
) -> kube::Result<()> {
    api.patch_metadata(name, &PatchParams::default(), patch).await.map(|_| ())
}
