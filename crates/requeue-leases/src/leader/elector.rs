//! The elector, through which a process takes part in an election.

use std::fmt;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use kube::Client;
use requeue::wait::JitterSource;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::driver::Driver;
use super::election::Election;
use super::leadership::{Leadership, Shared, View};
use super::lost::LeadershipLost;
use super::status::Status;
use super::term::Term;
use crate::clock::{self, Clock};
use crate::error::ConfigError;
use crate::events::Events;
use crate::metrics::LeaseMetrics;
use crate::requests::Requests;
use crate::simulation::unique_id;

/// Takes part in an election, and leads at most once.
///
/// An elector cannot be used after its term. To take part again, create another elector, which has
/// another identity.
#[must_use = "an elector does nothing until it is run"]
pub struct LeaderElector {
    client: Client,
    shared: Arc<Shared>,
}

impl LeaderElector {
    /// Creates an elector with a unique identity: the host's name and a UUID.
    ///
    /// Use a separate client, such as the client that [`Config::client`] creates, because renewals must not wait behind
    /// other requests of the process.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is not safe. The error names the values.
    pub fn new(client: Client, config: Config) -> Result<Self, ConfigError> {
        Self::with_clock(client, config, Clock::new())
    }

    pub(crate) fn with_clock(
        client: Client,
        config: Config,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let host = config.host.clone().unwrap_or_else(clock::host_name);
        let shared = Shared {
            lease: format!("{}/{}", config.namespace, config.name),
            // The identity is unique, because a process that starts again on a host must not
            // mistake the term of its predecessor for its own term.
            identity: format!("{host}_{}", unique_id()),
            config,
            clock,
            view: watch::Sender::new(View::default()),
            wake: Notify::new(),
            let_go: CancellationToken::new(),
            gauge: OnceLock::new(),
        };
        Ok(Self { client, shared: Arc::new(shared) })
    }

    /// Sets the metrics whose gauge `leader_election_master_status` shows whether this process
    /// leads, under the name of the Lease.
    ///
    /// Only the first call has an effect.
    pub fn metrics(self, metrics: impl AsRef<LeaseMetrics>) -> Self {
        self.shared
            .gauge
            .get_or_init(|| metrics.as_ref().leader_gauge(&self.shared.config.name))
            .set(0);
        self
    }

    /// Returns a handle that shows the current state of the election.
    ///
    /// The handle remains valid after the elector is dropped.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.shared))
    }

    /// Waits until this process leads.
    ///
    /// [`run`](Self::run) also performs the steps that follow.
    ///
    /// After that, a task of the runtime renews the lease.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this process withdraws from the election. If the future is dropped while the process
    /// takes the Lease over, no other replica can lead until the Lease expires.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use requeue_leases::leader::{Config, LeaderElector};
    ///
    /// # async fn work() {}
    ///
    /// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let elector = LeaderElector::new(client, Config::new("default", "web-controller"))?;
    /// let term = elector.acquire().await;
    /// tokio::select! {
    ///     // The drop of the work stops it at its current `await`.
    ///     lost = term.lost() => return Err(lost.into()),
    ///     () = work() => term.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(self) -> Term {
        match self.try_acquire().await {
            Some(term) => term,
            // Only an elector with a single attempt gives up. Such an elector is not public.
            None => pending().await,
        }
    }

    /// Like [`acquire`](Self::acquire). Returns `None` if the only attempt has failed.
    pub(crate) async fn try_acquire(self) -> Option<Term> {
        let Self { client, shared } = self;
        let config = shared.config.clone();
        let Config { namespace, name, .. } = &shared.config;
        let events = config
            .has_events
            .then(|| Events::new(client.clone(), namespace, name, &shared.identity));
        let now = shared.clock.now();
        // If a test seeds the random generator of this thread, all delays are repeatable.
        let jitter = JitterSource::new(fastrand::u64(..));
        let election = Election::new(config, shared.identity.clone(), jitter, now);
        let requests = Requests::new(client, namespace, "leader election", name);
        let shared_by_driver = Arc::clone(&shared);
        let mut driver =
            Driver { election, requests, shared: shared_by_driver, has_reported: false };

        tracing::info!(
            lease = shared.lease,
            identity = shared.identity,
            "waiting to become the leader"
        );
        let token = Arc::new(driver.acquire().await?);
        tracing::info!(lease = shared.lease, identity = shared.identity, %token, "became leader");
        shared.show_leading(true);
        if let Some(events) = &events {
            // The future is dropped, because the Event is published in a separate task.
            drop(events.publish("became leader", token.uid()));
        }
        let leadership = Leadership {
            token: Arc::clone(&token),
            shared: Arc::clone(&shared),
            // The drop of the last clone cancels `let_go`. The release of the Lease waits for this cancellation.
            _hold: Arc::new(shared.let_go.clone().drop_guard()),
        };
        // The renewals run in a separate task, because work that is busy between two `await`s must
        // not delay them.
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let end = driver.hold_lease().await;
                shared.end_term(&end);
                if let Some(events) = events {
                    // The term has already ended, and a failure to publish the Event is already
                    // logged.
                    let _ = events.publish("stopped leading", token.uid()).await;
                }
                end
            }
        });
        Some(Term { leadership: Some(leadership), shared, task })
    }

    /// Waits until this process leads, and runs `lead` as long as the process leads.
    ///
    /// The lease is released when `lead` has returned and every clone of its [`Leadership`] is
    /// dropped. If some clones still exist after [`Config::drain_timeout`], the lease is not
    /// released, but expires.
    ///
    /// A separate task renews the lease. Work that blocks all threads of the runtime prevents the
    /// renewals. The lease is then lost, and the blocked work cannot be notified.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost. `lead` is then immediately dropped, at an `await`. Most programs should
    /// exit in this case.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with time and I/O. A panic of `lead` is passed on to the
    /// caller, and the lease is not released.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `lead` is dropped and the term ends. The lease is not released, because `lead` may
    /// have started work that still runs.
    ///
    /// ```no_run
    /// # async fn reconcile_all() {}
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use requeue_leases::leader::{Config, LeaderElector};
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
        // Without a stop, the result is an output or an error.
        self.run_until(pending(), lead).await?.ok_or(LeadershipLost::Abandoned)
    }

    /// Works like [`run`](Self::run), until `stop` completes.
    ///
    /// [`Leadership::stopping`] then notifies `lead`, which can complete within
    /// [`Config::drain_timeout`], while the lease is still renewed.
    ///
    /// Returns `None` if `stop` has completed before this process led.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost, or if `lead` has not completed in time. In both
    /// cases, `lead` was dropped, and the lease is not released.
    ///
    /// # Panics
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// ```no_run
    /// # async fn reconcile(_key: u32) {}
    /// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use requeue_leases::leader::{Config, LeaderElector};
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
    pub async fn run_until<S, F, L>(
        self,
        stop: S,
        lead: F,
    ) -> Result<Option<L::Output>, LeadershipLost>
    where
        S: Future<Output = ()>,
        F: FnOnce(Leadership) -> L,
        L: Future,
    {
        let mut stop = pin!(stop);
        let term = tokio::select! {
            biased;
            // A stop has precedence over a term that begins at the same time, because no work has
            // started yet.
            () = &mut stop => return Ok(None),
            term = self.acquire() => term,
        };
        let leadership = term.leadership();
        let drain = async {
            stop.await;
            term.shared.clock.sleep_until(term.drained_by()).await;
        };
        let ended = tokio::select! {
            biased;
            // The loss is polled first, because work of a term that has ended must not count as
            // completed.
            lost = term.lost() => Err(lost),
            output = lead(leadership) => Ok(output),
            () = drain => Err(LeadershipLost::Undrained(term.shared.config.drain_timeout)),
        };
        match ended {
            Ok(output) => {
                if let Err(error) = term.release().await {
                    tracing::warn!(%error, "the lease was not released, and expires");
                }
                Ok(Some(output))
            }
            Err(error) => {
                term.wait_until_over().await;
                Err(error)
            }
        }
    }
}

impl fmt::Debug for LeaderElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderElector").field("shared", &self.shared).finish_non_exhaustive()
    }
}
