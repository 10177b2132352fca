//! What a controller waits for before it begins, and by what right it runs then.

use std::future;

use futures_util::future::BoxFuture;

use super::RunnerError;
use crate::leader::{LeaderElector, LeadershipLost, Status, Term};

#[derive(Default)]
pub(super) struct Start {
    pub(super) on: Option<BoxFuture<'static, ()>>,
    pub(super) elector: Option<LeaderElector>,
}

impl Start {
    /// Whether there is anything to wait for.
    pub(super) fn is_awaited(&self) -> bool {
        self.on.is_some() || self.elector.is_some()
    }

    /// Waits until the controller may begin. Dropping it withdraws from the election.
    pub(super) async fn reached(self) -> Mandate {
        if let Some(on) = self.on {
            on.await;
        }
        Mandate(match self.elector {
            Some(elector) => Some(elector.acquire().await),
            None => None,
        })
    }
}

/// The right to run: for a term, or, without an election, for good.
#[derive(Default)]
pub(super) struct Mandate(Option<Term>);

impl Mandate {
    /// Says at each moment whether it holds; `None` where it always does.
    pub(super) fn status(&self) -> Option<Status> {
        self.0.as_ref().map(Term::status)
    }

    /// Waits until it is lost.
    pub(super) async fn lost(&self) -> LeadershipLost {
        match &self.0 {
            Some(term) => term.lost().await,
            None => future::pending().await,
        }
    }

    /// Gives it back once the controller has ended so, unless something may still run: then the
    /// lease runs out by itself.
    pub(super) async fn end(self, ended: Result<(), RunnerError>) -> Result<(), RunnerError> {
        let Some(term) = self.0 else { return ended };
        if let Err(RunnerError::CutOff { .. } | RunnerError::LeadershipLost { .. }) = ended {
            return ended;
        }
        if let Err(error) = term.release().await {
            tracing::warn!(%error, "the lease runs out by itself");
        }
        ended
    }
}
