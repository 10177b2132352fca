//! Plain data of a queue in memory, with the fields of the classes in `requeue._types`.

use std::time::Duration;

use pyo3::prelude::*;
use requeue::{Drained, Entry, Phase, StateCounts, Time};
use requeue_store::Key;

use crate::convert::{PyKey, Seconds, name_cancel_reason, to_keys};

/// The fields of `requeue.Entry`.
#[derive(IntoPyObject)]
pub(super) struct EntryFields {
    key: PyKey,
    state: &'static str,
    dirty: bool,
    since: Option<Seconds>,
    due: Option<Seconds>,
    bound: Option<Seconds>,
    failures: u32,
    priority: i32,
    flags: u32,
    adds: u32,
    throttled: bool,
    cancelled: Option<&'static str>,
}

impl EntryFields {
    pub(super) fn new(entry: Entry<Key>, now: Time) -> Self {
        let until = |time: Time| match time {
            Time::NEVER => Seconds(Duration::MAX),
            time => Seconds(time.since(now)),
        };
        Self {
            key: PyKey(entry.key),
            state: match entry.phase {
                Phase::Ready => "ready",
                Phase::InFlight | Phase::InFlightDirty => "in_flight",
                Phase::Idle if entry.due.is_some() => "waiting",
                // `Idle`, and phases that later versions may add.
                _ => "idle",
            },
            dirty: entry.phase == Phase::InFlightDirty,
            since: entry.since.map(|since| Seconds(now.since(since))),
            due: entry.due.map(until),
            bound: entry.bound.map(until),
            failures: entry.failures,
            priority: entry.priority,
            flags: entry.flags,
            adds: entry.adds,
            throttled: entry.held_back,
            cancelled: entry.cancelled.map(name_cancel_reason),
        }
    }
}

/// The fields of `requeue.StateCounts`.
#[derive(IntoPyObject)]
pub(super) struct CountFields {
    ready: usize,
    waiting: usize,
    backing_off: usize,
    in_flight: usize,
    dirty: usize,
}

impl From<StateCounts> for CountFields {
    fn from(counts: StateCounts) -> Self {
        let StateCounts { ready, waiting, backing_off, in_flight, dirty, .. } = counts;
        Self { ready, waiting, backing_off, in_flight, dirty }
    }
}

/// The fields of `requeue.Drained`.
#[derive(IntoPyObject)]
pub(crate) struct DrainedFields {
    finished: bool,
    ready: usize,
    in_flight: usize,
    dropped: Vec<PyKey>,
}

impl From<Drained<Key>> for DrainedFields {
    fn from(drained: Drained<Key>) -> Self {
        let Drained { finished, ready, in_flight, dropped, .. } = drained;
        Self { finished, ready, in_flight, dropped: to_keys(dropped) }
    }
}
