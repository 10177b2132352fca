//! The operations of a queue, as values.

use std::time::Duration;

use requeue_core::Ending;

use crate::model::AddRequest;

/// The way in which a worker completes a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// client-go's `Done`. The failures do not change.
    Done,
    /// The run succeeded. The failures are forgotten.
    Succeed,
    /// The run failed, and is not retried. The failures are forgotten.
    GiveUp,
    /// Like `Succeed`, but the key is added again after this delay.
    RequeueAfter(Duration),
    /// The run failed, and is retried after this delay.
    RetryAfter(Duration),
    /// The delivery is undone.
    Release,
    /// The delivery is undone, and the key waits for this time.
    ReleaseAfter(Duration),
    /// The run was cancelled. The failures do not change.
    Cancelled,
}

/// One step. Keys have numbers from 0 on. With `n` keys, numbers are taken modulo `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Adds a key.
    Add(u32, AddRequest),
    /// Takes the next key.
    Get,
    /// Completes one of the deliveries in flight. The number counts from the oldest delivery, modulo the number of
    /// deliveries in flight.
    Finish(usize, How),
    /// Uses the ticket of a completed delivery. The number chooses one of the last 16 deliveries.
    FinishStale(usize, How),
    /// Detaches a delivery from its ticket.
    Detach(usize),
    /// Seals a delivery, so that it can no longer be cancelled.
    Seal(usize),
    /// Makes a delivery count toward the pace from now on, or not at all.
    CountStart(usize, bool),
    /// client-go's `Done` of a key.
    Done(u32),
    /// Cancels a key.
    Cancel(u32),
    /// Cancels the run in flight of a key.
    CancelRunning(u32),
    /// Pauses or resumes the team with this number. With `n` teams, the number is taken modulo `n`.
    PauseTeam(u32, bool),
    /// Cancels the keys of a team.
    CancelTeam(u32),
    /// Cancels the runs in flight of the keys of a team.
    CancelRunningTeam(u32),
    /// Ends all waits for debounced adds.
    FlushDebounced,
    /// Forgets a key's failures.
    Forget(u32),
    /// Makes up to this number of due keys ready.
    Promote(usize),
    /// Advances the clock.
    Advance(Duration),
    /// Sets the clock back.
    GoBack(Duration),
    /// Pauses or resumes deliveries.
    Pause(bool),
    /// Closes the queue or shuts it down.
    End(Ending),
    /// Continues or begins the walk over all records, with a page of this size.
    Page(usize),
    /// Makes a key's clone panic during the next operation, after this number of successful clones.
    Break(u32),
}
