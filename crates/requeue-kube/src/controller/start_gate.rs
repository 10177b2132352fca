//! The conditions for the start of controllers, and the right to run after the start.

use std::future::pending;

use futures_util::future::BoxFuture;

use super::error::RunnerError;
use super::sharding::Group;
use crate::leader::{LeaderElector, Status, Term};
use crate::membership::{Joining, Sharding};
use crate::metrics::Metrics;

/// The parts that a manager sets for its controllers.
pub(crate) struct Managed {
    /// With an election, a future that completes when the process leads, and the status of the election. The manager
    /// stops the controller when the term ends.
    pub(crate) lead: Option<(BoxFuture<'static, ()>, Status)>,
    /// The shard group of all controllers, which the manager joins.
    pub(crate) group: Option<Group>,
    pub(crate) graceful: BoxFuture<'static, ()>,
    pub(crate) forced: BoxFuture<'static, ()>,
    pub(crate) metrics: Option<Metrics>,
}

#[derive(Default)]
pub(super) struct Start {
    pub(super) on: Option<BoxFuture<'static, ()>>,
    pub(super) elector: Option<LeaderElector>,
    /// The status of an election that the manager takes part in.
    pub(super) election: Option<Status>,
    /// True if the watches do not run before the start.
    pub(super) is_cold: bool,
}

impl Start {
    /// Returns true if the controller must wait before it starts.
    pub(super) fn is_awaited(&self) -> bool {
        self.on.is_some() || self.elector.is_some()
    }

    /// Returns the status of the election, if the controller runs only while this process leads.
    pub(super) fn election_status(&self) -> Option<Status> {
        self.elector.as_ref().map(LeaderElector::status).or_else(|| self.election.clone())
    }

    /// Waits until the controller may start. Dropping the future withdraws from the election.
    pub(super) async fn wait_for_start(self) -> Right {
        if let Some(on) = self.on {
            on.await;
        }
        Right::wait_for_term(self.elector).await
    }
}

/// The right of this process to run a controller, or the controllers of a manager.
#[derive(Default)]
pub(crate) enum Right {
    /// The process needs neither an election nor a group.
    #[default]
    Free,
    Term(Term),
    Member(Sharding),
}

impl Right {
    /// Waits until this process leads, if there is an election.
    pub(crate) async fn wait_for_term(elector: Option<LeaderElector>) -> Self {
        match elector {
            Some(elector) => Self::Term(elector.acquire().await),
            None => Self::Free,
        }
    }

    /// Joins the group, if any: see [`Group::join`].
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

    /// Waits until the right is lost, and returns the reason.
    pub(crate) async fn wait_for_loss(&self) -> RunnerError {
        match self {
            Self::Free => pending().await,
            Self::Term(term) => RunnerError::LeadershipLost(term.lost().await, Vec::new()),
            Self::Member(sharding) => RunnerError::from_membership(sharding.lost().await),
        }
    }

    /// Releases the lease of a term.
    pub(crate) async fn release_lease(self) {
        if let Self::Term(term) = self
            && let Err(error) = term.release().await
        {
            tracing::warn!(%error, "the lease was not released, and expires");
        }
    }
}
