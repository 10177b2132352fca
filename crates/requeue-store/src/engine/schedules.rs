//! Schedules, as engines store them.
//!
//! Each process fires the schedules that are due: see `client/schedules.rs`. Several processes may find the same
//! schedule due, but only one of them adds its key. An engine changes a schedule only if it is still the same as when
//! the process read it, and adds the key in the same transaction.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::engine::Ask;
use crate::engine::time::{Micros, until};
use crate::types::add::{Add, Priority};
use crate::types::key::Key;
use crate::types::schedule::ScheduleInfo;

/// A key with its schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scheduled {
    pub(crate) key: Key,
    /// The texts of the schedule's [`Calendar`](crate::types::calendar::Calendar).
    pub(crate) spec: String,
    pub(crate) zone: String,
    pub(crate) priority: Priority,
    /// The group of the key, or `None` if the queue has no groups.
    pub(crate) group: Option<Arc<str>>,
    /// The time of the next add. If `is_new` is true, this is the time at which the schedule began, or the last time
    /// before a pause.
    pub(crate) next_at: Micros,
    /// True if no process has computed the next time yet, because the schedule was stored or resumed.
    pub(crate) is_new: bool,
    pub(crate) is_paused: bool,
    /// The reason why a process has refused the schedule, or `None` if none has.
    pub(crate) error: Option<String>,
}

impl Scheduled {
    /// Returns the time from which a process must handle the schedule, or `None` if it is paused or was refused.
    pub(crate) fn due_at(&self) -> Option<Micros> {
        let is_active = !self.is_paused && self.error.is_none();
        is_active.then_some(if self.is_new { 0 } else { self.next_at })
    }

    /// Returns the schedule that is stored when this schedule replaces `was`. If the texts are the same, the times do
    /// not change, so that a program can store its schedules at each start. A schedule with other texts begins now,
    /// even if the earlier schedule was refused.
    pub(crate) fn replace(self, was: Self) -> Self {
        if (&self.spec, &self.zone) == (&was.spec, &was.zone) {
            Self { priority: self.priority, group: self.group, ..was }
        } else {
            Self { is_paused: was.is_paused, ..self }
        }
    }

    /// Returns the schedule after it was paused or resumed. A resumed schedule skips the times that have passed.
    pub(crate) fn set_paused(self, paused: bool) -> Self {
        let is_active = self.due_at().is_some();
        if paused {
            Self { is_paused: true, ..self }
        } else if is_active {
            self
        } else {
            Self { is_paused: false, error: None, is_new: true, ..self }
        }
    }

    /// Returns the request to add the schedule's key.
    pub(crate) fn to_ask(&self) -> Ask {
        let group = self.group.clone();
        Ask { group, ..Ask::new(self.key.clone(), Add::now().priority(self.priority)) }
    }

    pub(crate) fn into_info(self, now: Micros) -> ScheduleInfo {
        let next_at = self.due_at().filter(|_| !self.is_new);
        let next = next_at.map(|at| until(now, at));
        let since_1970 = next_at.and_then(|at| at.try_into().ok()).map(Duration::from_micros);
        let next_at = since_1970.and_then(|since| SystemTime::UNIX_EPOCH.checked_add(since));
        let is_paused = self.is_paused || self.error.is_some();
        let Self { key, spec, zone, priority, group, error, .. } = self;
        let zone = Some(zone).filter(|zone| !zone.is_empty());
        let group = group.map(|group| group.to_string());
        ScheduleInfo { key, spec, zone, next, next_at, is_paused, error, priority, group }
    }
}

/// The schedules of a shard, and the time of the shard's clock at which they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Agenda {
    pub(crate) now: Micros,
    pub(crate) schedules: Vec<Scheduled>,
}

/// The change of a due schedule that a process has computed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Firing {
    /// The schedule has this next time.
    Next(Micros),
    /// The schedule has no next time. The engine stores the reason. The schedule is not due again until it is changed
    /// or resumed.
    Refused(String),
}

impl Firing {
    /// Returns true if the firing adds the key. A new schedule only receives its next time.
    pub(crate) fn adds(&self, was: &Scheduled) -> bool {
        matches!(self, Self::Next(_)) && !was.is_new
    }

    /// Returns the schedule as it is after the firing.
    pub(crate) fn apply(self, was: &Scheduled) -> Scheduled {
        match self {
            Self::Next(next_at) => Scheduled { next_at, is_new: false, ..was.clone() },
            Self::Refused(why) => Scheduled { error: Some(why), ..was.clone() },
        }
    }
}
