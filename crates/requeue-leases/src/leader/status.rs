//! The state of an election, for observers.

use std::sync::Arc;
use std::time::Duration;

use super::leadership::Shared;
use super::lost::LeadershipLost;

/// If work of a leader still runs this long after the end of its lease, [`Status::check`] reports
/// that it is stuck.
const TOLERANCE: Duration = Duration::from_secs(20);

/// A handle that shows the present state of an election.
///
/// A clone is cheap. The handle can also be used after the elector was dropped.
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

    /// Returns the identity of the leader, from the Lease that was read last.
    ///
    /// Returns `None` if the Lease was not read yet, or has no holder.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.0.view.borrow().holder.clone()
    }

    /// Returns the identity of this process's elector.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Returns the time between two attempts to acquire or renew the lease.
    #[doc(hidden)]
    #[must_use]
    pub fn retry_period(&self) -> Duration {
        self.0.config.retry_period
    }

    /// Checks whether work of a former leader is stuck. Use this method for the endpoint
    /// `/healthz`.
    ///
    /// # Errors
    ///
    /// Returns [`LeadershipLost::Undrained`] if a [`Leadership`](super::Leadership) still exists more than 20 s after
    /// the end of the lease. Some work is then stuck, and only the end of the process can stop it.
    pub fn check(&self) -> Result<(), LeadershipLost> {
        let view = self.0.view.borrow();
        let Some(led) = &view.led else { return Ok(()) };
        // One lease duration after the last renewal, another replica may lead.
        let since = self.0.clock.now().since(led.renewed + self.0.config.lease_duration);
        if self.0.let_go.is_cancelled() || since <= TOLERANCE {
            return Ok(());
        }
        Err(LeadershipLost::Undrained(since))
    }
}
