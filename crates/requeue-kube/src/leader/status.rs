//! What can be seen of an election from outside.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::leadership::Shared;

/// How an election stands. Cheap to clone, and outlives its elector.
///
/// ```no_run
/// # use requeue_kube::leader::LeaderElector;
/// # fn mount(elector: &LeaderElector) {
/// let status = elector.status();
/// let healthz = move || match status.check() {
///     Ok(()) => (200, "ok".to_owned()),
///     Err(overdue) => (500, overdue.to_string()),
/// };
/// # let _ = healthz;
/// # }
/// ```
#[derive(Clone)]
pub struct Status(pub(super) Arc<Shared>);

impl Status {
    /// How long after its lease has ended one who leads on is taken for stuck.
    pub const TOLERANCE: Duration = Duration::from_secs(20);

    /// Whether this process leads at this moment.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.0.is_leading()
    }

    /// Who holds the Lease, as far as is known here; `None` before it was read, and when nobody
    /// does.
    #[must_use]
    pub fn leader(&self) -> Option<String> {
        self.0.view.borrow().holder.clone()
    }

    /// What this process calls itself in the Lease.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Whether `/healthz` may say yes.
    ///
    /// # Errors
    ///
    /// The lease has ended more than [`TOLERANCE`](Self::TOLERANCE) ago, and a
    /// [`Leadership`](super::Leadership) is still held: something is stuck and has to be ended
    /// from outside.
    pub fn check(&self) -> Result<(), Overdue> {
        let view = self.0.view.borrow();
        let Some(led) = &view.led else { return Ok(()) };
        let since = self.0.clock.now().since(led.renewed);
        if self.0.let_go.is_cancelled() || since <= self.0.lease_duration + Self::TOLERANCE {
            return Ok(());
        }
        Err(Overdue { lease: self.0.lease.clone(), since })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("lease", &self.0.lease)
            .field("identity", &self.0.identity)
            .field("leader", &self.leader())
            .field("leading", &self.is_leading())
            .finish()
    }
}

/// Leadership is held though the lease has ended long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    lease: String,
    since: Duration,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lease, since } = self;
        write!(f, "leading by the Lease {lease}, which was not renewed for {} s", since.as_secs())
    }
}

impl std::error::Error for Overdue {}
