//! A term, from its beginning to its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use requeue::Time;
use tokio::task::JoinHandle;

use super::election::End;
use super::leadership::{Leadership, LeadershipLost, Shared};
use super::status::Status;

/// A term of leading, whose lease is renewed for as long as this is kept.
///
/// For those who begin and end by themselves; [`LeaderElector::run_until`](super::LeaderElector::run_until) is made of it.
/// Dropping it ends leading without releasing the lease, which then runs out.
#[must_use = "leading ends when this is dropped"]
pub struct Term {
    /// Until it is released.
    pub(super) leadership: Option<Leadership>,
    pub(super) shared: Arc<Shared>,
    pub(super) task: JoinHandle<End>,
    pub(super) drain_timeout: Duration,
}

impl Term {
    /// The right to lead, for those who do the work.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        // It is there until `release`, which takes the term.
        self.leadership.clone().expect("a term that was released is gone")
    }

    /// Shows how the election stands, now and later.
    #[must_use]
    pub fn status(&self) -> Status {
        Status(Arc::clone(&self.shared))
    }

    /// Waits until the lease is lost: all work has to be dropped.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn lost(&self) -> LeadershipLost {
        self.shared.when(|led| led.lost.clone()).await
    }

    /// Tells those who work to begin nothing new, by [`Leadership::stopping`]. The lease is still
    /// renewed.
    pub fn stop(&self) {
        self.drained_by();
    }

    /// Tells to stop, if that was not told yet, and until when that may take.
    pub(super) fn drained_by(&self) -> Time {
        let mut told = self.shared.clock.now();
        self.shared.change(|led| told = *led.stopping.get_or_insert(told));
        told + self.drain_timeout
    }

    /// [Stops](Self::stop), waits until every [`Leadership`] is gone, and gives the lease back, so
    /// that another may lead at once.
    ///
    /// # Errors
    ///
    /// The lease is not released: it was lost meanwhile, or something still held a
    /// [`Leadership`] once the [`drain_timeout`](super::Config::drain_timeout) was over since it was first
    /// told to stop. It runs out by itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the term.
    pub async fn release(mut self) -> Result<(), RunError> {
        let deadline = self.drained_by();
        self.leadership = None;
        tokio::select! {
            biased;
            lost = self.lost() => return Err(RunError::Lost(lost)),
            () = self.shared.let_go.cancelled() => {}
            () = self.shared.clock.reach(deadline) => {
                return Err(RunError::Undrained(self.drain_timeout));
            }
        }
        // From here on nobody leads, whatever becomes of the request.
        self.shared.change(|led| led.released = true);
        self.shared.wake.notify_one();
        match (&mut self.task).await {
            Ok(End::Released) => Ok(()),
            Ok(End::Lost(lost)) => Err(RunError::Lost(lost)),
            // The runtime is going down.
            Err(_) => Err(RunError::Lost(LeadershipLost::Abandoned)),
        }
    }

    /// Waits, where the lease is lost, until that has been told.
    pub(super) async fn over(mut self) {
        if self.shared.view.borrow().led.as_ref().is_some_and(|led| led.lost.is_some()) {
            // It can't fail but by a runtime that goes down.
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.end(&End::Lost(LeadershipLost::Abandoned));
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}

/// Why leading has ended otherwise than as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// The lease is lost.
    Lost(LeadershipLost),
    /// What was to end had not, after this long.
    Undrained(Duration),
}

impl From<LeadershipLost> for RunError {
    fn from(lost: LeadershipLost) -> Self {
        Self::Lost(lost)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => lost.fmt(f),
            Self::Undrained(after) => {
                write!(f, "leading was to stop, and something still ran {after:?} later")
            }
        }
    }
}

impl std::error::Error for RunError {}
