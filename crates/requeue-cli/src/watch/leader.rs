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

/// A replica that takes part in the election.
pub(crate) struct Candidate {
    pub(super) elector: LeaderElector,
    /// The namespace and the name of the Lease.
    lease: String,
    /// The time that commands get from SIGTERM to SIGKILL when the term is lost.
    grace: Duration,
}

impl Candidate {
    /// Prepares the election. Returns `None` if `--leader-election` is missing.
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
        // Another replica may start commands when the Lease has expired. The commands of this replica get half of the
        // time until then. The other half is left for SIGKILL to take effect.
        let grace = (lease_duration - renew_deadline) / 2;
        Ok(Some(Self { elector, lease: format!("{namespace}/{name}"), grace }))
    }

    /// Waits until this replica leads. Then leads until `over` is notified or the term is lost.
    pub(crate) async fn run_election(
        self,
        runner: Arc<Runner>,
        enqueuer: Arc<Enqueuer>,
        mut over: oneshot::Receiver<()>,
    ) {
        let Self { elector, lease, grace } = self;
        let standing = async {
            runner.output.say(&format!("on standby for the Lease {lease}")).await;
            // A replica that cannot list the objects must not become the leader, because it could not run commands.
            enqueuer.is_listed.wait().await;
            elector.acquire().await
        };
        let term = tokio::select! {
            // `over` is polled first. A program that has ended must not begin a term.
            biased;
            _ = &mut over => return,
            term = standing => term,
        };
        enqueuer.start_leading();
        // A reader of standard error that has stopped reading must not delay the next steps.
        let reporting = async {
            runner.output.say(&format!("leading with the Lease {lease}")).await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            // The loss of the term is polled first, because the commands must stop in time.
            biased;
            lost = term.lost() => {
                // The program is marked as failed. Its exit code then makes a supervisor start it again.
                runner.tally.mark_failed();
                runner.stop(Level::Terminating);
                let why = format!("Lease {lease}: {lost}");
                // After this time, the commands of the next leader may start. The commands of this replica must not
                // overlap with them.
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

/// Releases the Lease, so that another replica can lead immediately. The caller must call this after the last command.
async fn release_lease(term: Term, runner: &Runner, lease: &str) {
    if let Err(error) = term.release().await {
        let why = format!("the Lease {lease} could not be released and will expire: {error}");
        runner.output.say(&why).await;
        runner.output.flush().await;
    }
}
