//! Deliveries: what the queue hands to a worker, and how the worker finishes.

use core::time::Duration;

use alloc::vec::Vec;

use super::slot::Slot;

/// Identifies one delivery of one key. The ticket of a delivery that has ended has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    /// The slot of the record at the time of the delivery. The record may have moved since.
    pub(crate) slot: Slot,
    pub(crate) hash: u32,
    pub(crate) epoch: u64,
}

impl Ticket {
    /// The number of the delivery, which the queue never uses twice.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// What the adds of a run asked for. A run that does not succeed gives it back to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Asked {
    /// The number of adds that the run stands for.
    pub adds: u32,
    /// Their reasons, or-ed.
    pub reasons: u32,
    /// Their highest priority.
    pub priority: i32,
}

/// A key in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a key stays in flight until its delivery is finished"]
pub struct Delivery<K> {
    /// The key.
    pub key: K,
    /// The ticket that finishes the delivery.
    pub ticket: Ticket,
    /// What the adds of the run asked for. `adds` is at least 1.
    pub asked: Asked,
    /// Failures in a row before this run.
    pub failures: u32,
    /// How long the key was ready, if times are tracked.
    pub queued: Option<Duration>,
}

/// The result of [`Queue::get_by_order`](crate::Queue::get_by_order).
#[derive(Debug)]
#[must_use]
pub struct Popped<K> {
    /// The key that is delivered.
    pub item: Option<Delivery<K>>,
    /// Copies of keys, for the caller to drop.
    pub dropped: Vec<K>,
    /// Whether the call stopped early because it had skipped many keys. The caller calls again.
    pub again: bool,
}

/// How a delivery ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Finish {
    /// client-go's `Done`: the failures stay as they are.
    Done,
    /// The run succeeded, and the failures are forgotten.
    Succeed,
    /// As `Succeed`, and the key is added again after a delay.
    RequeueAfter {
        /// The delay from now.
        delay: Duration,
        /// What the adds of the run asked for; its priority is kept.
        asked: Asked,
    },
    /// The run failed and is retried after a delay.
    RetryAfter {
        /// The delay from now, as a limiter computed it.
        delay: Duration,
        /// What the adds of the run asked for; all of it goes to the retry.
        asked: Asked,
    },
    /// The delivery is undone: no failure counts, and the key is ready at once, at the tail.
    Release {
        /// What the adds of the run asked for.
        asked: Asked,
    },
}

/// The result of a delivery that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Finished<K> {
    /// The record's key, if no record is kept. The caller drops it, or reports it if `lost`.
    pub key: Option<K>,
    /// Whether a run that was asked for will not happen, because the queue has ended.
    pub lost: bool,
    /// Whether the key is ready again.
    pub ready: bool,
    /// Whether the key had been added again while it was in flight.
    pub was_dirty: bool,
    /// How long the key was in flight, if times are tracked.
    pub worked: Option<Duration>,
}
