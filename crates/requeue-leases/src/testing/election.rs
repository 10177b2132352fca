//! An API server in memory for the tests of elections. It stores one Lease, and records all
//! requests.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::requests::Call;
#[cfg(test)]
use crate::{lease::Lease, requests::Answer};

/// An API server that stores one Lease, and records all requests.
#[derive(Clone, Default)]
pub struct ElectionApi(Arc<Mutex<Inner>>);

#[derive(Default)]
pub struct Inner {
    pub server: Server,
    pub(crate) log: Vec<(Method, String, Value)>,
    pub(crate) events: Vec<Value>,
    /// True if the server receives requests, but sends no responses.
    pub(crate) silent: bool,
    /// The HTTP status code with which the server refuses all requests. `None` if it accepts them.
    pub(crate) refuses: Option<u16>,
}

impl ElectionApi {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                match api.answer(request).await {
                    Some(response) => Ok::<_, Infallible>(response),
                    None => std::future::pending().await,
                }
            }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Option<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let mut inner = self.0.lock().unwrap();
        if path.contains("/events") {
            inner.events.push(body);
            return Some(respond(Ok(json!({}))));
        }
        inner.log.push((parts.method.clone(), path.clone(), Value::clone(&body)));
        if inner.silent {
            return None;
        }
        let call = match parts.method {
            Method::GET => Call::Read(path),
            Method::POST => Call::Create(body),
            Method::PUT => Call::Replace(body),
            other => panic!("{other} is no part of an election"),
        };
        Some(respond(match inner.refuses {
            Some(code) => Err(code),
            None => inner.server.call(call),
        }))
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    pub fn asked(&self) -> Vec<Method> {
        self.with(|inner| inner.log.drain(..).map(|(method, ..)| method).collect())
    }

    pub fn holder(&self) -> String {
        self.with(|inner| {
            let lease = inner.server.lease.as_ref().expect("there is a Lease");
            lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
        })
    }
}

fn respond(outcome: Result<Value, u16>) -> Response<Body> {
    let (code, body) = match outcome {
        Ok(body) => (200, body),
        Err(code) => {
            let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "no", "reason": "No", "code": code });
            (code, body)
        }
    };
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

/// The state of an API server that stores one Lease, without HTTP.
#[derive(Default)]
pub struct Server {
    pub lease: Option<Value>,
    version: u64,
    uids: u64,
}

impl Server {
    /// Executes a call. Returns the Lease, or the HTTP status code of the error.
    pub(crate) fn call(&mut self, call: Call) -> Result<Value, u16> {
        match (call, &self.lease) {
            (Call::Read(_) | Call::Replace(_), None) => Err(404),
            (Call::Read(_), Some(lease)) => Ok(lease.clone()),
            (Call::Create(_), Some(_)) => Err(409),
            (Call::Create(lease), None) => {
                self.uids += 1;
                let uid = format!("uid-{}", self.uids);
                Ok(self.store(lease, &uid))
            }
            (Call::Delete { .. }, _) => panic!("an election deletes no Lease"),
            (Call::Replace(new), Some(lease)) => {
                let precondition = &new["metadata"];
                let fits = |field| precondition[field] == lease["metadata"][field];
                if !fits("uid") || !fits("resourceVersion") {
                    return Err(409);
                }
                let uid = precondition["uid"].as_str().unwrap().to_owned();
                Ok(self.store(new, &uid))
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn answer(&mut self, call: Call) -> Answer {
        match self.call(call) {
            Ok(lease) => Answer::Lease(Lease::from_json(lease).unwrap()),
            Err(404) => Answer::NotFound,
            Err(_) => Answer::Conflict,
        }
    }

    /// Changes a label of the Lease, as another client may do. Does nothing if there is no Lease.
    pub fn label(&mut self, value: u64) {
        if let Some(mut lease) = self.lease.take() {
            lease["metadata"]["labels"] = json!({ "changed": value.to_string() });
            let uid = lease["metadata"]["uid"].as_str().unwrap().to_owned();
            self.store(lease, &uid);
        }
    }

    fn store(&mut self, mut lease: Value, uid: &str) -> Value {
        self.version += 1;
        lease["metadata"]["uid"] = json!(uid);
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease.insert(lease).clone()
    }
}
