//! An API server in memory for the tests of shard groups, and a client for it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Channel;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::server::Server;
use crate::membership::protocol::Watched;
use crate::requests::{Answer, Call};

/// An API server that stores Leases, and no other objects.
#[derive(Clone, Default)]
pub struct Api(Arc<Mutex<Inner>>);

#[derive(Default)]
pub struct Inner {
    server: Server,
    /// The lines that a watch sends, each with the version of its object.
    lines: Vec<(u64, String)>,
    watches: Vec<mpsc::UnboundedSender<String>>,
    /// The Kubernetes Events that clients have published.
    pub events: Vec<Value>,
    pub requests: usize,
    /// The path and the time of each list request for other objects. Streaming lists are included.
    pub lists: Vec<(String, Instant)>,
    /// Simulates an outage. A request fails if this function returns true for its path and query.
    pub fails: Option<fn(&str, &str) -> bool>,
}

impl Api {
    pub fn client(&self) -> Client {
        let api = self.clone();
        let answer = move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let path = parts.uri.path().to_owned();
                let query = parts.uri.query().unwrap_or_default().to_owned();
                Ok::<_, Infallible>(api.inner().answer(&parts.method, &path, &query, body))
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Returns the sorted names of all Leases.
    pub fn leases(&self) -> Vec<String> {
        self.inner().server.leases.keys().cloned().collect()
    }

    /// Deletes a Lease without a precondition, as a user does with kubectl.
    pub fn delete(&self, name: &str) {
        let mut inner = self.inner();
        inner.server.delete(name);
        inner.publish();
    }
}

impl Inner {
    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: Value,
    ) -> Response<Channel<Bytes, Infallible>> {
        self.requests += 1;
        let is_watch = query.contains("watch=");
        let is_of_others = path.starts_with("/api/v1/");
        if is_of_others && (!is_watch || query.contains("sendInitialEvents=true")) {
            self.lists.push((path.to_owned(), Instant::now()));
        }
        if self.fails.is_some_and(|fails| fails(path, query)) {
            return failure(503);
        }
        if is_of_others && is_watch {
            let (watch, lines) = mpsc::unbounded_channel();
            self.watches.push(watch);
            return respond(200, String::new(), Some(lines));
        }
        if is_of_others {
            return self.list([].iter());
        }
        if path.contains("/events") {
            self.events.push(body);
            return respond(200, json!({}).to_string(), None);
        }
        let Some((_, rest)) = path.split_once("/leases") else { return failure(404) };
        let name = rest.trim_start_matches('/').to_owned();
        let call = match *method {
            Method::GET if is_watch => return self.watch(query),
            Method::GET if name.is_empty() => return self.list(self.server.leases.values()),
            Method::GET => Call::Read(name),
            Method::POST => Call::Create(body),
            Method::PUT => Call::Replace(body),
            _ => {
                let of = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
                let version = of("resourceVersion").map_or(0, |version| version.parse().unwrap());
                Call::Delete { name, uid: of("uid").unwrap(), version }
            }
        };
        let named = match &call {
            Call::Create(json) | Call::Replace(json) => json["metadata"]["name"].as_str(),
            Call::Read(name) | Call::Delete { name, .. } => Some(&**name),
        };
        let name = named.unwrap().to_owned();
        let answer = self.server.call(call);
        self.publish();
        match answer {
            Answer::Lease(_) => respond(200, self.server.leases[&name].to_string(), None),
            Answer::Deleted => respond(200, json!({ "status": "Success" }).to_string(), None),
            Answer::NotFound => failure(404),
            Answer::Conflict => failure(409),
            Answer::Failed => failure(500),
        }
    }

    fn version(&self) -> u64 {
        self.lines.last().map_or(1, |(version, _)| *version)
    }

    fn list<'a>(
        &self,
        items: impl Iterator<Item = &'a Value>,
    ) -> Response<Channel<Bytes, Infallible>> {
        let items: Vec<_> = items.collect();
        let metadata = json!({ "resourceVersion": self.version().to_string() });
        respond(200, json!({ "metadata": metadata, "items": items }).to_string(), None)
    }

    fn watch(&mut self, query: &str) -> Response<Channel<Bytes, Infallible>> {
        let from = query.split('&').find_map(|it| it.strip_prefix("resourceVersion="));
        let from: u64 = from.unwrap().parse().unwrap();
        let missed = self.lines.iter().filter(|(version, _)| *version > from);
        let missed = missed.map(|(_, line)| line.as_str()).collect();
        let (watch, lines) = mpsc::unbounded_channel();
        self.watches.push(watch);
        respond(200, missed, Some(lines))
    }

    /// Sends the new events of the server to all watches.
    fn publish(&mut self) {
        for event in std::mem::take(&mut self.server.events) {
            let (kind, lease) = match &event {
                Watched::Apply(lease) => ("MODIFIED", lease),
                Watched::Delete(lease) => ("DELETED", lease),
                _ => continue,
            };
            let object = match self.server.leases.get(lease.name()) {
                Some(stored) if kind == "MODIFIED" => stored.clone(),
                _ => json!({ "metadata": {
                    "name": lease.name(), "uid": lease.uid(),
                    "resourceVersion": lease.resource_version().to_string(),
                } }),
            };
            let line = json!({ "type": kind, "object": object }).to_string() + "\n";
            self.watches.retain(|watch| watch.send(line.clone()).is_ok());
            self.lines.push((lease.resource_version(), line));
        }
    }
}

fn failure(code: u16) -> Response<Channel<Bytes, Infallible>> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": "no", "reason": "No", "code": code });
    respond(code, status.to_string(), None)
}

/// Responds with `first`, and then with each text from the channel. The response ends when the channel is closed.
fn respond(
    code: u16,
    first: String,
    more: Option<mpsc::UnboundedReceiver<String>>,
) -> Response<Channel<Bytes, Infallible>> {
    let (mut body, channel) = Channel::new(1);
    tokio::spawn(async move {
        let mut is_open = body.send_data(first.into()).await.is_ok();
        let Some(mut more) = more else { return };
        while is_open && let Some(text) = more.recv().await {
            is_open = body.send_data(text.into()).await.is_ok();
        }
    });
    let mut response = Response::new(channel);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}
