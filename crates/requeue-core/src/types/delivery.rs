//! Deliveries, and the ways in which workers complete them.

use core::time::Duration;

use alloc::vec::Vec;

use super::slot::Slot;

/// Identifies one delivery of one key. The ticket becomes invalid when the delivery is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    /// The slot of the record at the time of the delivery. The record may have moved since the
    /// delivery.
    pub(crate) slot: Slot,
    pub(crate) hash: u32,
    pub(crate) epoch: u64,
}

impl Ticket {
    /// Returns the number of the delivery. The queue never uses a number twice.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The adds, flags and priority of a run. A run that fails or is undone passes them to the next
/// run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Asked {
    /// The number of adds that the run serves.
    pub adds: u32,
    /// The flags of these adds, or-ed.
    pub flags: u32,
    /// The highest priority among these adds.
    pub priority: i32,
}

/// A key in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a key stays in flight until its delivery is finished"]
pub struct Delivery<K> {
    /// The key.
    pub key: K,
    /// The ticket that completes the delivery.
    pub ticket: Ticket,
    /// The adds, flags and priority of the run. The number of adds is at least 1.
    pub asked: Asked,
    /// The number of consecutive failures before this run.
    pub failures: u32,
    /// The time for which the key was ready, if times are tracked.
    pub queued: Option<Duration>,
}

/// The result of [`Queue::get_by_order`](crate::Queue::get_by_order).
#[derive(Debug)]
#[must_use]
pub struct Popped<K> {
    /// The delivery, if a key was ready.
    pub item: Option<Delivery<K>>,
    /// Copies of keys, for the caller to drop.
    pub dropped: Vec<K>,
    /// True if the call stopped early because it had skipped 256 keys. The caller then calls again.
    pub again: bool,
}

/// The way in which a delivery is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finish {
    /// client-go's `Done`. The failures do not change.
    Done,
    /// The run succeeded. The failures are forgotten.
    Succeed,
    /// The run failed, and is not retried. The failure is counted, and the key's failures are forgotten.
    GiveUp,
    /// The delivery is undone. No failure is counted, and the key is ready immediately, at the tail.
    Release {
        /// The adds, flags and priority of the run. All of them go to the next run.
        asked: Asked,
    },
    /// The run was cancelled. The failures do not change.
    Cancelled {
        /// The adds, flags and priority of the run. If an add restarted the run, all of them go
        /// to the next run.
        asked: Asked,
    },
    /// Like `Succeed`, but the key is added again after a delay.
    RequeueAfter {
        /// The delay from now.
        delay: Duration,
        /// The adds, flags and priority of the run. The next run keeps the priority.
        asked: Asked,
    },
    /// The run failed, and is retried after a delay.
    RetryAfter {
        /// The delay from now, as a limiter computed it.
        delay: Duration,
        /// The adds, flags and priority of the run. All of them go to the retry.
        asked: Asked,
    },
    /// Like `Release`, but the key waits for a delay, or until it is added again. A key that was added
    /// again in flight does not wait.
    ReleaseAfter {
        /// The delay from now.
        delay: Duration,
        /// The adds, flags and priority of the run. All of them go to the next run.
        asked: Asked,
    },
}

impl Finish {
    /// Returns the delay of the completion, if any.
    pub(crate) const fn delay(self) -> Option<Duration> {
        match self {
            Self::RequeueAfter { delay, .. }
            | Self::RetryAfter { delay, .. }
            | Self::ReleaseAfter { delay, .. } => Some(delay),
            _ => None,
        }
    }

    /// Returns the adds, flags and priority of the run, if its completion may pass them on.
    pub(crate) const fn asked(self) -> Asked {
        match self {
            Self::Done | Self::Succeed | Self::GiveUp => Asked { adds: 0, flags: 0, priority: 0 },
            Self::Release { asked }
            | Self::Cancelled { asked }
            | Self::RequeueAfter { asked, .. }
            | Self::RetryAfter { asked, .. }
            | Self::ReleaseAfter { asked, .. } => asked,
        }
    }
}

/// The result of a completed delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Finished<K> {
    /// The key, if the queue no longer has a record of it. The caller drops the key, or reports it
    /// if `lost` is true.
    pub key: Option<K>,
    /// True if a run that was asked for will not happen, because the queue was shut down.
    pub lost: bool,
    /// True if the key is ready again.
    pub ready: bool,
    /// True if the key was dirty: added again while in flight.
    pub was_dirty: bool,
    /// The time for which the key was in flight, if times are tracked.
    pub worked: Option<Duration>,
}
