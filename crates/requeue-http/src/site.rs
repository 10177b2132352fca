//! The site of a queue: its builder, its router and its server.

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use requeue::{Key, Queue};
use tokio::sync::watch;

use crate::builder::Builder;
use crate::cursors::Cursors;
use crate::keys::ByteKey;
use crate::memory::{Claims, Shown};
use crate::operators::ActionLog;
#[cfg(feature = "store")]
use crate::queues::{self, Queues};
use crate::routes;
use crate::server;
use crate::source::Parts;
use crate::state::{Settings, SiteState};
#[cfg(feature = "store")]
use crate::store::Stored;

/// The dashboard, the metrics and the API of a queue.
///
/// A clone is cheap, and is a handle to the same site. The site samples the queue each second while
/// a handle or a router exists.
#[derive(Clone)]
pub struct Site {
    pages: Pages,
}

#[derive(Clone)]
enum Pages {
    Queue(Arc<SiteState>),
    #[cfg(feature = "store")]
    All(Arc<Queues>),
}

/// The time after the shutdown in which clients can read the rest of their responses.
const GRACE: Duration = Duration::from_secs(1);

impl Site {
    /// Returns a builder for the site of a queue in memory whose keys are text or bytes.
    pub fn builder<K, S>(queue: Queue<K, S>) -> Builder<K>
    where
        K: ByteKey,
        S: BuildHasher + Send + Sync + 'static,
    {
        Self::builder_with(queue, K::to_bytes, K::from_bytes)
    }

    /// Returns a builder for the site of a queue in memory with keys of any type.
    ///
    /// `show` returns the bytes that represent a key, which are usually text. Different keys must
    /// have different bytes. `read` returns the key with the given bytes, or `None` if no key has
    /// them.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::Site;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let queue: Queue<(String, u64)> = Queue::new();
    /// let site = Site::builder_with(
    ///     queue,
    ///     |(tenant, id)| format!("{tenant}/{id}").into_bytes().into(),
    ///     |bytes| {
    ///         let (tenant, id) = std::str::from_utf8(bytes).ok()?.split_once('/')?;
    ///         Some((tenant.to_owned(), id.parse().ok()?))
    ///     },
    /// );
    /// let site = site.build();
    /// # });
    /// ```
    pub fn builder_with<K, S>(
        queue: Queue<K, S>,
        show: impl Fn(&K) -> Cow<'_, [u8]> + Send + Sync + 'static,
        read: impl Fn(&[u8]) -> Option<K> + Send + Sync + 'static,
    ) -> Builder<K>
    where
        K: Key,
        S: BuildHasher + Send + Sync + 'static,
    {
        let (show, read) = (Box::new(show), Box::new(read));
        Builder::new(|Parts { detail, history, control }, frame| {
            let (cursors, actions) = (Cursors::default(), ActionLog::default());
            let control = control.unwrap_or_else(|| Arc::new(queue.clone()));
            let keeps_times = queue.entries_in_flight(0, 0).is_some();
            let shown = Box::new(Shown {
                queue,
                keeps_times,
                show,
                read,
                detail,
                history,
                claims: Claims::start(Arc::clone(&control)),
                control,
                cursors,
                actions,
            });
            Self { pages: Pages::Queue(SiteState::start(shown, frame, None)) }
        })
    }

    /// Returns a builder for the site of a queue in a store.
    ///
    /// The keys and their numbers are those of the whole queue. The counters, rates and latencies
    /// are those of all processes after the site has read them from the store, and those of this
    /// process before.
    ///
    /// A task reads the numbers of keys from the store each second. If these reads are slow, they
    /// are less frequent, so that they take at most about a fifth of the time. The dashboard and
    /// the API show the age of the numbers. Another task asks the store each second whether the
    /// queue is paused. If the store does not answer within 5 s, `/readyz` returns 503. To find the
    /// keys that have run the longest, the site reads only the first 256 running keys by name.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_http::Site;
    /// use requeue_store::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let store = Store::connect(&url).await?;
    /// store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// let site = Site::of_store(queue).build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "store")]
    pub fn of_store(queue: requeue_store::Queue) -> Builder<requeue_store::Key> {
        Builder::new(|Parts { detail, history, .. }, frame| {
            let stored = Stored::new(queue, detail.into(), history);
            Self { pages: Pages::Queue(SiteState::start(Box::new(stored), frame, None)) }
        })
    }

    /// Returns a builder for the site of all queues of a store. Its page is a table of the queues,
    /// with a link to the dashboard of each queue.
    ///
    /// The dashboard, the API and the probes of a queue are below the path `queues/NAME/`. Special
    /// characters of the name are percent-encoded. A new queue is added to the table after a few
    /// seconds, and a dropped queue is removed from it.
    ///
    /// `open` sets options of each queue before the site opens it, such as its metrics. The site
    /// opens a queue when a client requests the table, the metrics, or the page of the queue. It
    /// closes the queue 5 minutes after the last of these requests. When all queues are closed, the
    /// site sends no more queries to the store. The site reads the numbers of keys at most every 2
    /// s, and all clients share them.
    ///
    /// The settings of the builder apply to the dashboards of all queues. Only the title applies to
    /// the page with the table instead.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::Router;
    /// use requeue_http::Site;
    /// use requeue_store::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let store = Store::connect(&url).await?;
    /// store.migrate().await?;
    /// let site = Site::of_all_queues(store, |opening| opening).build();
    /// let app: Router = Router::new().nest_service("/jobs", site.router());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "store")]
    pub fn of_all_queues(
        store: requeue_store::Store,
        open: impl Fn(requeue_store::OpenOptions) -> requeue_store::OpenOptions + Send + Sync + 'static,
    ) -> Builder<requeue_store::Key> {
        Builder::new(|Parts { detail, history, .. }, frame| {
            let queues = Queues::start(store, Box::new(open), detail.into(), history, frame);
            Self { pages: Pages::All(queues) }
        })
    }

    fn ended(&self) -> &watch::Sender<bool> {
        match &self.pages {
            Pages::Queue(state) => &state.ended,
            #[cfg(feature = "store")]
            Pages::All(queues) => &queues.ended,
        }
    }

    fn settings(&self) -> &Settings {
        match &self.pages {
            Pages::Queue(state) => &state.settings,
            #[cfg(feature = "store")]
            Pages::All(queues) => &queues.frame.settings,
        }
    }

    /// Returns the state of the site of one queue.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<SiteState> {
        match &self.pages {
            Pages::Queue(state) => state,
            #[cfg(feature = "store")]
            Pages::All(_) => panic!("the site of one queue"),
        }
    }

    /// Returns a router with all paths of the site. The router can be nested below any path.
    ///
    /// If the router is nested at `/queue` with `nest_service`, the dashboard is at `/queue` and
    /// `/queue/`. With `nest`, it is only at `/queue`.
    pub fn router(&self) -> Router {
        match &self.pages {
            Pages::Queue(state) => routes::router(Arc::clone(state)),
            #[cfg(feature = "store")]
            Pages::All(queues) => queues::router(Arc::clone(queues)),
        }
    }

    /// Serves the site on a TCP or Unix socket, until [`shutdown`](Self::shutdown) is called.
    ///
    /// After the shutdown, clients have one second to read the rest of their responses.
    ///
    /// Limits protect the program from its clients:
    ///
    /// - the maximum number of [connections](Builder::max_connections);
    /// - 10 s for the head of a request, also if the connection has had earlier requests;
    /// - 32 KiB for the head of a request;
    /// - 30 s in which a client reads no part of its response.
    ///
    /// If another server mounts the [router](Self::router), that server must set its own limits.
    ///
    /// The permissions of the file of a Unix socket, and of its directories, determine which users
    /// can connect. Each request must name an allowed [host](Builder::host), such as `localhost`.
    ///
    /// The limit on wrong tokens applies to each client, which is identified by its IP address. If
    /// the addresses of the listener are not of the type `std::net::SocketAddr`, all of its clients
    /// count as one client.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::Site;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("page");
    /// let site = Site::builder(Queue::<String>::new()).build();
    /// // `curl --unix-socket PATH http://localhost/`
    /// let listener = tokio::net::UnixListener::bind(path)?;
    /// let server = tokio::spawn({
    ///     let site = site.clone();
    ///     async move { site.serve(listener).await }
    /// });
    /// site.shutdown();
    /// server.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The method currently returns no error. If `accept` fails, the server tries again after a
    /// second.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the listener and all connections. The site itself continues, and
    /// can be served again.
    pub async fn serve<L: Listener<Addr: 'static>>(&self, listener: L) -> io::Result<()> {
        let ended = self.ended().subscribe();
        let mut over = ended.clone();
        let probes = match &self.pages {
            Pages::Queue(state) => routes::probe_router(Arc::clone(state)),
            #[cfg(feature = "store")]
            Pages::All(queues) => queues::probe_router(Arc::clone(queues)),
        };
        let most = self.settings().max_connections;
        let server = server::serve(listener, self.router(), probes, most, ended);
        tokio::select! {
            () = server => {}
            () = async {
                // The result is ignored, because the sender exists as long as `self`.
                let _ = over.wait_for(|&ended| ended).await;
                // The time is limited, because a slow client must not delay the shutdown of the
                // program.
                tokio::time::sleep(GRACE).await;
            } => {}
        }
        Ok(())
    }

    /// Shuts the site down. Open dashboards receive the event `ended`, `/readyz` returns 503, and
    /// [`serve`](Self::serve) returns.
    ///
    /// Call this method when the program shuts down. Further calls have no effect.
    pub fn shutdown(&self) {
        match &self.pages {
            Pages::Queue(state) => state.end(),
            #[cfg(feature = "store")]
            Pages::All(queues) => queues.end(),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = match &self.pages {
            Pages::Queue(state) => &*state.title,
            #[cfg(feature = "store")]
            Pages::All(queues) => queues.title(),
        };
        f.debug_struct("Site").field("title", &title).finish_non_exhaustive()
    }
}
