//! Sends the requests of the election by kube's client.

use k8s_openapi::api::coordination::v1;
use kube::api::{GetParams, PostParams};
use kube::core::Request;
use kube::{Client, Error, Resource};
use serde_json::Value;

use super::election::{Answer, Call};
use crate::lease::Lease;

pub(super) struct Calls {
    client: Client,
    request: Request,
    name: String,
}

impl Calls {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        let request = Request::new(v1::Lease::url_path(&(), Some(namespace)));
        Self { client, request, name: name.to_owned() }
    }

    pub(super) async fn make_call(&self, call: Call) -> Answer {
        match self.send(call).await {
            Ok(lease) => Answer::Lease(lease),
            Err(Error::Api(status)) if status.code == 404 => Answer::NotFound,
            Err(Error::Api(status)) if status.code == 409 => Answer::Conflict,
            Err(error) => {
                tracing::warn!(lease = self.name, %error, "a request of the leader election failed");
                Answer::Failed
            }
        }
    }

    async fn send(&self, call: Call) -> Result<Lease, Error> {
        let post = PostParams::default();
        let body = |json: Value| json.to_string().into_bytes();
        let request = match call {
            Call::Get => self.request.get(&self.name, &GetParams::default()),
            Call::Create(json) => self.request.create(&post, body(json)),
            Call::Replace(json) => self.request.replace(&self.name, &post, body(json)),
        };
        let json: Value = self.client.request(request.map_err(Error::BuildRequest)?).await?;
        Lease::from_json(json).map_err(Error::SerdeError)
    }
}
