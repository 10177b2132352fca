//! The election as one takes part in it.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use kube::Client;
use requeue::wait::jitter_source;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::calls::Calls;
use super::clock::{self, Clock};
use super::config::{Config, ConfigError};
use super::driver::Driver;
use super::election::Election;
use super::events::Events;
use super::leadership::{Leadership, LeadershipLost, Shared, View};
use super::status::Status;
use super::term::{RunError, Term};
use crate::metrics::Metrics;

/// Takes part in an election, and leads at most once.
///
/// After that it is used up: a process that wants to go on standing by makes another, which has
/// another identity.
#[must_use = "an elector does nothing until it is run"]
pub struct LeaderElector {
    client: Client,
    config: Config,
    shared: Arc<Shared>,
}

impl LeaderElector {
    /// An elector with an identity of its own: host and UUID.
    ///
    /// Give it a client of its own, such as [`Config::client`] makes: renewals must not wait behind
    /// the work that they are for.
    ///
    /// # Errors
    ///
    /// The configuration can't be safe; the error names its values.
    pub fn new(client: Client, config: Config) -> Result<Self, ConfigError> {
        Self::with_clock(client, config, Clock::new())
    }

    pub(super) fn with_clock(
        client: Client,
        config: Config,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let host = config.host.clone().unwrap_or_else(clock::host);
        let shared = Shared {
            lease: format!("{}/{}", config.namespace, config.name),
            identity: format!("{host}_{}", uuid::Uuid::new_v4()),
            lease_duration: config.lease_duration,
            clock,
            view: watch::Sender::new(View::default()),
            wake: Notify::new(),
            let_go: CancellationToken::new(),
            gauge: OnceLock::new(),
        };
        Ok(Self { client, config, shared: Arc::new(shared) })
    }

    /// Has the gauge `leader_election_master_status` show whether this process leads, under the name
    /// of the Lease. The first that is given shows it.
    pub fn metrics(self, metrics: &Metrics) -> Self {
        self.shared.gauge.get_or_init(|| metrics.leader(&self.config.name)).set(false);
        self
    }

    /// What this process calls itself in the Lease.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// Shows how the election stands, now and later.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.shared))
    }

    /// Waits until this process leads. [`run`](Self::run) does this, and what comes after it.
    ///
    /// From then on a task of the runtime renews the lease.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped, and has then withdrawn. Where that was in the middle of taking the Lease
    /// over, the Lease is held for its duration by nobody who lives.
    pub async fn acquire(self) -> Term {
        let Self { client, config, shared } = self;
        let Config { namespace, name, drain_timeout, .. } = config.clone();
        let events =
            config.events.then(|| Events::new(client.clone(), &namespace, &name, &shared.identity));
        let now = shared.clock.now();
        let election = Election::new(config, shared.identity.clone(), jitter_source(), now);
        let calls = Calls::new(client, &namespace, &name);
        let mut driver = Driver { election, calls, shared: Arc::clone(&shared) };

        tracing::info!(lease = shared.lease, identity = shared.identity, "standing by to lead");
        let token = Arc::new(driver.acquire().await);
        tracing::info!(lease = shared.lease, identity = shared.identity, %token, "became leader");
        shared.show_leading(true);
        if let Some(events) = &events {
            // It comes in its own time.
            drop(events.tell("became leader", token.uid()));
        }
        let leadership = Leadership {
            token: Arc::clone(&token),
            shared: Arc::clone(&shared),
            _hold: Arc::new(shared.let_go.clone().drop_guard()),
        };
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let end = driver.hold().await;
                shared.end(&end);
                if let Some(events) = events {
                    // News of the past: its failure was told of.
                    let _ = events.tell("stopped leading", token.uid()).await;
                }
                end
            }
        });
        Term { leadership: Some(leadership), shared, task, drain_timeout }
    }

    /// Waits until this process leads, and does `lead` as long as it does.
    ///
    /// Once `lead` has ended, and every clone of its [`Leadership`] is gone, the lease is released;
    /// where some are left after [`Config::drain_timeout`], it is not, and runs out by itself.
    ///
    /// The lease is renewed by a task beside it. Work that blocks all threads of the runtime keeps
    /// that from being done: the lease is lost, and what blocks can't be told.
    ///
    /// # Errors
    ///
    /// The lease is lost: then `lead` is dropped at once, wherever it waits. Most programs had
    /// better end here.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with time and I/O. A panic of `lead` goes on to the caller, and
    /// the lease is not released.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops `lead` and ends leading. The lease is not released, as nobody knows what
    /// `lead` has left behind.
    ///
    /// ```no_run
    /// # async fn reconcile_all() {}
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use requeue_kube::leader::{Config, LeaderElector};
    ///
    /// let config = Config::new("default", "web-controller");
    /// let client = config.client(kube::Config::infer().await?)?;
    /// LeaderElector::new(client, config)?.run(|_leadership| reconcile_all()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<F, L>(self, lead: F) -> Result<L::Output, LeadershipLost>
    where
        F: FnOnce(Leadership) -> L,
        L: Future,
    {
        match self.run_until(pending(), lead).await {
            Ok(Some(output)) => Ok(output),
            Err(RunError::Lost(lost)) => Err(lost),
            // Neither comes without a stop.
            Ok(None) | Err(RunError::Undrained(_)) => Err(LeadershipLost::Abandoned),
        }
    }

    /// As [`run`](Self::run), until `stop`: then `lead` is told, by [`Leadership::stopping`], and
    /// has [`Config::drain_timeout`] to end, while the lease is still renewed.
    ///
    /// It is `None` when it was stopped before it led.
    ///
    /// # Errors
    ///
    /// The lease is lost, or `lead` has not ended in time. It was dropped in both cases, and the
    /// lease is not released.
    ///
    /// # Panics
    ///
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn reconcile(_key: u32) {}
    /// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use requeue_kube::leader::{Config, LeaderElector};
    ///
    /// let elector = LeaderElector::new(client, Config::new("default", "web-controller"))?;
    /// let ctrl_c = async { tokio::signal::ctrl_c().await.unwrap() };
    /// elector
    ///     .run_until(ctrl_c, async |leadership| {
    ///         for key in 0.. {
    ///             tokio::select! {
    ///                 biased;
    ///                 () = leadership.stopping() => break,
    ///                 () = std::future::ready(()) => reconcile(key).await,
    ///             }
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until<S, F, L>(self, stop: S, lead: F) -> Result<Option<L::Output>, RunError>
    where
        S: Future<Output = ()>,
        F: FnOnce(Leadership) -> L,
        L: Future,
    {
        let mut stop = pin!(stop);
        let term = tokio::select! {
            biased;
            () = &mut stop => return Ok(None),
            term = self.acquire() => term,
        };
        let leadership = term.leadership();
        let drain = async {
            stop.await;
            term.shared.clock.reach(term.drained_by()).await;
        };
        let ended = tokio::select! {
            biased;
            lost = term.lost() => Err(RunError::Lost(lost)),
            output = lead(leadership) => Ok(output),
            () = drain => Err(RunError::Undrained(term.drain_timeout)),
        };
        match ended {
            Ok(output) => {
                if let Err(error) = term.release().await {
                    tracing::warn!(%error, "the lease runs out by itself");
                }
                Ok(Some(output))
            }
            Err(error) => {
                term.over().await;
                Err(error)
            }
        }
    }
}

impl fmt::Debug for LeaderElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderElector")
            .field("config", &self.config)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
