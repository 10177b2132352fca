//! The cancellation of a run in flight: its reasons, its result, and the adds that cause it.

use core::time::Duration;

/// The reason why a run in flight was cancelled.
///
/// A queue cancels runs as [`Cancelled`](Self::Cancelled) or [`Restarted`](Self::Restarted).
/// Workers and stores add the other reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// The run was cancelled by name. The key runs again only if it was added again.
    Cancelled,
    /// The key was added during the run, and the queue restarts such runs. The key runs again as
    /// soon as this run has stopped.
    Restarted,
    /// The run took longer than its time limit.
    TimedOut,
    /// The workers are being stopped.
    Stopping,
    /// The key no longer belongs to this worker, because its lease has expired.
    Lost,
}

/// The result of cancelling the run in flight of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
#[must_use = "a run may have completed before it was cancelled"]
pub enum CancelledRun {
    /// The key is not in flight, or its item is being dropped. Nothing has changed.
    NotInFlight,
    /// The run is cancelled. The key stays in flight until its worker completes the run.
    Cancelled,
    /// The run was cancelled before, and has not completed yet. Nothing has changed.
    AlreadyCancelled,
}

/// The effect of an add on a key in flight.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::InFlightPolicy;
///
/// assert_eq!(InFlightPolicy::restart(), InFlightPolicy::Restart { at_most: Duration::from_secs(30) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum InFlightPolicy {
    /// The run in flight continues, and the key runs once more after it.
    #[default]
    After,
    /// The run in flight is [cancelled](CancelReason::Restarted), and the key runs again as soon as
    /// that run has stopped.
    ///
    /// A delayed add has this effect when it is due. An add that waits for a backoff has this effect when the backoff
    /// ends.
    Restart {
        /// The maximum length of a series of restarts. After this time since the first restart, adds no longer restart
        /// the run, so that the runs of a constantly added key can complete. The series ends with the first run that is
        /// not restarted. With zero, no run is restarted. With [`Duration::MAX`], there is no bound.
        at_most: Duration,
    },
}

impl InFlightPolicy {
    /// Returns [`Restart`](Self::Restart) with a bound of 30 s.
    #[must_use]
    pub const fn restart() -> Self {
        Self::Restart { at_most: Duration::from_secs(30) }
    }
}
