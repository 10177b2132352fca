//! The phases of a key and the lifecycle states of a queue.

/// The phase of a key: its state without the times for which it waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The key is neither ready nor in flight. It waits, or the queue remembers only its failures.
    Idle,
    /// The key is ready: it may be delivered.
    Ready,
    /// The key is in flight.
    InFlight,
    /// The key is in flight, and was added again after its delivery. It will be delivered once
    /// more.
    InFlightDirty,
}

impl Phase {
    /// Returns true if the key is in flight.
    #[must_use]
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::InFlight | Self::InFlightDirty)
    }

    /// Returns true if a run without a due time is pending (client-go's `dirty`).
    #[must_use]
    pub(crate) const fn is_dirty(self) -> bool {
        matches!(self, Self::Ready | Self::InFlightDirty)
    }
}

/// The lifecycle state of a queue. A queue never returns to an earlier state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Ending {
    /// The queue accepts all adds.
    #[default]
    Open,
    /// The queue refuses new keys. Waiting keys still become ready, and failed keys are retried.
    Closed,
    /// The queue refuses all adds and drops the waiting keys. Ready keys are still delivered.
    ShutDown,
}
