//! What can be done to a queue, as values.

use std::time::Duration;

use requeue_core::Ending;

use crate::model::Ask;

/// How a worker finishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// client-go's `Done`: the failures stay as they are.
    Done,
    /// The run succeeded, and the failures are forgotten.
    Succeed,
    /// As `Succeed`, and the key is added again after this delay.
    RequeueAfter(Duration),
    /// The run failed and is retried after this delay.
    RetryAfter(Duration),
    /// The delivery is undone.
    Release,
}

/// One step. Keys have numbers from 0 on; a queue of `n` keys takes a number modulo `n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Adds a key.
    Add(u32, Ask),
    /// Takes the next key.
    Get,
    /// Finishes the hand-out with this number among those not finished, from the oldest on and
    /// around.
    Finish(usize, How),
    /// Uses the ticket of a hand-out that has ended, with this number.
    FinishStale(usize, How),
    /// Detaches a delivery from its ticket.
    Detach(usize),
    /// client-go's `Done` of a key.
    Done(u32),
    /// Cancels a key.
    Cancel(u32),
    /// Forgets a key's failures.
    Forget(u32),
    /// Makes up to so many keys ready that are due.
    Promote(usize),
    /// Time passes.
    Advance(Duration),
    /// The clock is set back.
    GoBack(Duration),
    /// Pauses or resumes.
    Pause(bool),
    /// Ends the queue.
    End(Ending),
    /// Goes on with the walk over all records, or begins one, looking at so many.
    Page(usize),
    /// Lets a key's clone panic during the next operation, after so many that succeed.
    Break(u32),
}
