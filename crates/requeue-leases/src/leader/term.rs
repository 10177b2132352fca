//! A term of a leader, from the acquisition of the lease to its release or loss.

use std::sync::Arc;

use requeue::Time;
use tokio::task::JoinHandle;

use super::leadership::{Leadership, Shared};
use super::lost::{End, LeadershipLost};

/// A term of a leader.
///
/// The lease is renewed as long as this value exists.
///
/// Use this type to control the start and the stop of the work yourself.
/// [`LeaderElector::run_until`](super::LeaderElector::run_until) controls them for you. Dropping
/// this value ends the term without releasing the lease, which then expires.
#[derive(Debug)]
#[must_use = "the term ends when this is dropped"]
pub struct Term {
    /// The right to lead, or `None` after the release.
    pub(super) leadership: Option<Leadership>,
    pub(super) shared: Arc<Shared>,
    pub(super) task: JoinHandle<End>,
}

impl Term {
    /// Returns the right to lead, for the tasks that do the work.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        // The value is `Some` until `release`, which consumes the term.
        self.leadership.clone().expect("a term that was released is gone")
    }

    /// Waits until the lease is lost.
    ///
    /// All work must then be dropped. [`LeaderElector::acquire`](super::LeaderElector::acquire) has an
    /// example.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the method called again.
    pub async fn lost(&self) -> LeadershipLost {
        self.shared.wait_for(|led| led.lost.clone()).await
    }

    /// Asks the work to stop, unless it was asked before. Returns the deadline for the stop.
    pub(super) fn drained_by(&self) -> Time {
        let mut stopping_since = self.shared.clock.now();
        // The time of the first request is kept, because a second request must not extend the
        // limit.
        self.shared.change_term(|led| stopping_since = *led.stopping.get_or_insert(stopping_since));
        stopping_since + self.shared.config.drain_timeout
    }

    /// Asks the work to stop, by [`Leadership::stopping`], and waits until every [`Leadership`] is
    /// dropped. Then releases the lease, so that another replica may lead immediately.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease was lost during the wait, or if a [`Leadership`] still existed at the end of the
    /// [`drain_timeout`](super::Config::drain_timeout), which counts from the first request to stop. The lease is then
    /// not released, but expires.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the term.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_leases::leader::Term;
    /// async fn shut_down(term: Term) {
    ///     if let Err(error) = term.release().await {
    ///         eprintln!("the next leader waits for the end of the lease: {error}");
    ///     }
    /// }
    /// ```
    pub async fn release(mut self) -> Result<(), LeadershipLost> {
        let deadline = self.drained_by();
        self.leadership = None;
        tokio::select! {
            biased;
            // The loss is polled first, because another replica may already hold the Lease.
            lost = self.lost() => return Err(lost),
            () = self.shared.let_go.cancelled() => {}
            () = self.shared.clock.sleep_until(deadline) => {
                return Err(LeadershipLost::Undrained(self.shared.config.drain_timeout));
            }
        }
        // From here on this process does not lead, whether or not the request succeeds.
        self.shared.change_term(|led| led.released = true);
        self.shared.wake.notify_one();
        match (&mut self.task).await {
            Ok(End::Released) => Ok(()),
            Ok(End::Lost(lost)) => Err(lost),
            // The runtime is shutting down.
            Err(_) => Err(LeadershipLost::Abandoned),
        }
    }

    /// If the lease is lost, waits until the loss has been reported.
    pub(super) async fn wait_until_over(mut self) {
        if self.shared.view.borrow().led.as_ref().is_some_and(|led| led.lost.is_some()) {
            // The wait fails only if the runtime is shutting down.
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        // After the abort, no renewal follows. Every clone is then notified that the term has
        // ended.
        self.task.abort();
        self.shared.end_term(&End::Lost(LeadershipLost::Abandoned));
    }
}
