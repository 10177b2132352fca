//! The states of a key and of a queue.

/// The phase of a key: the part of its state that is not a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Neither ready nor in flight. The key waits, or the queue remembers only its failures.
    Idle,
    /// The key may be delivered.
    Ready,
    /// The key is in flight.
    InFlight,
    /// The key is in flight, and was added again since its delivery. The key will be delivered once
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

/// The lifecycle state of a queue. The state only moves forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Ending {
    /// All adds are accepted.
    #[default]
    Open,
    /// New keys are refused. Waiting keys still become ready, and known keys are retried.
    Closed,
    /// All adds are refused. Waiting keys are dropped; ready keys are still delivered.
    ShutDown,
}
