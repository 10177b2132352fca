//! An API server in memory for kube's client. It stores only Leases, and its watches never report a change.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::server::Server;
use crate::requests::{Answer, Call};

/// The only namespace that the server has.
pub const NAMESPACE: &str = "ns";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[derive(Clone, Default)]
pub struct Fake(Arc<Inner>);

#[derive(Default)]
struct Inner {
    server: Mutex<Server>,
    /// The verbs for which the server denies the permission.
    refused: Vec<&'static str>,
    /// The names of all Leases that the server stores.
    names: watch::Sender<BTreeSet<String>>,
    /// While this value is true, the server delays its responses to creations of member Leases.
    holds: watch::Sender<bool>,
}

impl Fake {
    /// Creates a server that denies the permission for these verbs.
    pub fn refusing(refused: &[&'static str]) -> Self {
        Self(Arc::new(Inner { refused: refused.to_vec(), ..Inner::default() }))
    }

    pub fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        Client::new(service, NAMESPACE)
    }

    pub fn hold(&self, holds: bool) {
        self.0.holds.send_replace(holds);
    }

    /// Waits until `condition` returns true for the names of all Leases.
    pub async fn until(&self, condition: impl FnMut(&BTreeSet<String>) -> bool) {
        self.0.names.subscribe().wait_for(condition).await.unwrap();
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.0.names.borrow().clone()
    }

    pub fn create(&self, lease: Value) {
        assert!(matches!(self.call(Call::Create(lease)), Answer::Lease(_)));
    }

    fn call(&self, call: Call) -> Answer {
        let mut server = self.0.server.lock().unwrap();
        let answer = server.call(call);
        server.events.clear();
        self.0.names.send_replace(server.leases.keys().cloned().collect());
        answer
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        if query.contains("watch=true") {
            return std::future::pending().await;
        }
        if path == REVIEWS {
            let verb = body["spec"]["resourceAttributes"]["verb"].as_str().unwrap();
            let allowed = !self.0.refused.contains(&verb);
            return response(200, &json!({ "spec": {}, "status": { "allowed": allowed } }));
        }
        let Some(path) = path.strip_prefix(LEASES) else { return list(Vec::new()) };
        let (namespace, name) = path.split_once("/leases").unwrap();
        let name = name.trim_start_matches('/').to_owned();
        let creates = head.method == Method::POST;
        let call = match head.method {
            Method::GET if name.is_empty() => {
                let server = self.0.server.lock().unwrap();
                return list(server.leases.values().cloned().collect());
            }
            Method::POST if namespace != NAMESPACE => return status(404),
            Method::POST => Call::Create(body),
            Method::GET => Call::Read(name),
            Method::PUT => Call::Replace(body),
            Method::DELETE => {
                let uid = body["preconditions"]["uid"].as_str().unwrap().to_owned();
                let version = body["preconditions"]["resourceVersion"].as_str();
                let version = version.map_or(0, |version| version.parse().unwrap());
                Call::Delete { name, uid, version }
            }
            other => panic!("{other}"),
        };
        let answer = self.call(call);
        match answer {
            Answer::Lease(lease) => {
                if creates && !lease.holder().is_empty() {
                    self.0.holds.subscribe().wait_for(|holds| !holds).await.unwrap();
                }
                response(200, &lease.with_annotations(serde_json::Map::new()))
            }
            Answer::Deleted => response(200, &json!({ "kind": "Status", "status": "Success" })),
            Answer::NotFound => status(404),
            Answer::Conflict => status(409),
            Answer::Failed => status(500),
        }
    }
}

fn response(code: u16, json: &Value) -> Response<Body> {
    let body = Body::from(json.to_string().into_bytes());
    Response::builder().status(code).body(body).unwrap()
}

fn status(code: u16) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused", "reason": "Refused", "code": code,
    });
    response(code, &status)
}

fn list(items: Vec<Value>) -> Response<Body> {
    response(200, &json!({ "metadata": { "resourceVersion": "1" }, "items": items }))
}
