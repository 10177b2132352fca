//! The builder of a site.

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

/// Builds a [`Site`] from a queue and settings.
///
/// By default, the title is the name of the queue, and the site has no metrics. The site answers
/// only requests whose host is `localhost` or a loopback address.
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
    /// Creates a builder with the default settings. [`build`](Self::build) calls `finish` with
    /// the parts of the source and the settings.
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

    /// Sets the title that the dashboard shows.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets the registry whose metrics `/metrics` returns.
    ///
    /// The registry contains the metrics of a queue only if the queue's
    /// [metrics](requeue::Builder::metrics) were created with this registry.
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

    /// Sets a function that returns additional properties of a key, which the dashboard and the
    /// API show.
    ///
    /// The site calls the function for each key of a response. The function should return
    /// quickly, and must not block. If the function panics, the key is shown without additional
    /// properties.
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

    /// Adds a table to the dashboard and to `/api/v1/sections`. The table is below the tables
    /// that were added earlier.
    ///
    /// `section` returns the table. The site calls this function for each request for the tables,
    /// and an open dashboard sends a request every 2 s. The function should return quickly, and
    /// must not block. If the function returns `None` or panics, the response does not contain
    /// the table.
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

    /// Sets the history from which the site reads the past runs of keys and the parked keys.
    ///
    /// Without a history, the site shows no past runs. It also does not show the keys that a
    /// queue in memory has given up.
    pub fn history(mut self, history: &History) -> Self {
        self.history = Some(history.clone());
        self
    }

    /// Allows clients with this token to change the queue: add, cancel, run now, revive, pause
    /// and resume. If the queue is in a store, these clients can also change the rate of the
    /// queue, its groups and its schedules. They can also claim keys and run them.
    ///
    /// A site without tokens is read-only. A client sends the token in the header `Authorization:
    /// Bearer TOKEN` of a POST request. Each address can send 10 wrong tokens per minute. All
    /// loopback addresses together count as one address. The site reports each change as an event
    /// of `tracing`, with the client's address, and the key, the group or the number of keys.
    ///
    /// The limit on wrong tokens needs the address of each client. A server that mounts the
    /// [router](Site::router) must provide it with axum's
    /// `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise, all clients share one
    /// limit.
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

    /// Gives clients with this token a role. A token can have several roles, and several tokens
    /// can have the same role.
    ///
    /// [`admin`](Self::admin) gives a token [`Role::Admin`]. If any token has [`Role::Read`],
    /// requests that read also need a token. A browser then asks the user for a name and a
    /// password. The password is the token, and the name is ignored.
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

    /// Sets the control that executes the actions on a queue in memory. The default is the queue
    /// itself.
    ///
    /// If the queue is in a store, the control has no effect.
    #[doc(hidden)]
    pub fn control(mut self, control: impl Control<K> + 'static) -> Self {
        self.control = Some(Arc::new(control));
        self
    }

    /// Makes the dashboard show how many of the program's `total` workers are busy.
    ///
    /// `busy` returns the number of busy workers. The site calls `busy` each second and for each
    /// request for the summary. The function must not block.
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

    /// Sets the example that a dashboard without keys shows: the code or command that adds a key.
    /// The site replaces `{queue}` with the name of the queue.
    pub fn hint(mut self, how_to_add: impl Into<String>) -> Self {
        self.settings.hint = Some(how_to_add.into());
        self
    }

    /// Sets the longest time for which a key should wait for a worker after it has become ready.
    ///
    /// While the oldest ready key has waited longer, the dashboard shows its age in amber.
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

    /// Sets an additional check for `/readyz`, which also checks the state of the queue.
    ///
    /// If the check returns false, the response has the status 503.
    pub fn ready(mut self, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.ready = Box::new(ready);
        self
    }

    /// Sets the check for `/healthz`.
    ///
    /// If the check returns false, the response has the status 503. The check should return false
    /// only if a restart of the program is needed.
    pub fn healthy(mut self, healthy: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.healthy = Box::new(healthy);
        self
    }

    /// Allows requests whose `Host` header contains this name or address. The site always allows
    /// `localhost` and loopback addresses.
    ///
    /// `host` must not contain a port. To allow several hosts, call the method for each of them.
    pub fn host(mut self, host: &str) -> Self {
        self.settings.hosts.allow_host(host);
        self
    }

    /// Allows requests whose `Host` header contains any IP address. Host names are not affected.
    ///
    /// Use this method if the listener is bound to `0.0.0.0` or `[::]`. Another site can redirect
    /// its host name to this machine (DNS rebinding), but it cannot redirect an address.
    pub fn any_address(mut self) -> Self {
        self.settings.hosts.any_address = true;
        self
    }

    /// Allows requests whose `Host` header contains any name or address.
    ///
    /// Use this method only behind a proxy that authenticates its clients, or with TLS, because browsers then compare
    /// the name with the certificate. Otherwise, scripts of other sites can read the responses.
    pub fn any_host(mut self) -> Self {
        self.settings.hosts.any = true;
        self
    }

    /// Sets the maximum number of connections that [`Site::serve`] has open at the same time.
    ///
    /// The default is 64, and the minimum is 1. Up to half of the connections, rounded up, can be
    /// streams of `/api/v1/events`. Up to a quarter, rounded up, can be claims that wait for
    /// keys. Up to an eighth, but at least one, can be requests that search for keys, including
    /// those that wait for another search. If all connections are open, a new connection replaces
    /// an idle connection.
    ///
    /// The server also accepts eight additional connections for probes. It uses them while no
    /// other connection is idle. On these connections, it answers `/healthz` and `/readyz`, and
    /// refuses all other requests with the status 503.
    pub fn max_connections(mut self, most: usize) -> Self {
        self.settings.max_connections = most.max(1);
        self
    }

    /// Builds the site, and starts a task that samples the queue each second.
    ///
    /// # Panics
    ///
    /// Panics if the caller is not in a tokio runtime with timers.
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
