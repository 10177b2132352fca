//! The cancellation of a run in flight: its reasons and results, and the policy by which an add
//! cancels a run.

use core::time::Duration;

/// The reason for the cancellation of a run in flight.
///
/// The queue itself uses only [`Cancelled`](Self::Cancelled) and [`Restarted`](Self::Restarted).
/// Workers and stores use the other reasons.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// A caller has cancelled the run by its key. The key runs again only if it was also added
    /// again.
    Cancelled,
    /// An add of the key has cancelled the run, in a queue that restarts runs. The key runs again
    /// when this run has stopped.
    Restarted,
    /// The run has exceeded its time limit.
    TimedOut,
    /// The workers of the process are stopping.
    Stopping,
    /// The lease of the key has expired, so the key no longer belongs to this worker.
    Lost,
}

/// The result of a request to cancel the run in flight of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
#[must_use = "a run may have completed before it was cancelled"]
pub enum CancelledRun {
    /// The key is not in flight, or its run is about to complete. The request had no effect.
    NotInFlight,
    /// The run was asked to stop. The key stays in flight until its worker completes the run.
    Cancelled,
    /// An earlier request has already cancelled the run, which has not completed yet. This request
    /// had no effect.
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
    /// The run in flight continues. The key runs once more after its completion.
    #[default]
    After,
    /// The add [cancels](CancelReason::Restarted) the run in flight. The key runs again when that
    /// run has stopped.
    ///
    /// A delayed add cancels the run when the add is due. An add that must wait for a backoff
    /// cancels the run when the backoff ends.
    Restart {
        /// The maximum length of a series of restarts, measured from its first restart. After this
        /// time, adds no longer cancel the run. The runs of a key that is constantly added can
        /// therefore complete. A series ends when a run that was not cancelled completes. With
        /// zero, no run is restarted. With [`Duration::MAX`], a series has no maximum length.
        at_most: Duration,
    },
}

impl InFlightPolicy {
    /// Returns [`Restart`](Self::Restart) with a maximum of 30 s for a series of restarts.
    #[must_use]
    pub const fn restart() -> Self {
        Self::Restart { at_most: Duration::from_secs(30) }
    }
}
