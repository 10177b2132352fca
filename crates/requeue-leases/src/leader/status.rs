//! The state of an election, for observers.

use std::sync::Arc;
use std::time::Duration;

use super::leadership::Shared;
use super::lost::LeadershipLost;

/// A leader that has not stopped counts as stuck when this time has passed since the end of its lease.
const TOLERANCE: Duration = Duration::from_secs(20);

/// Shows the current state of an election.
///
/// The handle is cheap to clone, and remains valid after its elector is dropped.
///
/// ```no_run
/// # use requeue_leases::leader::LeaderElector;
/// # fn mount(elector: &LeaderElector) {
/// let status = elector.status();
/// let healthz = move || match status.check() {
///     Ok(()) => (200, "ok".to_owned()),
///     Err(stuck) => (500, stuck.to_string()),
/// };
/// # let _ = healthz;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Status(pub(super) Arc<Shared>);

impl Status {
    /// Returns true if this process leads at this moment.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.0.is_leading()
    }

    /// Returns the holder of the Lease as last read.
    ///
    /// Returns `None` before the first read, and if the Lease has no holder.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.0.view.borrow().holder.clone()
    }

    /// Returns the identity of this process in the Lease.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Returns the time between two attempts to lead.
    #[doc(hidden)]
    #[must_use]
    pub fn retry_period(&self) -> Duration {
        self.0.config.retry_period
    }

    /// Checks the election for `/healthz`.
    ///
    /// # Errors
    ///
    /// [`LeadershipLost::Undrained`]: the lease ended more than 20 s ago, and a
    /// [`Leadership`](super::Leadership) still exists. Some work is stuck, and the process must be
    /// stopped from outside.
    pub fn check(&self) -> Result<(), LeadershipLost> {
        let view = self.0.view.borrow();
        let Some(led) = &view.led else { return Ok(()) };
        // Another replica may lead one lease duration after the last renewal.
        let since = self.0.clock.now().since(led.renewed + self.0.config.lease_duration);
        if self.0.let_go.is_cancelled() || since <= TOLERANCE {
            return Ok(());
        }
        Err(LeadershipLost::Undrained(since))
    }
}
