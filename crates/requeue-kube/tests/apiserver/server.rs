//! An API server in memory: lists and watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Channel;
use kube::Client;
use kube::client::Body;
use requeue_leases::testing::respond;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The path of the definitions of custom resources.
pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    version: u64,
    /// The kinds that are served, by the path that lists all their objects.
    kinds: BTreeMap<String, Kind>,
    forbidden: Vec<String>,
    /// The lists and the watches of each path.
    requests: Vec<(&'static str, String)>,
}

#[derive(Default)]
struct Kind {
    objects: BTreeMap<String, Value>,
    events: Vec<(u64, String)>,
    watches: Vec<mpsc::UnboundedSender<String>>,
    /// The oldest version from which a watch can start.
    oldest: u64,
}

impl Server {
    pub(crate) fn new(kinds: &[&str]) -> Self {
        let server = Self::default();
        kinds.iter().for_each(|path| server.install(path));
        server
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |request: Request<Body>| {
            let response = server.state().answer(&request);
            async { Ok::<_, Infallible>(response) }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Begins to serve the kind at `path`.
    pub(crate) fn install(&self, path: &str) {
        self.state().kinds.entry(path.to_owned()).or_default();
    }

    /// No longer serves the kind, as if its definition had been deleted.
    pub(crate) fn uninstall(&self, path: &str) {
        self.state().kinds.remove(path);
    }

    pub(crate) fn forbid(&self, path: &str) {
        self.state().forbidden.push(path.to_owned());
    }

    /// Creates or changes an object in namespace `ns`, with these other fields of its metadata.
    pub(crate) fn put(&self, path: &str, name: &str, metadata: Value) {
        let mut object = json!({ "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid of {name}"),
        } });
        let fields = metadata.as_object().unwrap().clone();
        object["metadata"].as_object_mut().unwrap().extend(fields);
        self.state().change(path, name, Some(object));
    }

    pub(crate) fn delete(&self, path: &str, name: &str) {
        self.state().change(path, name, None);
    }

    /// Ends all watches.
    pub(crate) fn disconnect(&self) {
        self.state().kinds.values_mut().for_each(|kind| kind.watches.clear());
    }

    /// Makes all versions too old for a watch.
    pub(crate) fn compact(&self) {
        let state = &mut *self.state();
        state.kinds.values_mut().for_each(|kind| kind.oldest = state.version + 1);
        state.version += 1;
    }

    /// Returns the number of open watches of a path.
    pub(crate) async fn watches(&self, path: &str) -> usize {
        // Only a write shows that the client has closed its end of the connection.
        let is_open = |watch: &mpsc::UnboundedSender<String>| watch.send(String::new()).is_ok();
        self.state().kinds.get_mut(path).unwrap().watches.retain(is_open);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = self.state();
        state.kinds[path].watches.iter().filter(|watch| !watch.is_closed()).count()
    }

    /// Returns the number of requests for a path, with the verb `list` or `watch`.
    pub(crate) fn count(&self, verb: &str, path: &str) -> usize {
        let requests = &self.state().requests;
        requests.iter().filter(|request| **request == (leak(verb), path.to_owned())).count()
    }
}

/// Returns the literal of a verb.
fn leak(verb: &str) -> &'static str {
    if verb == "watch" { "watch" } else { "list" }
}

impl State {
    fn change(&mut self, path: &str, name: &str, object: Option<Value>) {
        self.version += 1;
        let kind = self.kinds.get_mut(path).unwrap();
        let before = kind.objects.remove(name);
        let verb = match (&before, &object) {
            (None, _) => "ADDED",
            (Some(_), Some(_)) => "MODIFIED",
            (Some(_), None) => "DELETED",
        };
        let mut latest = object.clone().or(before).unwrap();
        latest["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": verb, "object": latest }).to_string() + "\n";
        if object.is_some() {
            kind.objects.insert(name.to_owned(), latest);
        }
        kind.watches.retain(|watch| watch.send(event.clone()).is_ok());
        kind.events.push((self.version, event));
    }

    fn answer(&mut self, request: &Request<Body>) -> Response<Channel<bytes::Bytes, Infallible>> {
        let path = request.uri().path().replace("/namespaces/ns/", "/");
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.contains("watch=true");
        self.requests.push((if is_watch { "watch" } else { "list" }, path.clone()));
        if self.forbidden.contains(&path) {
            return failure(403, "Forbidden");
        }
        let version = self.version;
        let Some(kind) = self.kinds.get_mut(&path) else { return failure(404, "NotFound") };
        if !is_watch {
            let items: Vec<_> = kind.objects.values().collect();
            let list =
                json!({ "metadata": { "resourceVersion": version.to_string() }, "items": items });
            return respond(200, list.to_string(), None);
        }
        let from = query.split('&').find_map(|it| it.strip_prefix("resourceVersion="));
        let from: u64 = from.unwrap().parse().unwrap();
        if from < kind.oldest {
            let expired = json!({ "type": "ERROR", "object": status(410, "Expired") });
            return respond(200, expired.to_string() + "\n", None);
        }
        let missed: String = kind
            .events
            .iter()
            .filter(|(at, _)| *at > from)
            .map(|(_, event)| event.clone())
            .collect();
        let (watch, events) = mpsc::unbounded_channel();
        kind.watches.push(watch);
        respond(200, missed, Some(events))
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code })
}

fn failure(code: u16, reason: &str) -> Response<Channel<bytes::Bytes, Infallible>> {
    respond(code, status(code, reason).to_string(), None)
}
