//! How a site is made.

use std::fmt;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, watch};

use crate::hosts::Hosts;
use crate::rows::Detail;
use crate::samples::{Samples, keep_sampling, unix_time};
use crate::site::{Inner, Site};
use crate::source::{DetailOf, Source};
use crate::turns::Turns;

/// Makes a [`Site`]. Where nothing is said: titled with the queue's name, without metrics, and
/// answering under the names of this machine's loopback alone.
#[must_use = "a builder serves nothing before `build`"]
pub struct Builder<K> {
    source: Box<dyn FnOnce(DetailOf<K>) -> Box<dyn Source> + Send>,
    detail: DetailOf<K>,
    title: Option<String>,
    registry: Option<Arc<Registry>>,
    ready: Box<dyn Fn() -> bool + Send + Sync>,
    healthy: Box<dyn Fn() -> bool + Send + Sync>,
    hosts: Hosts,
    max_connections: usize,
}

impl<K> Builder<K> {
    pub(crate) fn new(
        source: impl FnOnce(DetailOf<K>) -> Box<dyn Source> + Send + 'static,
    ) -> Self {
        Self {
            source: Box::new(source),
            detail: Box::new(|_| Detail::new()),
            title: None,
            registry: None,
            ready: Box::new(|| true),
            healthy: Box::new(|| true),
            hosts: Hosts::default(),
            max_connections: 64,
        }
    }

    /// What the page is headed with.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// What `/metrics` shows. The queue is in it if it was
    /// [built with it](requeue::Builder::metrics).
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use requeue::{Queue, metrics::Metrics};
    /// use requeue_http::Site;
    /// use std::sync::Arc;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let mut registry = Registry::default();
    /// let metrics = Metrics::register(&mut registry);
    /// let queue: Queue<String> = Queue::builder().name("pods").metrics(&metrics).build()?;
    /// let site = Site::builder(queue).registry(Arc::new(registry)).build();
    /// # Ok::<(), requeue::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub fn registry(mut self, registry: Arc<Registry>) -> Self {
        self.registry = Some(registry);
        self
    }

    /// What the program knows of a key besides, shown beside it. Called for each key of an answer;
    /// it should be quick, and must not block.
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::{Detail, Site};
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let errors = Arc::new(Mutex::new(HashMap::<String, String>::new()));
    /// let site = Site::builder(Queue::<String>::new())
    ///     .detail(move |key| match errors.lock().unwrap().get(key) {
    ///         Some(error) => Detail::new().field("last error", error),
    ///         None => Detail::new(),
    ///     })
    ///     .build();
    /// # });
    /// ```
    pub fn detail(mut self, detail: impl Fn(&K) -> Detail + Send + Sync + 'static) -> Self {
        self.detail = Box::new(detail);
        self
    }

    /// Whether `/readyz` may say so; the queue is asked besides.
    pub fn ready(mut self, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.ready = Box::new(ready);
        self
    }

    /// Whether `/healthz` may say so: no longer, when only a restart would help.
    pub fn healthy(mut self, healthy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.healthy = Box::new(healthy);
        self
    }

    /// A name or an address, without a port, under which this is served too, besides `localhost`
    /// and loopback addresses.
    pub fn host(mut self, host: &str) -> Self {
        self.hosts.allow(host);
        self
    }

    /// Whatever address it is served at, but no names: an address can't be made to lead to another
    /// machine. For a listener at `0.0.0.0` or `[::]`.
    pub fn any_address(mut self) -> Self {
        self.hosts.allow_any_address();
        self
    }

    /// Whatever name it is served under: only where something in front of it asks who is there.
    pub fn any_host(mut self) -> Self {
        self.hosts.allow_any();
        self
    }

    /// How many connections [`Site::serve`] has at most; 64 by default, at least 1. Half of them, at most, are
    /// streams of events. Where more come, one that asks for nothing just then is closed.
    pub fn max_connections(mut self, most: usize) -> Self {
        self.max_connections = most.max(1);
        self
    }

    /// Makes the site, and begins to sample the queue.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime with time.
    #[must_use = "what nobody mounts or serves is not seen"]
    pub fn build(self) -> Site {
        let source = (self.source)(self.detail);
        let title = self.title.or_else(|| source.name().map(str::to_owned));
        let inner = Arc::new(Inner {
            title: title.unwrap_or_else(|| "requeue".to_owned()),
            source,
            registry: self.registry,
            ready: self.ready,
            healthy: self.healthy,
            hosts: self.hosts,
            samples: Samples::default(),
            started: unix_time(),
            ticks: watch::Sender::new(Arc::from("")),
            ended: watch::Sender::new(false),
            max_connections: self.max_connections,
            streams: Arc::new(Semaphore::new(self.max_connections.div_ceil(2))),
            walks: Turns::new(),
        });
        inner.tick();
        tokio::spawn(keep_sampling(Arc::downgrade(&inner)));
        Site { inner }
    }
}

impl<K> fmt::Debug for Builder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("title", &self.title)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}
