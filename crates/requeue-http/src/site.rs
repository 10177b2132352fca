//! What is served of one queue.

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use requeue::{Key, Queue};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::Builder;
use crate::cursors::Cursors;
use crate::hosts::Hosts;
use crate::keys::ShownKey;
use crate::memory::Shown;
use crate::routes;
use crate::samples::Samples;
use crate::server::{self, Listen};
use crate::source::Source;
use crate::turns::Turns;

/// The page, the metrics and the API of a queue. Handles are cheap to clone.
///
/// The queue is sampled each second for as long as there is a handle or a router.
#[derive(Clone)]
pub struct Site {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) title: String,
    pub(crate) source: Box<dyn Source>,
    pub(crate) registry: Option<Arc<Registry>>,
    pub(crate) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) healthy: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) hosts: Hosts,
    pub(crate) samples: Samples,
    /// Since when it is sampled, in seconds since 1970: another number after a restart.
    pub(crate) started: f64,
    /// The summary of each second, as JSON.
    pub(crate) ticks: watch::Sender<Arc<str>>,
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) max_connections: usize,
    /// A permit for each client of `/api/v1/events`.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) walks: Turns,
}

/// How long connections have to take in the last of it.
const GRACE: Duration = Duration::from_secs(1);

impl Site {
    /// A site of this queue, with keys that are text or bytes.
    pub fn builder<K, S>(queue: Queue<K, S>) -> Builder<K>
    where
        K: ShownKey,
        S: BuildHasher + Send + Sync + 'static,
    {
        Self::builder_with(queue, K::bytes, K::from_bytes)
    }

    /// A site of this queue: what is shown of a key, and which key is shown so.
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
        Builder::new(|detail| {
            Box::new(Shown { queue, show, read, detail, cursors: Cursors::default() })
        })
    }

    /// A site of a queue in a store: the keys are all processes', and so are their numbers; what is
    /// counted, its rates and latencies, and whether it takes keys, are this process's.
    ///
    /// The store is asked for the numbers each second, and less often where that takes it long; and
    /// for those of the running keys that have been so longest, of the first 256 by key.
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
        Builder::new(|detail| Box::new(crate::store::Stored::new(queue, detail)))
    }

    /// All of it, to be nested under whatever path: `nest_service` has it at `/queue` and at
    /// `/queue/`, `nest` at `/queue` alone.
    pub fn router(&self) -> Router {
        routes::router(Arc::clone(&self.inner))
    }

    /// Serves it until [`end`](Self::end), and then a second longer for clients that have not read
    /// all of it.
    ///
    /// A server of its own keeps to limits, so that no client can use up what the program needs: a number of
    /// [connections](Builder::max_connections); 10 s for the head of a request, which has 32 KiB at most, also
    /// on a connection that is kept alive; and 30 s in which a client reads nothing of a response. A
    /// server that mounts the [router](Self::router) needs limits of its own.
    ///
    /// # Errors
    ///
    /// None at present: an `accept` that fails is tried again.
    pub async fn serve(&self, listener: TcpListener) -> io::Result<()> {
        self.serve_on(listener).await
    }

    /// The same on a Unix socket: the mode of its file, and those of its directories, tell who can
    /// connect. Requests need a [host](Builder::host) that is allowed here, too; `localhost` is.
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
    ///     async move { site.serve_unix(listener).await }
    /// });
    /// site.end();
    /// server.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    #[cfg(unix)]
    pub async fn serve_unix(&self, listener: tokio::net::UnixListener) -> io::Result<()> {
        self.serve_on(listener).await
    }

    async fn serve_on(&self, listener: impl Listen) -> io::Result<()> {
        let ended = self.inner.ended.subscribe();
        let mut over = ended.clone();
        let server = server::serve(listener, self.router(), self.inner.max_connections, ended);
        tokio::select! {
            () = server => {}
            () = async {
                // It can't be gone: `self` has it.
                let _ = over.wait_for(|&ended| ended).await;
                tokio::time::sleep(GRACE).await;
            } => {}
        }
        Ok(())
    }

    /// The program ends: open pages are told so, `/readyz` is 503, and [`serve`](Self::serve)
    /// returns.
    pub fn end(&self) {
        self.inner.tick();
        self.inner.ended.send_replace(true);
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("title", &self.inner.title).finish_non_exhaustive()
    }
}

impl Inner {
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }
}
