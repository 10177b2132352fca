//! The term of a leader, from the acquisition of the Lease to its release or loss.

use std::sync::Arc;

use requeue::Time;
use tokio::task::JoinHandle;

use super::leadership::{Leadership, Shared};
use super::lost::{End, LeadershipLost};

/// The term of a leader.
///
/// While this value exists, a task renews the lease.
///
/// With this type, the program itself starts and stops the work.
/// [`LeaderElector::run_until`](super::LeaderElector::run_until) does this for the program. If this value is dropped,
/// the term ends, and the lease is not released, but expires.
#[derive(Debug)]
#[must_use = "the term ends when this is dropped"]
pub struct Term {
    /// The right to lead. `None` after the release.
    pub(super) leadership: Option<Leadership>,
    pub(super) shared: Arc<Shared>,
    pub(super) task: JoinHandle<End>,
}

impl Term {
    /// Returns the right to lead, for the tasks that do the work.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        // The field is `None` only after `release`, which consumes the term.
        self.leadership.clone().expect("a term that was released is gone")
    }

    /// Waits until the lease is lost.
    ///
    /// The program must then drop all work. [`LeaderElector::acquire`](super::LeaderElector::acquire) has an example.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost, and the method can be called again.
    pub async fn lost(&self) -> LeadershipLost {
        self.shared.wait_for(|led| led.lost.clone()).await
    }

    /// Asks the work to stop, unless it has already been asked. Returns the time by which it must have stopped.
    pub(super) fn drained_by(&self) -> Time {
        let mut stopping_since = self.shared.clock.now();
        // The time of the first request is kept. A second request must not give the work more time.
        self.shared.change_term(|led| stopping_since = *led.stopping.get_or_insert(stopping_since));
        stopping_since + self.shared.config.drain_timeout
    }

    /// Asks the work to stop by [`Leadership::stopping`], and waits until every [`Leadership`] was dropped. Then
    /// releases the lease, so that another replica can lead immediately.
    ///
    /// # Errors
    ///
    /// Returns an error if the lease is lost during the wait. Also returns an error if a [`Leadership`] still exists
    /// when the [`drain_timeout`](super::Config::drain_timeout) has passed since the first request to stop. In both
    /// cases, the lease is not released, but expires.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the term is dropped too, and its lease expires.
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
            // The loss is polled first. After a loss, another replica may already hold the Lease.
            lost = self.lost() => return Err(lost),
            () = self.shared.let_go.cancelled() => {}
            () = self.shared.clock.sleep_until(deadline) => {
                return Err(LeadershipLost::Undrained(self.shared.config.drain_timeout));
            }
        }
        // From now on, this process does not lead, even if the release fails.
        self.shared.change_term(|led| led.released = true);
        self.shared.wake.notify_one();
        match (&mut self.task).await {
            Ok(End::Released) => Ok(()),
            Ok(End::Lost(lost)) => Err(lost),
            // The task was aborted, because the runtime is shutting down.
            Err(_) => Err(LeadershipLost::Abandoned),
        }
    }

    /// If the lease was lost, waits until the loss was logged and published.
    pub(super) async fn wait_until_over(mut self) {
        if self.shared.view.borrow().led.as_ref().is_some_and(|led| led.lost.is_some()) {
            // The wait fails only if the runtime is shutting down. The error is ignored.
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        // After the abort, the task renews no more. `end_term` then notifies all clones of the [`Leadership`].
        self.task.abort();
        self.shared.end_term(&End::Lost(LeadershipLost::Abandoned));
    }
}
