//! The conditions for the start of a controller, and its right to run after that.

use std::future;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::RunnerError;
use super::sharding::CommonGroup;
use crate::leader::{LeaderElector, LeadershipLost, Status, Term};
use crate::metrics::Metrics;

/// The parts that a manager sets for its controllers.
pub(crate) struct Managed {
    /// With an election: completes when the process leads. The manager stops the controller when the
    /// term ends.
    pub(crate) lead: Option<(BoxFuture<'static, ()>, Status)>,
    /// The shard group of all controllers, which the manager joins.
    pub(crate) group: Option<CommonGroup>,
    pub(crate) graceful: BoxFuture<'static, ()>,
    pub(crate) forced: BoxFuture<'static, ()>,
    pub(crate) metrics: Option<Metrics>,
}

#[derive(Default)]
pub(super) struct Start {
    pub(super) on: Option<BoxFuture<'static, ()>>,
    pub(super) elector: Option<LeaderElector>,
    /// The status of an election that another part holds.
    pub(super) election: Option<Status>,
    /// The watches do not run before the start.
    pub(super) is_cold: bool,
}

impl Start {
    /// Returns true if the controller must wait before it starts.
    pub(super) fn is_awaited(&self) -> bool {
        self.on.is_some() || self.elector.is_some()
    }

    /// Returns true if the controller runs only while this process leads.
    pub(super) fn has_election(&self) -> bool {
        self.elector.is_some() || self.election.is_some()
    }

    /// Returns the retry period of the election.
    pub(super) fn retry_period(&self) -> Option<Duration> {
        let own = self.elector.as_ref().map(LeaderElector::status);
        own.or_else(|| self.election.clone()).map(|election| election.retry_period())
    }

    /// Waits until the controller may start. Dropping the future withdraws from the election.
    pub(super) async fn reached(self) -> Permit {
        if let Some(on) = self.on {
            on.await;
        }
        match self.elector {
            Some(elector) => {
                let status = Some(elector.status());
                Permit { status, term: Some(elector.acquire().await) }
            }
            None => Permit { status: self.election, term: None },
        }
    }
}

/// The right to run: for one term, or permanently if there is no election.
#[derive(Default)]
pub(super) struct Permit {
    /// The term that this controller holds.
    term: Option<Term>,
    status: Option<Status>,
}

impl Permit {
    /// Returns the status of the election, or `None` if the permit never expires.
    pub(super) fn status(&self) -> Option<Status> {
        self.status.clone()
    }

    /// Waits until the permit is lost.
    pub(super) async fn lost(&self) -> LeadershipLost {
        match &self.term {
            Some(term) => term.lost().await,
            None => future::pending().await,
        }
    }

    /// Releases the lease after the controller has ended with `ended`. If work may still be
    /// running, it does not release the lease, which then expires.
    pub(super) async fn end(self, ended: Result<(), RunnerError>) -> Result<(), RunnerError> {
        let Some(term) = self.term else { return ended };
        if let Err(RunnerError::CutOff { .. } | RunnerError::LeadershipLost { .. }) = ended {
            return ended;
        }
        if let Err(error) = term.release().await {
            tracing::warn!(%error, "the lease was not released, and expires");
        }
        ended
    }
}
