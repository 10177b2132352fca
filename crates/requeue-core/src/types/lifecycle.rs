//! The states of a key and of a queue.

/// The state of a key between its first add and the end of its last run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Neither ready nor in flight: the key waits for its time, or is kept for its failures.
    Idle,
    /// The key may be delivered.
    Ready,
    /// The key is in flight.
    Processing,
    /// The key is in flight and was added again since: it will be delivered once more.
    ProcessingDirty,
}

impl Phase {
    /// Whether the key is in flight.
    #[must_use]
    pub const fn is_processing(self) -> bool {
        matches!(self, Self::Processing | Self::ProcessingDirty)
    }

    /// Whether a run is pending that waits for no time (client-go's `dirty`).
    #[must_use]
    pub const fn is_dirty(self) -> bool {
        matches!(self, Self::Ready | Self::ProcessingDirty)
    }
}

/// The state of a queue. It only goes forward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Ending {
    /// All adds are accepted.
    #[default]
    Open,
    /// New keys are refused. Waiting keys still become ready, and known keys are retried.
    Closed,
    /// All adds are refused. Waiting keys are dropped; ready ones are still delivered.
    ShutDown,
}
