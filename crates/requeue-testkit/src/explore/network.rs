//! The connection of a client to the API server, which simulates delays and faults.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

use super::link::{BoxError, Link, draw_delay};
use super::log::What;
use super::plan::Mishap;
use super::state::Place;
use super::watch::disturb_watch;
use crate::invariants::{ObjectId, Sent, Verb, Write, Writer};
use crate::request::Path;
use crate::store::Key;

/// The time after which a client notices that its connection is broken.
const NOTICED: Duration = Duration::from_secs(15);

pub(super) type Answered = Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// The connection of a client to the API server, as a service for [`kube::Client`].
#[derive(Clone)]
pub(super) struct Network(pub(super) Arc<Link>);

impl Network {
    pub(super) fn client(self, namespace: &str) -> Client {
        Client::new(self, namespace)
    }
}

impl Service<Request<Body>> for Network {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let link = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let call = Call::new(Request::from_parts(head, body));
            link.stop_if_dead().await;
            if link.writer.is_process() {
                link.send_with_faults(call).await
            } else {
                if call.verb.is_write() {
                    link.state.disturb();
                }
                link.execute(call).await
            }
        })
    }
}

/// A request, with the parts of it that determine which faults are possible.
struct Call {
    request: Request<Bytes>,
    path: Option<Path>,
    verb: Verb,
}

impl Call {
    fn new(request: Request<Bytes>) -> Self {
        let path = Path::parse(request.uri().path());
        let query = request.uri().query().unwrap_or_default();
        let has_name = path.as_ref().is_some_and(|path| path.name.is_some());
        let content_type = request.headers().get(http::header::CONTENT_TYPE);
        let applies =
            content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/apply"));
        let watches = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
        let verb = match *request.method() {
            Method::GET if watches => Verb::Watch,
            Method::GET if has_name => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Replace,
            Method::PATCH if applies => Verb::Apply,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::List,
        };
        Self { request, path, verb }
    }

    fn is_for_leases(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.plural == "leases")
    }

    fn object(&self) -> ObjectId {
        let path = self.path.clone().unwrap_or_default();
        ObjectId {
            group: path.group,
            plural: path.plural,
            namespace: path.namespace.unwrap_or_default(),
            name: path.name.unwrap_or_default(),
        }
    }

    fn key(&self) -> Option<Key> {
        let path = self.path.as_ref()?;
        let name = path.name.as_ref()?;
        Some(Key::new(&path.group, &path.plural, path.namespace.as_deref(), name))
    }

    fn to_request(&self) -> Request<Body> {
        let (head, body) = self.request.clone().into_parts();
        Request::from_parts(head, Body::from(body))
    }
}

impl Link {
    async fn send_with_faults(self: &Arc<Self>, mut call: Call) -> Answered {
        let is_for_leases = call.is_for_leases();
        let place = if is_for_leases { Place::Lease } else { Place::Request };
        if !is_for_leases && call.verb != Verb::Watch {
            self.state.count_request();
        }
        if call.verb.is_write() {
            self.state.check_sent(&Sent { writer: self.writer, object: &call.object() });
        }
        let mut reached = self.state.reach(place, self.writer);
        if is_for_leases {
            self.pass_partition(reached.mishap).await?;
        }
        sleep(draw_delay(&mut reached.random)).await;
        match reached.mishap {
            Some(Mishap::Refused(code)) => return Ok(refuse(code)),
            Some(Mishap::Lost) => {
                sleep(NOTICED).await;
                return Err("the connection was reset (by a fault of the test)".into());
            }
            Some(Mishap::Late(time)) => sleep(time).await,
            Some(Mishap::Conflict) => self.touch(&call).await,
            Some(Mishap::StaleList(changes)) => self.make_stale(&mut call, changes),
            Some(Mishap::CrashBefore) => self.kill(),
            _ => {}
        }
        // If the process has crashed while the request was on its way, the request is
        // lost with a probability of one half.
        if self.is_dead() && reached.random.bool() {
            pending::<()>().await;
        }
        let answered = self.execute(call).await;
        match reached.mishap {
            Some(Mishap::CrashAfter) => self.kill(),
            Some(Mishap::Unanswered) => {
                sleep(NOTICED).await;
                return Err("the connection was reset (by a fault of the test)".into());
            }
            _ => sleep(draw_delay(&mut reached.random)).await,
        }
        self.stop_if_dead().await;
        answered
    }

    /// Returns an error during a partition, after the time that a client needs to
    /// notice it.
    async fn pass_partition(&self, mishap: Option<Mishap>) -> Result<(), BoxError> {
        if let Some(Mishap::Partition(time)) = mishap {
            self.begin_partition(Instant::now() + time);
        }
        if !self.is_partitioned() {
            return Ok(());
        }
        sleep(NOTICED).await;
        Err("the connection was reset (by a fault of the test)".into())
    }

    /// Changes the object of a write before the write is executed, as another client
    /// would.
    async fn touch(&self, call: &Call) {
        let Some(key) = call.key().filter(|_| call.verb.is_write()) else { return };
        if self.state.server.with_store(|store| store.get(&key).is_none()) {
            return;
        }
        let path = call.request.uri().path();
        let path = match call.path.as_ref().and_then(|path| path.subresource.as_deref()) {
            Some(part) => path.trim_end_matches(part).trim_end_matches('/'),
            None => path,
        };
        let version = self.state.server.with_store(|store| store.version());
        let body =
            json!({ "metadata": { "annotations": { "testkit/touched": version.to_string() } } });
        let request = Request::patch(format!("{path}?fieldManager=testkit"))
            .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
            .body(Bytes::from(body.to_string()));
        let Ok(request) = request else { return };
        let link = Arc::new(Self::new(Arc::clone(&self.state), Writer::User));
        // The result is ignored. If the object refuses the change, it is not changed,
        // and the fault has no effect.
        _ = link.execute(Call::new(request)).await;
    }

    /// Makes the server answer a list with the objects of an earlier version, if the
    /// client permits a stale list.
    fn make_stale(&self, call: &mut Call, changes: u64) {
        let uri = call.request.uri();
        let query = uri.query().unwrap_or_default();
        let may_be_stale = query.split('&').any(|pair| pair == "resourceVersion=0");
        let is_exact = query.contains("resourceVersionMatch=");
        if call.verb != Verb::List || !may_be_stale || is_exact {
            return;
        }
        let version = self
            .state
            .server
            .with_store(|store| store.version().saturating_sub(changes).max(store.oldest()));
        let exact = format!("resourceVersion={version}&resourceVersionMatch=Exact");
        let query = query.replace("resourceVersion=0", &exact);
        if let Ok(uri) = format!("{}?{query}", uri.path()).parse() {
            *call.request.uri_mut() = uri;
        }
    }

    /// Sends a request to the server, and checks the invariants on its effect.
    async fn execute(self: &Arc<Self>, call: Call) -> Answered {
        let server = self.state.server.clone();
        let key = call.key();
        let (version, before) = server.with_store(|store| {
            (store.version(), key.as_ref().and_then(|key| store.get(key).cloned()))
        });
        let answered = server.clone().oneshot(call.to_request()).await;
        let response =
            answered.map_err(BoxError::from)?.map(|body| body.map_err(Into::into).boxed_unsync());
        let status = response.status();
        let asked = What::Request {
            method: call.request.method().clone(),
            uri: call.request.uri().clone(),
            body: call.request.body().clone(),
            status: status.as_u16(),
        };
        self.state.note(Some(self.writer), asked);
        if call.verb == Verb::Watch && status.is_success() && self.writer.is_process() {
            let (group, plural) =
                call.path.map(|path| (path.group, path.plural)).unwrap_or_default();
            let link = Arc::clone(self);
            return Ok(response.map(|body| disturb_watch(link, group, plural, body)));
        }
        if call.verb.is_write() && status.is_success() {
            self.check_write(&call, key, version, before);
        } else if status.is_success() {
            self.note_read(&call, key);
        }
        Ok(response)
    }

    fn note_read(&self, call: &Call, key: Option<Key>) {
        let version = self.state.server.with_store(|store| store.version());
        match (key, &call.path) {
            (Some(key), _) => self.note_seen_object(key, version),
            // A list with an exact version is stale. A watch does not continue from it,
            // so its version is not noted.
            (None, Some(path))
                if !call.request.uri().query().unwrap_or_default().contains("Exact") =>
            {
                self.note_seen_kind(&path.group, &path.plural, version);
            }
            _ => {}
        }
    }

    fn check_write(&self, call: &Call, key: Option<Key>, version: u64, before: Option<Arc<Value>>) {
        let mut object = call.object();
        let is_creation = call.verb == Verb::Create && key.is_none();
        let seen_version = key.as_ref().and_then(|key| self.seen_version(key));
        let (key, after, seen, now) = self.state.server.with_store(|store| {
            let mut changes = store.changes_after(version);
            let created = changes.find(|change| {
                is_creation && change.key.is_of(&object.group, &object.plural, None)
            });
            let key = key.or_else(|| created.map(|change| change.key.clone()));
            let after = key.as_ref().and_then(|key| store.get(key).cloned());
            let is_new = |now: &Arc<Value>| {
                let now =
                    now["metadata"]["resourceVersion"].as_str().and_then(|it| it.parse().ok());
                now.is_none_or(|now: u64| seen_version.is_none_or(|seen| now > seen))
            };
            let seen = match (&before, seen_version, &key) {
                (Some(before), _, _) if !is_new(before) => Some(Arc::clone(before)),
                // The last state that the process has received is the state before the
                // first change that it has not received.
                (Some(_), Some(seen), Some(key)) => {
                    let mut later = store.changes_after(seen);
                    later.find(|change| change.key == *key).and_then(|change| change.before.clone())
                }
                _ => None,
            };
            (key, after, seen, store.version())
        });
        let Some(key) = key else { return };
        object.name = key.name().to_owned();
        // The response contains the object, so the writer knows this version.
        self.note_seen_object(key, now);
        let body = serde_json::from_slice(self.body_of(call)).unwrap_or_default();
        let subresource = call.path.as_ref().and_then(|path| path.subresource.clone());
        let (writer, verb) = (self.writer, call.verb);
        let write = Write { writer, verb, object, subresource, body, before, after, seen };
        self.state.check_write(&write);
    }

    fn body_of<'a>(&self, call: &'a Call) -> &'a [u8] {
        call.request.body()
    }
}

fn refuse(code: u16) -> Response<UnsyncBoxBody<Bytes, BoxError>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "message": "refused by a fault of the test",
        "reason": match code { 429 => "TooManyRequests", 503 => "ServiceUnavailable", _ => "InternalError" },
    });
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}
