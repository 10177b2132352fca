//! `--leader-election`: only one of several replicas runs commands.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use requeue_kube::leader::{Config, LeaderElector, Term};
use tokio::sync::oneshot;

use super::access::Access;
use super::enqueue::Enqueuer;
use crate::args::watch::LeaderFlags;
use crate::exit::Refusal;
use crate::process::signals::Level;
use crate::runner::Runner;

/// A process on standby.
pub(crate) struct Candidate {
    pub(super) elector: LeaderElector,
    /// The namespace and name of the Lease.
    lease: String,
    /// The time from SIGTERM to SIGKILL for commands after the term is lost.
    grace: Duration,
}

impl Candidate {
    /// Prepares the election. Returns `None` without `--leader-election`.
    pub(crate) async fn new(access: &Access, flags: LeaderFlags) -> Result<Option<Self>, Refusal> {
        let LeaderFlags { leader_election, lease_duration, renew_deadline, retry_period } = flags;
        let Some((namespace, name)) = leader_election else { return Ok(None) };
        let namespace = namespace.as_deref().unwrap_or(access.default_namespace());
        let config = Config::new(namespace, &name)
            .lease_duration(lease_duration)
            .renew_deadline(renew_deadline)
            .retry_period(retry_period);
        let elector = LeaderElector::new(access.election_client(&config)?, config);
        let elector = elector.map_err(|e| Refusal::usage(format!("--leader-election: {e}")))?;
        access.try_lease(namespace, &name).await?;
        // Another replica may start commands when the Lease has expired. Half of the time is left for SIGKILL.
        let grace = (lease_duration - renew_deadline) / 2;
        Ok(Some(Self { elector, lease: format!("{namespace}/{name}"), grace }))
    }

    /// Waits on standby, and then leads until the run is `over`.
    pub(crate) async fn run_election(
        self,
        runner: Arc<Runner>,
        enqueuer: Arc<Enqueuer>,
        mut over: oneshot::Receiver<()>,
    ) {
        let Self { elector, lease, grace } = self;
        let standing = async {
            runner.output.say(&format!("on standby for the Lease {lease}")).await;
            // A process that cannot list objects must not prevent another process from leading.
            enqueuer.is_listed.wait().await;
            elector.acquire().await
        };
        let term = tokio::select! {
            // The end of the run is checked first, because a run that is over must not begin a term.
            biased;
            _ = &mut over => return,
            term = standing => term,
        };
        enqueuer.start_leading();
        // A paused reader of standard error must not delay the next steps.
        let reporting = async {
            runner.output.say(&format!("leading with the Lease {lease}")).await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // The loss of the term is checked first, because its commands must stop in time.
            biased;
            lost = term.lost() => {
                // The run counts as failed, so that the exit code makes a supervisor restart the process.
                runner.tally.mark_failed();
                runner.stop(Level::Terminating);
                let why = format!("Lease {lease}: {lost}");
                // Commands must not run at the same time as the next leader's commands.
                let kill = async {
                    tokio::select! {
                        () = tokio::time::sleep(grace) => runner.stop(Level::Killing),
                        _ = over => {}
                    }
                };
                tokio::join!(runner.output.say(&why), kill);
            }
            _ = &mut over => release_lease(term, &runner, &lease).await,
            never = reporting => match never {},
        }
    }
}

/// Releases the Lease after the last command, so that another process can lead immediately.
async fn release_lease(term: Term, runner: &Runner, lease: &str) {
    if let Err(error) = term.release().await {
        let why = format!("the Lease {lease} could not be released and will expire: {error}");
        runner.output.say(&why).await;
        runner.output.flush().await;
    }
}
