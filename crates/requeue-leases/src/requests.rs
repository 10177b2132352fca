//! The requests to the API server for Leases.

use k8s_openapi::api::coordination::v1;
use kube::api::{DeleteParams, GetParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Error, Resource};
use serde_json::Value;

use crate::lease::Lease;

/// A request to the API server for one Lease.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Read(String),
    Create(Value),
    /// Replaces a Lease, if its version is still the `resourceVersion` of this object.
    Replace(Value),
    /// Deletes the Lease of this name, if it still has this uid and version. Version 0 permits any
    /// version.
    Delete {
        name: String,
        uid: String,
        version: u64,
    },
}

/// The result of a [`Call`].
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Lease(Lease),
    Deleted,
    NotFound,
    /// The precondition was not satisfied: another client has written or created the Lease.
    Conflict,
    /// The API server has rejected the call, or has not answered in time. In the second case, a
    /// write may still be executed.
    Failed,
}

/// Sends the requests of an election or a shard group.
#[derive(Clone)]
pub(crate) struct Requests {
    client: Client,
    request: Request,
    /// The words for the election or the group in messages, and its name.
    purpose: &'static str,
    name: String,
}

impl Requests {
    pub(crate) fn new(client: Client, namespace: &str, purpose: &'static str, name: &str) -> Self {
        let request = Request::new(v1::Lease::url_path(&(), Some(namespace)));
        Self { client, request, purpose, name: name.to_owned() }
    }

    pub(crate) async fn make_call(&self, call: Call) -> Answer {
        let deletes = matches!(call, Call::Delete { .. });
        let read = |json| Lease::from_json(json).map_err(Error::SerdeError);
        match self.send_call(call).await {
            // The API server answers a delete request by the object or by a status. Both mean that
            // the delete succeeded.
            Ok(_) if deletes => Answer::Deleted,
            Err(Error::Api(status)) if status.code == 404 => Answer::NotFound,
            Err(Error::Api(status)) if status.code == 409 => Answer::Conflict,
            sent => match sent.and_then(read) {
                Ok(lease) => Answer::Lease(lease),
                Err(error) => {
                    let Self { purpose, name, .. } = self;
                    tracing::warn!(lease = name, %error, "a request of the {purpose} failed");
                    Answer::Failed
                }
            },
        }
    }

    async fn send_call(&self, call: Call) -> Result<Value, Error> {
        let post = PostParams::default();
        let body = |json: &Value| json.to_string().into_bytes();
        let request = match call {
            Call::Read(name) => self.request.get(&name, &GetParams::default()),
            Call::Create(json) => self.request.create(&post, body(&json)),
            Call::Replace(json) => {
                let name = json["metadata"]["name"].as_str().unwrap_or_default();
                self.request.replace(name, &post, body(&json))
            }
            Call::Delete { name, uid, version } => {
                let resource_version = (version != 0).then(|| version.to_string());
                // The uid is a precondition. Otherwise, a late delete could remove a later Lease of
                // the same name.
                let preconditions = Some(Preconditions { uid: Some(uid), resource_version });
                let delete = DeleteParams { preconditions, ..DeleteParams::default() };
                self.request.delete(&name, &delete)
            }
        };
        self.client.request(request.map_err(Error::BuildRequest)?).await
    }
}
