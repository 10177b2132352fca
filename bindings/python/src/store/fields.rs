//! Plain data of a store, with the fields of the classes in `requeue._types`.

use pyo3::prelude::*;
use requeue_store::{Attempt, Entry, GroupInfo, QueueInfo, ScheduleInfo, State, StateCounts};

use crate::convert::{PyKey, Seconds, name_cancel_reason};

/// The fields of `requeue.StateCounts`.
#[derive(IntoPyObject)]
pub(super) struct CountFields {
    ready: u64,
    waiting: u64,
    in_flight: u64,
    dirty: u64,
    parked: u64,
    damaged: u64,
    oldest_ready: Seconds,
}

impl From<StateCounts> for CountFields {
    fn from(counts: StateCounts) -> Self {
        let StateCounts { ready, waiting, in_flight, dirty, parked, damaged, oldest_ready, .. } =
            counts;
        let oldest_ready = Seconds(oldest_ready);
        Self { ready, waiting, in_flight, dirty, parked, damaged, oldest_ready }
    }
}

fn name_state(state: State) -> &'static str {
    match state {
        State::Ready => "ready",
        State::Waiting => "waiting",
        State::InFlight => "in_flight",
        State::Parked => "parked",
        // `Damaged`, and states that later versions may add.
        _ => "damaged",
    }
}

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
    cancelled: Option<&'static str>,
    error: Option<String>,
    failed: Option<Seconds>,
    group: Option<String>,
    worker: Option<String>,
    fencing_token: Option<u64>,
    lease: Option<Seconds>,
}

impl From<Entry> for EntryFields {
    fn from(entry: Entry) -> Self {
        Self {
            key: PyKey(entry.key),
            state: name_state(entry.state),
            dirty: entry.dirty,
            since: entry.since.map(Seconds),
            due: entry.due.map(Seconds),
            bound: entry.bound.map(Seconds),
            failures: entry.failures,
            priority: entry.priority.into(),
            flags: entry.flags,
            adds: entry.adds,
            cancelled: entry.cancelled.map(name_cancel_reason),
            error: entry.error,
            failed: entry.failed.map(Seconds),
            group: entry.group,
            worker: entry.worker,
            fencing_token: entry.fencing_token,
            lease: entry.lease.map(Seconds),
        }
    }
}

/// The fields of `requeue.Attempt`.
#[derive(IntoPyObject)]
pub(super) struct AttemptFields {
    number: u32,
    ended: Seconds,
    took: Seconds,
    worker: Option<String>,
    exit_status: Option<i32>,
    error: String,
    output: Option<String>,
}

impl From<Attempt> for AttemptFields {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.number,
            ended: Seconds(attempt.ended),
            took: Seconds(attempt.took),
            worker: attempt.worker,
            exit_status: attempt.exit_status,
            error: attempt.error,
            output: attempt.output,
        }
    }
}

/// The fields of `requeue.QueueInfo`.
#[derive(IntoPyObject)]
pub(super) struct QueueFields {
    name: String,
    is_empty: bool,
    is_paused: bool,
    group_limit: Option<u32>,
    rate: Option<String>,
}

impl From<QueueInfo> for QueueFields {
    fn from(queue: QueueInfo) -> Self {
        let QueueInfo { name, is_empty, is_paused, group_limit, rate, .. } = queue;
        Self { name, is_empty, is_paused, group_limit, rate: rate.map(|rate| rate.to_string()) }
    }
}

/// The fields of `requeue.GroupInfo`.
#[derive(IntoPyObject)]
pub(super) struct GroupFields {
    name: String,
    counts: CountFields,
    limit: Option<u32>,
    weight: u32,
    rate: Option<String>,
    next_start: Option<Seconds>,
    is_paused: bool,
}

impl From<GroupInfo> for GroupFields {
    fn from(group: GroupInfo) -> Self {
        Self {
            name: group.name,
            counts: group.counts.into(),
            limit: group.limit,
            weight: group.weight,
            rate: group.rate.map(|rate| rate.to_string()),
            next_start: group.next_start.map(Seconds),
            is_paused: group.is_paused,
        }
    }
}

/// The fields of `requeue.ScheduleInfo`.
#[derive(IntoPyObject)]
pub(super) struct ScheduleFields {
    key: PyKey,
    spec: String,
    zone: Option<String>,
    next: Option<Seconds>,
    is_paused: bool,
    error: Option<String>,
    priority: i32,
    group: Option<String>,
}

impl From<ScheduleInfo> for ScheduleFields {
    fn from(schedule: ScheduleInfo) -> Self {
        Self {
            key: PyKey(schedule.key),
            spec: schedule.spec,
            zone: schedule.zone,
            next: schedule.next.map(Seconds),
            is_paused: schedule.is_paused,
            error: schedule.error,
            priority: schedule.priority.into(),
            group: schedule.group,
        }
    }
}
