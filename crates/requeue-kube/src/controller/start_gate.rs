//! The conditions under which a controller starts, and the right that lets it run.

use std::future::pending;

use futures_util::future::BoxFuture;

use super::error::RunnerError;
use super::sharding::Group;
use crate::leader::{LeaderElector, Status, Term};
use crate::membership::{Joining, Sharding};
use crate::metrics::Metrics;

/// The values that a manager sets in each of its controllers.
pub(crate) struct Managed {
    /// `Some` if the manager has an election. Contains a future that completes when the process leads, and the status
    /// of the election. When the term ends, the manager stops the controller.
    pub(crate) lead: Option<(BoxFuture<'static, ()>, Status)>,
    /// The shard group that the manager joins for all of its controllers.
    pub(crate) group: Option<Group>,
    pub(crate) graceful: BoxFuture<'static, ()>,
    pub(crate) forced: BoxFuture<'static, ()>,
    pub(crate) metrics: Option<Metrics>,
}

#[derive(Default)]
pub(super) struct Start {
    pub(super) on: Option<BoxFuture<'static, ()>>,
    pub(super) elector: Option<LeaderElector>,
    /// The status of the manager's election.
    pub(super) election: Option<Status>,
    /// True if the watches start only when the controller starts.
    pub(super) is_cold: bool,
}

impl Start {
    /// Returns true if the controller must wait for a trigger or an election before it starts.
    pub(super) fn is_awaited(&self) -> bool {
        self.on.is_some() || self.elector.is_some()
    }

    /// Returns the status of the election without which the controller must not run.
    pub(super) fn election_status(&self) -> Option<Status> {
        self.elector.as_ref().map(LeaderElector::status).or_else(|| self.election.clone())
    }

    /// Waits for the trigger, and then for the election. If the future is dropped, the process withdraws from the
    /// election.
    pub(super) async fn wait_for_start(self) -> Right {
        if let Some(on) = self.on {
            on.await;
        }
        Right::wait_for_term(self.elector).await
    }
}

/// The right of this process to run one controller, or all controllers of a manager.
#[derive(Default)]
pub(crate) enum Right {
    /// There is neither an election nor a group, so this process may always run.
    #[default]
    Free,
    Term(Term),
    Member(Sharding),
}

impl Right {
    /// Waits until this process leads. Returns immediately if there is no election.
    pub(crate) async fn wait_for_term(elector: Option<LeaderElector>) -> Self {
        match elector {
            Some(elector) => Self::Term(elector.acquire().await),
            None => Self::Free,
        }
    }

    /// Joins the group by [`Group::join`]. Returns `self` if there is no group.
    pub(crate) async fn or_join(
        self,
        group: Option<Group>,
        joining: &mut Option<Joining>,
    ) -> Result<Self, RunnerError> {
        match group {
            Some(group) => group.join(joining).await.map(Self::Member),
            None => Ok(self),
        }
    }

    /// Waits until this process loses the right, and returns the cause as an error.
    pub(crate) async fn wait_for_loss(&self) -> RunnerError {
        match self {
            Self::Free => pending().await,
            Self::Term(term) => RunnerError::LeadershipLost(term.lost().await, Vec::new()),
            Self::Member(sharding) => RunnerError::from_membership(sharding.lost().await),
        }
    }

    /// Releases the Lease of the election. Does nothing if there is no election.
    pub(crate) async fn release_lease(self) {
        if let Self::Term(term) = self
            && let Err(error) = term.release().await
        {
            tracing::warn!(%error, "the lease was not released, and expires");
        }
    }
}
