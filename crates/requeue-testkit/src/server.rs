//! The state machine behind a tower service, for kube's client.

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

/// The time between two bookmarks of a watch without events.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// The number of objects whose texts are kept.
const TEXTS: usize = 32;

/// The time of a new server's clock: 2026-01-01T00:00:00Z.
pub(crate) const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;

/// An API server in memory.
///
/// It is a [tower service](tower::Service), which kube's client calls instead of a server on the network. Clones share
/// the same objects.
///
/// Its clock starts at 2026-01-01T00:00:00Z, and follows tokio's clock, which a test can pause.
/// [`with_clock`](Self::with_clock) replaces it.
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
    /// Wakes the watches, in the order in which they began to wait.
    changed: Notify,
    watches: Mutex<Watches>,
    /// The last objects that were sent, and their texts: the response to a write and all watches send the same object.
    texts: Mutex<VecDeque<(Arc<Value>, Bytes)>>,
    clock: Clock,
}

impl Shared {
    /// Returns an object as text.
    fn text(&self, object: &Arc<Value>) -> Bytes {
        if Arc::strong_count(object) == 1 {
            // It is not stored.
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

/// The open watches, each with its resource.
#[derive(Default)]
struct Watches {
    next: u64,
    open: BTreeMap<u64, String>,
}

impl ApiServer {
    /// Creates a server with the namespaces of a new cluster.
    ///
    /// It remembers the last 100,000 changes and requests.
    #[must_use]
    pub fn new() -> Self {
        Self::with_cluster(Cluster::new(0, 100_000))
    }

    /// Creates a server with the state of a cluster.
    #[must_use]
    pub fn with_cluster(cluster: Cluster) -> Self {
        Self::build(cluster, tokio_clock())
    }

    /// Replaces the clock, which sets creation times and deletion times.
    ///
    /// Call it before the server is cloned or has clients: they keep the clock that they have, and the new server starts
    /// with a copy of the state.
    #[must_use]
    pub fn with_clock(self, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::build(self.snapshot(), Arc::new(clock))
    }

    pub(crate) fn build(cluster: Cluster, clock: Clock) -> Self {
        let (cluster, changed, watches) = (Mutex::new(cluster), Notify::new(), Mutex::default());
        let shared = Shared { cluster, changed, watches, texts: Mutex::default(), clock };
        Self { shared: Arc::new(shared), access: Arc::new(Access::admin()) }
    }

    /// Returns a client that may do everything. Its namespace is `default`.
    ///
    /// # Panics
    ///
    /// The function is called outside a runtime of tokio.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Returns a view of the same server for a user with these permissions.
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

    /// Calls a function with the cluster, and then wakes the watches.
    ///
    /// No request is handled at the same time. The function must not use a client of this server, for which it would
    /// wait forever.
    pub fn with<T>(&self, function: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.shared.cluster.lock();
        let before = cluster.version();
        let result = function(&mut cluster);
        if cluster.version() != before {
            self.shared.changed.notify_waiters();
        }
        result
    }

    /// Reads the objects and the log, without waking the watches.
    pub(crate) fn with_store<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(self.shared.cluster.lock().store())
    }

    /// Returns a copy of the state, which shares the objects.
    #[must_use]
    pub fn snapshot(&self) -> Cluster {
        self.shared.cluster.lock().clone()
    }

    /// Returns the requests since the start, the oldest first.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.shared.cluster.lock().records().cloned().collect()
    }

    /// Returns the objects of a resource, such as `deployments.apps`, in the order of a list.
    #[must_use]
    pub fn objects(&self, resource: &str) -> Vec<Arc<Value>> {
        self.shared.cluster.lock().objects(resource)
    }

    /// Returns the time of the server's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// Forgets the log of changes, as a compaction of etcd does.
    ///
    /// Watches and lists that continue from an earlier version then fail with 410 (Expired).
    pub fn compact(&self) {
        self.with(Cluster::compact);
    }

    /// Returns the number of open watches of a resource, such as `deployments.apps`.
    ///
    /// A client closes a watch when it drops the stream.
    #[must_use]
    pub fn open_watches(&self, resource: &str) -> usize {
        self.shared.watches.lock().open.values().filter(|open| *open == resource).count()
    }

    /// Ends all watches, as a restart of a real server does.
    ///
    /// Clients then continue each watch from the last version that they have seen.
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

/// Returns the JSON as text. Its `Display` takes three times as long, because it checks each part again.
fn to_bytes(json: &Value) -> Bytes {
    serde_json::to_vec(json).expect("the keys of a JSON object are text").into()
}

fn tokio_clock() -> Clock {
    let begin = std::sync::OnceLock::new();
    Arc::new(move || {
        // Tokio's clock is read first in the runtime of the test, which may have paused it.
        let passed = begin.get_or_init(Instant::now).elapsed();
        START.saturating_add(passed).unwrap_or(Timestamp::MAX)
    })
}

/// A watch whose events a client receives.
struct WatchState {
    id: u64,
    shared: Arc<Shared>,
    watch: Watch,
    /// The time at which the server closes the watch.
    ends: Option<Instant>,
    bookmark_at: Instant,
    has_ended: bool,
}

impl WatchState {
    /// Returns the next lines, or `None` at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.has_ended {
                return None;
            }
            // Changes after this point wake the loop below.
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
