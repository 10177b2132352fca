//! Keys and queues as they are listed: entries, states and counts.

use std::time::Duration;

use crate::types::add::{ParkedAdd, Priority, ReAdd};
use crate::types::key::Key;

/// What a key is in the middle of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum State {
    /// To be handed out.
    Ready,
    /// Its time has not come.
    Waiting,
    /// With a worker, somewhere.
    Processing,
    /// Out of the way, after too many failures, until it is revived or cancelled.
    Parked,
    /// Set aside, because another program has written a row for it that can't be read. No worker gets it
    /// until it is added again; an add replaces the row. [`Entry::error`] says what is wrong.
    Damaged,
}

/// A key as it stands. Times are the engine's.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// What it is in the middle of.
    pub state: State,
    /// For how long; of one that is ready, since it was added or became due. Of one that waits it is
    /// not known.
    pub since: Option<Duration>,
    /// How long until the run that is pending is due; of a key with a worker, of the one after.
    pub due: Option<Duration>,
    /// Of a key with a worker: whether it was added again, and runs once more.
    pub dirty: bool,
    /// Of a key in flight: the fencing token of its delivery, [`Item::epoch`](crate::Item::epoch).
    pub epoch: Option<u64>,
    /// Of a key with a worker: how long until its lease runs out, unless renewed.
    pub lease: Option<Duration>,
    /// Of a key in flight: the [name of its worker](crate::OpenOptions::worker), as that process says it. It may
    /// be whatever others have written to the store: escape it where it is shown.
    pub worker: Option<String>,
    /// Failures in a row.
    pub failures: u32,
    /// Its priority.
    pub priority: Priority,
    /// How many adds the run that is pending stands for.
    pub adds: u32,
    /// The reasons of these adds, or-ed.
    pub reasons: u32,
    /// What the last failure said.
    pub error: Option<String>,
}

/// A key that this process has parked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ParkedKey {
    /// The key.
    pub key: Key,
    /// The number of failures in a row.
    pub failures: u32,
    /// The error of the last failure.
    pub error: String,
    /// True if the last failure is a lease that expired: the worker died, or was cut off from the store.
    pub lease_expired: bool,
}

/// A queue that a store has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// The re-add policy.
    pub re_add: ReAdd,
    /// The effect of an add on a parked key.
    pub parked_add: ParkedAdd,
    /// Whether it has no key in any state.
    pub is_empty: bool,
}

/// How many keys there are in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// To be handed out.
    pub ready: u64,
    /// Their time has not come.
    pub waiting: u64,
    /// With workers.
    pub processing: u64,
    /// Of those with workers, how many run once more.
    pub dirty: u64,
    /// Parked.
    pub parked: u64,
    /// [Damaged](State::Damaged).
    pub damaged: u64,
    /// For how long the oldest ready key has been.
    pub oldest_ready: Duration,
}

impl Entry {
    /// Where the key stands, in a sentence.
    #[must_use]
    pub fn explain(&self) -> String {
        let (key, since) = (&self.key, self.since.unwrap_or_default());
        let failed = match self.failures {
            0 => String::new(),
            1 => ", after a failure".to_owned(),
            n => format!(", after {n} failures in a row"),
        };
        let why = self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        match (self.state, self.due) {
            (State::Parked, _) => format!("{key}: parked since {since:?}{failed}{why}"),
            (State::Damaged, _) => {
                format!("{key}: its row is damaged{why}; add the key again to run it, or cancel it")
            }
            (State::Processing, due) => {
                let lease = self.lease.unwrap_or_default();
                let then = match due {
                    _ if self.dirty => ", and runs once more afterwards".to_owned(),
                    Some(due) => format!(", and is due again in {due:?}"),
                    None => String::new(),
                };
                let worker = self.worker.as_ref().map(|name| format!("worker {name:?}"));
                let worker = worker.unwrap_or_else(|| "a worker".to_owned());
                format!("{key}: with {worker} for {since:?}, its lease for {lease:?} more{then}")
            }
            (State::Waiting, due) => {
                format!("{key}: waits {:?} more{failed}{why}", due.unwrap_or_default())
            }
            (State::Ready, _) => format!("{key}: ready for {since:?}{failed}{why}"),
        }
    }
}
