//! Connects the state machine to kube's client, as a tower service.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::Access;
use crate::cluster::{Cluster, Event, Response, Watch};
use crate::record::Record;
use crate::store::Store;

/// The time between two bookmarks of a watch that has no events.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// The maximum number of objects whose encoded texts are cached.
const TEXTS: usize = 32;

/// The time at which the clock of a server starts: 2026-01-01T00:00:00Z.
pub(crate) const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The type of the body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// A Kubernetes API server in memory.
///
/// The server is a [tower service](tower::Service). kube's client calls it instead of a server
/// on the network. Clones are handles to the same server.
///
/// The clock of the server starts at 2026-01-01T00:00:00Z, and advances with the clock of
/// tokio. A test can pause the clock of tokio, or replace the clock of the server with
/// [`with_clock`](Self::with_clock).
///
/// # Examples
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::Api;
/// use kube::api::PostParams;
/// use requeue_testkit::ApiServer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> kube::Result<()> {
/// let server = ApiServer::new();
/// let maps = Api::<ConfigMap>::namespaced(server.client(), "default");
/// let mut map = ConfigMap::default();
/// map.metadata.generate_name = Some("example-".into());
/// let map = maps.create(&PostParams::default(), &map).await?;
/// assert!(map.metadata.name.is_some_and(|name| name.starts_with("example-")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
    access: Arc<Access>,
}

struct Shared {
    cluster: Mutex<Cluster>,
    /// Wakes the watches after a change, in the order in which they began to wait.
    changed: Notify,
    watches: Mutex<Watches>,
    /// The last objects that were sent, with their encoded texts. The response to a write and
    /// all watches send the same object, so its text is used several times.
    texts: Mutex<VecDeque<(Arc<Value>, Bytes)>>,
    clock: Clock,
}

impl Shared {
    /// Returns an object as JSON text.
    fn text(&self, object: &Arc<Value>) -> Bytes {
        if Arc::strong_count(object) == 1 {
            // There is only one reference, so the object is not stored and will not be sent
            // again.
            return to_bytes(object);
        }
        let mut texts = self.texts.lock();
        if let Some((_, text)) = texts.iter().find(|(known, _)| Arc::ptr_eq(known, object)) {
            return text.clone();
        }
        let text = to_bytes(object);
        texts.truncate(TEXTS - 1);
        texts.push_front((Arc::clone(object), text.clone()));
        text
    }
}

/// The open watches: the resource of each, by a number.
#[derive(Default)]
struct Watches {
    next: u64,
    open: BTreeMap<u64, String>,
}

impl ApiServer {
    /// Creates a server with the namespaces that every Kubernetes cluster has.
    ///
    /// The server keeps the last 100,000 changes and the last 100,000 requests.
    #[must_use]
    pub fn new() -> Self {
        Self::with_cluster(Cluster::new(0, 100_000))
    }

    /// Creates a server whose initial state is that of a cluster.
    #[must_use]
    pub fn with_cluster(cluster: Cluster) -> Self {
        Self::build(cluster, tokio_clock())
    }

    /// Returns a server with another clock. The clock provides the creation times and deletion
    /// times of objects.
    ///
    /// Call this method before you clone the server or create clients. The returned server has
    /// a copy of the state, and existing clones and clients remain connected to the old server.
    #[must_use]
    pub fn with_clock(self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::build(self.snapshot(), Arc::new(clock))
    }

    pub(crate) fn build(cluster: Cluster, clock: Clock) -> Self {
        let (cluster, changed, watches) = (Mutex::new(cluster), Notify::new(), Mutex::default());
        let shared = Shared { cluster, changed, watches, texts: Mutex::default(), clock };
        Self { shared: Arc::new(shared), access: Arc::new(Access::admin()) }
    }

    /// Returns a client that may send any request. Its default namespace is `default`.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a tokio runtime.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Returns a handle to the same server, whose requests have these permissions.
    ///
    /// # Examples
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Secret;
    /// use kube::{Api, Error};
    /// use requeue_testkit::{Access, ApiServer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let server = ApiServer::new();
    /// let client = server.with_access(Access::user("stranger")).client();
    /// let refused = Api::<Secret>::default_namespaced(client).get("token").await;
    /// assert!(matches!(refused, Err(Error::Api(status)) if status.code == 403));
    /// # }
    /// ```
    #[must_use]
    pub fn with_access(&self, access: Access) -> Self {
        Self { shared: Arc::clone(&self.shared), access: Arc::new(access) }
    }

    /// Calls a function with the cluster. If the function changes objects, wakes the watches.
    ///
    /// The server handles no request during the call. The function must not use a client of
    /// this server, because the request would wait for the end of the call forever.
    pub fn with<T>(&self, function: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.shared.cluster.lock();
        let before = cluster.version();
        let result = function(&mut cluster);
        if cluster.version() != before {
            self.shared.changed.notify_waiters();
        }
        result
    }

    /// Calls a function that reads the objects and the log of changes. The watches are not
    /// woken.
    pub(crate) fn with_store<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(self.shared.cluster.lock().store())
    }

    /// Returns a copy of the server's state. Unchanged objects are shared, so the copy needs
    /// little memory.
    #[must_use]
    pub fn snapshot(&self) -> Cluster {
        self.shared.cluster.lock().clone()
    }

    /// Returns the recorded requests, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.cluster.lock().records().cloned().collect()
    }

    /// Returns the objects of a resource, such as `deployments.apps`. The order is that of a
    /// list.
    #[must_use]
    pub fn objects(&self, resource: &str) -> Vec<Arc<Value>> {
        self.shared.cluster.lock().objects(resource)
    }

    /// Returns the present time of the server's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// Clears the log of changes, as a compaction of etcd does.
    ///
    /// Watches and lists that continue from an earlier version then fail with the status 410
    /// (Expired).
    pub fn compact(&self) {
        self.with(Cluster::compact);
    }

    /// Returns the number of open watches of a resource, such as `deployments.apps`.
    ///
    /// A watch is open until its client drops the stream, or the server ends it.
    #[must_use]
    pub fn open_watches(&self, resource: &str) -> usize {
        self.shared.watches.lock().open.values().filter(|open| *open == resource).count()
    }

    /// Ends all watches, as a restart of a real server does.
    ///
    /// Each client then continues its watch from the last version that it has received.
    pub fn end_watches(&self) {
        self.shared.watches.lock().open.clear();
        self.shared.changed.notify_waiters();
    }

    fn handle(&self, request: &http::Request<Bytes>) -> http::Response<ResponseBody> {
        let now = self.now();
        let response = self.with(|cluster| cluster.handle(now, &self.access, request));
        let (code, content_type, body) = match response {
            Response::Json(code, json) => (code, "application/json", full(self.shared.text(&json))),
            Response::Text(code, text) => (code, "text/plain; charset=utf-8", full(text.into())),
            Response::Watch(watch) => (200, "application/json", self.watch_body(*watch)),
        };
        let mut response = http::Response::new(body);
        if let Ok(code) = http::StatusCode::from_u16(code) {
            *response.status_mut() = code;
        }
        let content_type = http::HeaderValue::from_static(content_type);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }

    fn watch_body(&self, watch: Watch) -> ResponseBody {
        let now = Instant::now();
        let id = {
            let mut watches = self.shared.watches.lock();
            watches.next += 1;
            let id = watches.next;
            watches.open.insert(id, watch.resource());
            id
        };
        let state = WatchState {
            id,
            shared: Arc::clone(&self.shared),
            ends: watch.timeout().and_then(|timeout| now.checked_add(timeout)),
            bookmark_at: now + BOOKMARK_INTERVAL,
            has_ended: false,
            watch,
        };
        let frames = stream::unfold(state, |mut state| async move {
            let text = state.next().await?;
            Some((Ok(Frame::data(text)), state))
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("access", &self.access).finish_non_exhaustive()
    }
}

impl tower::Service<http::Request<Body>> for ApiServer {
    type Response = http::Response<ResponseBody>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            Ok(server.handle(&http::Request::from_parts(parts, body)))
        })
    }
}

fn full(bytes: Bytes) -> ResponseBody {
    Full::new(bytes).boxed_unsync()
}

/// Returns JSON as text. `to_vec` takes a third of the time of `Display`, which checks each
/// part for UTF-8 again.
fn to_bytes(json: &Value) -> Bytes {
    serde_json::to_vec(json).expect("the keys of a JSON object are text").into()
}

fn tokio_clock() -> Clock {
    let begin = std::sync::OnceLock::new();
    Arc::new(move || {
        // The clock of tokio is read for the first time at the first request. At that time, the
        // runtime of the test exists and may have paused it.
        let passed = begin.get_or_init(Instant::now).elapsed();
        START.saturating_add(passed).unwrap_or(Timestamp::MAX)
    })
}

/// The stream of a watch, from which a client receives events.
struct WatchState {
    id: u64,
    shared: Arc<Shared>,
    watch: Watch,
    /// The time at which the server ends the watch, or `None` if the client has set no timeout.
    ends: Option<Instant>,
    bookmark_at: Instant,
    has_ended: bool,
}

impl WatchState {
    /// Waits for the next events, and returns them as lines. Returns `None` after the end of
    /// the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.has_ended {
                return None;
            }
            // The notification is enabled before the events are read, so that a later change
            // wakes the wait below.
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if !self.shared.watches.lock().open.contains_key(&self.id) {
                return None;
            }
            let events = self.shared.cluster.lock().next_events(&mut self.watch);
            self.has_ended = self.watch.is_over();
            if !events.is_empty() {
                return Some(self.lines(&events));
            }
            let end = async {
                match self.ends {
                    Some(ends) => tokio::time::sleep_until(ends).await,
                    None => std::future::pending().await,
                }
            };
            let bookmark = async {
                if self.watch.has_bookmarks() {
                    tokio::time::sleep_until(self.bookmark_at).await;
                } else {
                    std::future::pending().await
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = end => return None,
                () = bookmark => {
                    self.bookmark_at += BOOKMARK_INTERVAL;
                    return Some(self.lines(&[self.watch.next_bookmark()]));
                }
            }
        }
    }

    fn lines(&self, events: &[Event]) -> Bytes {
        let mut lines = Vec::new();
        for Event(kind, object) in events {
            lines.extend_from_slice(b"{\"object\":");
            lines.extend_from_slice(&self.shared.text(object));
            lines.extend_from_slice(format!(",\"type\":\"{kind}\"}}\n").as_bytes());
        }
        lines.into()
    }
}

impl Drop for WatchState {
    fn drop(&mut self) {
        self.shared.watches.lock().open.remove(&self.id);
    }
}
