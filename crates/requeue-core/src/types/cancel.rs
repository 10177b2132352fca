//! The cancellation of a run in flight: its reasons and its result.

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
    /// The workers stop.
    Stopping,
    /// The key no longer belongs to this worker, because its lease has expired.
    Lost,
}

/// The result of cancelling the run in flight of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
#[must_use = "a run may have completed before it was cancelled"]
pub enum CancelledRun {
    /// The key is not in flight. Nothing has changed.
    NotInFlight,
    /// The run is cancelled. It stays in flight until its worker completes it.
    Cancelled,
    /// The run was cancelled before, and has not completed yet. Nothing has changed.
    AlreadyCancelled,
}
