//! Deliveries, and the ways in which a worker can complete them.

use core::time::Duration;

use alloc::vec::Vec;

use super::slot::Slot;

/// Identifies one delivery of one key, until the delivery is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    /// The slot that the record had when the key was delivered. Compaction may have moved the
    /// record since then.
    pub(crate) slot: Slot,
    pub(crate) hash: u32,
    pub(crate) epoch: u64,
}

impl Ticket {
    /// Returns the number of the delivery. A queue never uses a number twice.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The adds, flags and priority of a run. If the run fails or is undone, the next run gets them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Asked {
    /// The number of adds that the run serves.
    pub adds: u32,
    /// The flags of these adds, or-ed.
    pub flags: u32,
    /// The highest priority among these adds.
    pub priority: i32,
}

/// A delivered key, with the data of its run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a key stays in flight until its delivery is finished"]
pub struct Delivery<K> {
    /// The key.
    pub key: K,
    /// The ticket with which the caller completes the delivery.
    pub ticket: Ticket,
    /// The adds, flags and priority of the run. The run serves at least one add.
    pub asked: Asked,
    /// The number of consecutive failures before this run.
    pub failures: u32,
    /// The time for which the key was ready before this delivery, or `None` if the queue does not
    /// track times.
    pub queued: Option<Duration>,
}

/// The result of [`Queue::get_by_order`](crate::Queue::get_by_order).
#[derive(Debug)]
#[must_use]
pub struct Popped<K> {
    /// The delivery, if a key was ready.
    pub item: Option<Delivery<K>>,
    /// Copies of keys that the queue no longer needs. The caller drops them outside its lock.
    pub dropped: Vec<K>,
    /// True if the call stopped because it had skipped 256 keys. The caller then calls again.
    pub again: bool,
}

/// The way in which a delivery is completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finish {
    /// The worker calls client-go's `Done`. The number of failures does not change.
    Done,
    /// The run succeeded. The failures of the key are forgotten.
    Succeed,
    /// The run failed, and the key is not retried. The counter of failures grows, and the failures
    /// of the key are forgotten.
    GiveUp,
    /// The worker undoes the delivery. No failure is counted. The key is ready immediately, at the
    /// tail of the order.
    Release {
        /// The adds, flags and priority of the run, which the next run gets.
        asked: Asked,
    },
    /// The run was cancelled and has stopped. The number of failures does not change.
    Cancelled {
        /// The adds, flags and priority of the run. The next run gets them if an add had cancelled
        /// this run.
        asked: Asked,
    },
    /// Like `Succeed`, but the key is also added again after a delay.
    RequeueAfter {
        /// The delay, which begins at the completion.
        delay: Duration,
        /// The adds, flags and priority of the run. The next run gets only the priority.
        asked: Asked,
    },
    /// The run failed, and the key is retried after a delay.
    RetryAfter {
        /// The delay that a limiter has computed. It begins at the completion.
        delay: Duration,
        /// The adds, flags and priority of the run, which the retry gets.
        asked: Asked,
    },
    /// Like `Release`, but the key waits until the delay is over or until it is added again. If the
    /// key was added again while it was in flight, it does not wait.
    ReleaseAfter {
        /// The delay, which begins at the completion.
        delay: Duration,
        /// The adds, flags and priority of the run, which the next run gets.
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

    /// Returns the adds, flags and priority of the run. They are zero if the completion never
    /// passes them to the next run.
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

/// The effect of a completion on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Finished<K> {
    /// The key, if the queue no longer has a record of it. The caller drops the key. If `lost` is
    /// true, the caller reports it first.
    pub key: Option<K>,
    /// True if the shutdown of the queue has prevented a run that was requested.
    pub lost: bool,
    /// True if the key is ready again.
    pub ready: bool,
    /// True if the key was dirty: it had been added again while it was in flight.
    pub was_dirty: bool,
    /// The time for which the key was in flight, or `None` if the queue does not track times.
    pub worked: Option<Duration>,
}
