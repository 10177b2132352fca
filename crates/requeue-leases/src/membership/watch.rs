//! The requests and the watch of a shard group, by kube's client.

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use k8s_openapi::api::coordination::v1;
use kube::api::{DeleteParams, DynamicObject, GetParams, PostParams, Preconditions};
use kube::core::{ApiResource, Request};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Error, Resource};
use serde_json::{Value, json};

use super::assignment::LABEL;
use super::protocol::{Answer, Call, Watched};
use crate::lease::Lease;

pub(super) struct Calls {
    client: Client,
    namespace: String,
    group: String,
}

impl Calls {
    pub(super) fn new(client: Client, namespace: &str, group: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), group: group.to_owned() }
    }

    /// Watches the Leases of the group. An item of an error is followed by further items.
    pub(super) fn watch_leases(&self) -> BoxStream<'static, Result<Watched, watcher::Error>> {
        let resource = ApiResource::erase::<v1::Lease>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let config = watcher::Config::default().labels(&format!("{LABEL}={}", self.group));
        watcher(api, config)
            .default_backoff()
            .filter_map(async |event| match event {
                Ok(event) => read_event(event).map(Ok),
                Err(error) => Some(Err(error)),
            })
            .boxed()
    }

    pub(super) fn make_call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let client = self.client.clone();
        let request = Request::new(v1::Lease::url_path(&(), Some(&self.namespace)));
        let group = self.group.clone();
        Box::pin(async move {
            let deletes = matches!(call, Call::Delete { .. });
            match send(client, &request, call).await {
                Ok(_) if deletes => Answer::Deleted,
                Ok(json) => match Lease::from_json(json) {
                    Ok(lease) => Answer::Lease(lease),
                    Err(error) => {
                        tracing::warn!(group, %error, "a Lease of the shard group is invalid");
                        Answer::Failed
                    }
                },
                Err(Error::Api(status)) if status.code == 404 => Answer::NotFound,
                Err(Error::Api(status)) if status.code == 409 => Answer::Conflict,
                Err(error) => {
                    tracing::warn!(group, %error, "a request of the shard group failed");
                    Answer::Failed
                }
            }
        })
    }
}

async fn send(client: Client, request: &Request, call: Call) -> Result<Value, Error> {
    let post = PostParams::default();
    let request = match call {
        Call::Read(name) => request.get(&name, &GetParams::default()),
        Call::Create(json) => request.create(&post, json.to_string().into_bytes()),
        Call::Replace(json) => {
            let name = json["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            request.replace(&name, &post, json.to_string().into_bytes())
        }
        Call::Delete { name, uid, version } => {
            // Version 0 is no precondition: the Lease is our own.
            let resource_version = (version != 0).then(|| version.to_string());
            let preconditions = Some(Preconditions { uid: Some(uid), resource_version });
            request.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() })
        }
    };
    client.request(request.map_err(Error::BuildRequest)?).await
}

/// Returns `None` for an event with an object that is not a Lease.
fn read_event(event: watcher::Event<DynamicObject>) -> Option<Watched> {
    let lease = |object: DynamicObject| {
        let mut json = serde_json::to_value(object).ok()?;
        // The items of a list do not have these fields.
        json["apiVersion"] = json!("coordination.k8s.io/v1");
        json["kind"] = json!("Lease");
        Lease::from_json(json).ok()
    };
    Some(match event {
        watcher::Event::Init => Watched::Restart,
        watcher::Event::InitApply(object) => Watched::Listed(lease(object)?),
        watcher::Event::InitDone => Watched::Complete,
        watcher::Event::Apply(object) => Watched::Applied(lease(object)?),
        watcher::Event::Delete(object) => Watched::Deleted(lease(object)?),
    })
}
