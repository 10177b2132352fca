//! The elector, with which a process takes part in an election.

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

/// A process's participation in an election. An elector leads at most once.
///
/// After its term, an elector cannot be used again. To take part again, create another elector, which gets another
/// identity.
#[must_use = "an elector does nothing until it is run"]
pub struct LeaderElector {
    client: Client,
    shared: Arc<Shared>,
}

impl LeaderElector {
    /// Creates an elector. Its identity is unique: it consists of the name of the host and a UUID.
    ///
    /// Pass a client that the rest of the program does not use, for example the client of [`Config::client`]. Renewals
    /// then never wait behind other requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid or not safe. The error names the setting and its value.
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
            // The UUID makes the identity unique. If a process starts again on the same host, it must not mistake the
            // term of its predecessor for its own.
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

    /// Sets the metrics in which the gauge `leader_election_master_status` shows whether this process leads. The label
    /// `name` is the name of the Lease.
    ///
    /// If this method is called several times, only the first call has an effect.
    pub fn metrics(self, metrics: impl AsRef<LeaseMetrics>) -> Self {
        self.shared
            .gauge
            .get_or_init(|| metrics.as_ref().leader_gauge(&self.shared.config.name))
            .set(0);
        self
    }

    /// Returns a handle that shows the current state of the election.
    ///
    /// The handle can also be used after the elector was dropped.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.shared))
    }

    /// Waits until this process leads.
    ///
    /// This method only waits until the process leads. [`run`](Self::run) also runs the work, and releases the lease
    /// afterwards.
    ///
    /// When this method has returned, a task of the runtime renews the lease.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime with time and I/O.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this process no longer takes part in the election. If it is just taking the Lease
    /// over, no other replica can lead until the Lease has expired.
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
    ///     // The return drops the work, which stops it at its current `await`.
    ///     lost = term.lost() => return Err(lost.into()),
    ///     () = work() => term.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(self) -> Term {
        match self.try_acquire().await {
            Some(term) => term,
            // Only an elector with a single attempt returns `None`, and the public API cannot create such an elector.
            None => pending().await,
        }
    }

    /// Like [`acquire`](Self::acquire), but returns `None` if the elector has only one attempt, and this attempt has
    /// failed.
    pub(crate) async fn try_acquire(self) -> Option<Term> {
        let Self { client, shared } = self;
        let config = shared.config.clone();
        let Config { namespace, name, .. } = &shared.config;
        let events = config
            .has_events
            .then(|| Events::new(client.clone(), namespace, name, &shared.identity));
        let now = shared.clock.now();
        // The seed comes from the random generator of this thread. A test that seeds this generator gets the same
        // delays each time.
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
            // The handle of the task is dropped, but the task continues to publish the Event.
            drop(events.publish("became leader", token.uid()));
        }
        let leadership = Leadership {
            token: Arc::clone(&token),
            shared: Arc::clone(&shared),
            // When the last clone of this guard is dropped, `let_go` is cancelled. The release of the Lease waits for
            // this.
            _hold: Arc::new(shared.let_go.clone().drop_guard()),
        };
        // A separate task renews the Lease. Work that computes for a long time between two `await`s therefore does not
        // delay renewals.
        let task = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                let end = driver.hold_lease().await;
                shared.end_term(&end);
                if let Some(events) = events {
                    // The term has ended, and an error has already been logged. The result is therefore ignored.
                    let _ = events.publish("stopped leading", token.uid()).await;
                }
                end
            }
        });
        Some(Term { leadership: Some(leadership), shared, task })
    }

    /// Waits until this process leads, and then runs `lead` while it leads.
    ///
    /// The elector releases the lease when `lead` has returned, and every clone of its [`Leadership`] was dropped. If
    /// clones still exist after [`Config::drain_timeout`], it does not release the lease, and the lease expires.
    ///
    /// A separate task renews the lease. If the work blocks all threads of the runtime, this task cannot run, and the
    /// lease is lost. The blocked work is then not notified.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost. `lead` is dropped immediately, at an `await`. Most programs should then
    /// exit.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime with time and I/O. If `lead` panics, this method panics too, and
    /// does not release the lease.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `lead` is dropped, and the term ends. The lease is not released, because tasks that
    /// `lead` has started may still run.
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
        // `pending` never completes, so the result is never `None`. The error is for the compiler.
        self.run_until(pending(), lead).await?.ok_or(LeadershipLost::Abandoned)
    }

    /// Works like [`run`](Self::run), but stops gracefully when `stop` completes.
    ///
    /// [`Leadership::stopping`] then completes, so that `lead` can end its work. It has [`Config::drain_timeout`] for
    /// this. In the meantime, the lease is still renewed.
    ///
    /// Returns `None` if `stop` completes before this process leads.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost, or if `lead` does not return in time after the stop. In both cases,
    /// `lead` is dropped, and the lease is not released.
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has the same effects as for [`run`](Self::run).
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
            // If both futures are ready, the stop comes first, because no work has started yet.
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
            // The loss is polled first. If `lead` completes at the same time, its work must not be reported as
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
