//! Builds a site.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use crate::access::{Access, AccessToken, Role};
use crate::control::Control;
use crate::history::History;
use crate::hosts::Hosts;
use crate::rows::Detail;
use crate::sections::Section;
use crate::site::Site;
use crate::source::{DetailOf, Parts};
use crate::state::{Frame, Jobs, Settings};

/// Builds a [`Site`].
///
/// By default, the title is the name of the queue, there are no metrics, and only requests for `localhost` and
/// loopback addresses are answered.
#[must_use = "a builder has no effect until `build`"]
pub struct Builder<K> {
    finish: Box<dyn FnOnce(Parts<K>, Frame) -> Site + Send>,
    access: Access,
    control: Option<Arc<dyn Control<K>>>,
    history: Option<History>,
    detail: DetailOf<K>,
    title: Option<String>,
    settings: Settings,
}

impl<K> Builder<K> {
    /// Creates a builder. `finish` builds the site from the parts and the settings.
    pub(crate) fn new(finish: impl FnOnce(Parts<K>, Frame) -> Site + Send + 'static) -> Self {
        Self {
            finish: Box::new(finish),
            access: Access::default(),
            control: None,
            history: None,
            detail: Box::new(|_| Detail::new()),
            title: None,
            settings: Settings {
                jobs: None,
                hint: None,
                target: None,
                sections: Vec::new(),
                registry: None,
                ready: Box::new(|| true),
                healthy: Box::new(|| true),
                hosts: Hosts::default(),
                max_connections: 64,
            },
        }
    }

    /// Sets the title of the dashboard.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the registry that `/metrics` shows.
    ///
    /// The metrics of a queue are included if its [metrics](requeue::Builder::metrics) use this registry.
    ///
    /// # Examples
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
        self.settings.registry = Some(registry);
        self
    }

    /// Sets the function that returns more properties of a key.
    ///
    /// The function is called for each key of a response. The function should be quick, and must not block. If the
    /// function panics, the key is shown without more properties.
    ///
    /// # Examples
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

    /// Adds a table to the dashboard and to `/api/v1/sections`, below the earlier tables.
    ///
    /// The function is called for each request for the tables. An open dashboard sends a request every 2 s. The
    /// function should be quick, and must not block. While the function returns `None`, or if it panics, the table is
    /// not shown.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::{Section, Site};
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// static HITS: AtomicUsize = AtomicUsize::new(0);
    ///
    /// let site = Site::builder(Queue::<String>::new())
    ///     .section(|| {
    ///         let hits = HITS.load(Ordering::Relaxed).to_string();
    ///         Some(Section::new("Cache", ["value", "count"]).row(["hits", &hits]))
    ///     })
    ///     .build();
    /// # });
    /// ```
    pub fn section(
        mut self,
        section: impl Fn() -> Option<Section> + Send + Sync + 'static,
    ) -> Self {
        self.settings.sections.push(Box::new(section));
        self
    }

    /// Sets the history whose runs and parked keys are shown.
    ///
    /// Without a history, the site shows neither past runs nor keys that a queue in memory has given up.
    pub fn history(mut self, history: &History) -> Self {
        self.history = Some(history.clone());
        self
    }

    /// Allows clients with this token to change the queue: add, cancel, run now, revive, pause and resume. In a store,
    /// they can also change the rate of the queue, its groups and its schedules. They can also claim keys and work on
    /// them.
    ///
    /// Without a token, the site is read-only. The token must be in the header `Authorization: Bearer TOKEN` of a POST
    /// request. Each address can send 10 wrong tokens per minute. All loopback addresses count as one address. Each
    /// change is an event of `tracing`, with the client's address, and the key, the group or the number of keys.
    ///
    /// A server that mounts the [router](Site::router) must provide addresses with axum's
    /// `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise all clients share one limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::{AccessToken, Site};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let read_secret = || "0123456789abcdef".to_owned();
    /// let token = AccessToken::new(&read_secret())?;
    /// let site = Site::builder(Queue::<String>::new()).admin(token).build();
    /// # Ok::<(), requeue_http::TokenError>(())
    /// # }).unwrap();
    /// ```
    pub fn admin(self, token: AccessToken) -> Self {
        self.token(Role::Admin, token)
    }

    /// Gives clients with this token a role. A token can have several roles, and a role several tokens.
    ///
    /// [`admin`](Self::admin) gives a token [`Role::Admin`]. If a token has [`Role::Read`], reads also need a token.
    /// Browsers ask for it as a password; the name does not matter.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::{AccessToken, Role, Site};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let read_secret = || "0123456789abcdef".to_owned();
    /// // These clients can add keys and work on them, but cannot cancel them.
    /// let token = AccessToken::new(&read_secret())?;
    /// let site = Site::builder(Queue::<String>::new());
    /// let site = site.token(Role::Add, token).token(Role::Work, token).build();
    /// # Ok::<(), requeue_http::TokenError>(())
    /// # }).unwrap();
    /// ```
    pub fn token(mut self, role: Role, token: AccessToken) -> Self {
        self.access.give_role(token, role);
        self
    }

    /// Sets the control that changes a queue in memory, instead of the queue itself.
    ///
    /// The control has no effect on a queue in a store.
    #[doc(hidden)]
    pub fn control(mut self, control: impl Control<K> + 'static) -> Self {
        self.control = Some(Arc::new(control));
        self
    }

    /// Shows the number of busy workers among `total` workers.
    ///
    /// `busy` is called each second and for each summary. The function must not block.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::Site;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let queue: Queue<String> = Queue::new();
    /// let site = Site::builder(queue.clone()).jobs(8, move || queue.states().in_flight).build();
    /// # });
    /// ```
    pub fn jobs(mut self, total: usize, busy: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        self.settings.jobs = Some(Jobs { total, busy: Box::new(busy) });
        self
    }

    /// Sets the example of an add that an empty dashboard shows. `{queue}` is replaced with the name of the queue.
    pub fn hint(mut self, how_to_add: impl Into<String>) -> Self {
        self.settings.hint = Some(how_to_add.into());
        self
    }

    /// Sets the longest time for which a key should be ready before a run.
    ///
    /// While the oldest ready key is older, the dashboard shows its age in amber.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue_http::Site;
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let queue: Queue<String> = Queue::builder().track_times().build()?;
    /// let site = Site::builder(queue).target(Duration::from_secs(30)).build();
    /// # Ok::<(), requeue::BuildError>(())
    /// # }).unwrap();
    /// ```
    pub const fn target(mut self, target: Duration) -> Self {
        self.settings.target = Some(target);
        self
    }

    /// Sets the check for `/readyz`, in addition to the state of the queue.
    ///
    /// While the check returns false, the response is 503.
    pub fn ready(mut self, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.ready = Box::new(ready);
        self
    }

    /// Sets the check for `/healthz`.
    ///
    /// While the check returns false, the response is 503. The check should return false only if a restart of the
    /// program is needed.
    pub fn healthy(mut self, healthy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.healthy = Box::new(healthy);
        self
    }

    /// Allows requests for a host name or address, in addition to `localhost` and loopback addresses.
    ///
    /// `host` is without a port. The method can be called for several hosts.
    pub fn host(mut self, host: &str) -> Self {
        self.settings.hosts.allow_host(host);
        self
    }

    /// Allows requests for any IP address, but not for any host name.
    ///
    /// Use this for a listener at `0.0.0.0` or `[::]`. Unlike a name, an address cannot be redirected to this machine by
    /// another site (DNS rebinding).
    pub fn any_address(mut self) -> Self {
        self.settings.hosts.any_address = true;
        self
    }

    /// Allows requests for any host.
    ///
    /// Use this only behind a proxy that authenticates, or with TLS, because browsers then compare the name with the
    /// certificate. Otherwise, scripts of other sites can read the responses.
    pub fn any_host(mut self) -> Self {
        self.settings.hosts.any = true;
        self
    }

    /// Sets the number of connections that [`Site::serve`] accepts at the same time.
    ///
    /// The default is 64, and the minimum is 1. Up to half of the connections, rounded up, can be streams of
    /// `/api/v1/events`. Up to a quarter can wait for keys of a claim. Up to an eighth, but at least one, can search for
    /// keys or wait for a search. When all connections are in use, a new connection replaces an idle connection.
    ///
    /// Eight more connections are reserved for probes. While no other connection is idle, these answer `/healthz` and
    /// `/readyz`, and respond with 503 to all other requests.
    pub fn max_connections(mut self, most: usize) -> Self {
        self.settings.max_connections = most.max(1);
        self
    }

    /// Builds the site, and starts to sample the queue each second.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime with timers.
    #[must_use = "a site has no effect until it is mounted or served"]
    pub fn build(self) -> Site {
        let parts = Parts { detail: self.detail, history: self.history, control: self.control };
        let (title, access) = (self.title, Arc::new(self.access));
        (self.finish)(parts, Frame { title, access, settings: Arc::new(self.settings) })
    }
}

impl<K> fmt::Debug for Builder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("title", &self.title)
            .field("hosts", &self.settings.hosts)
            .finish_non_exhaustive()
    }
}
