//! Handles rows that cannot be read. They are set aside: kept, listed as damaged, and never delivered.
//!
//! requeue does not write damaged rows. They result from manual edits and faulty restores. A damaged row
//! cannot harm other keys, because each value is checked where it is read. An add replaces a damaged row,
//! and a cancel or a drop of the queue removes it. No other operation changes it.

use std::sync::Arc;

use crate::engine::Asked;
use crate::engine::row::{Row, Run};
use crate::engine::time::Micros;
use crate::types::add::Priority;
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;
use crate::types::worker::invalid_worker;

/// The reason why a row cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damage {
    /// Names the invalid value in a few words.
    pub(crate) said: String,
    /// True if the row was set aside, and therefore already reported.
    pub(crate) is_set_aside: bool,
}

impl Damage {
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into(), is_set_aside: false }
    }
}

/// A key whose row cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    pub(crate) key: Key,
    pub(crate) damage: Damage,
}

impl Damaged {
    /// Reports a key that was set aside. The process that set it aside reports it, once.
    pub(crate) fn report_set_aside(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.damage.said,
            "the key's row is damaged: it was set aside; add the key again to run it, or cancel it"
        );
    }

    /// Reports a key whose damaged row an add has replaced before the row was set aside.
    pub(crate) fn report_replaced(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.damage.said,
            "the key's row was damaged: this add has replaced it, and the key runs"
        );
    }

    /// Returns the entry that readers see.
    pub(crate) fn seen(self) -> Entry {
        Entry {
            key: self.key,
            state: State::Damaged,
            since: None,
            due: None,
            bound: None,
            cancelled: None,
            paused: false,
            dirty: false,
            epoch: None,
            lease: None,
            worker: None,
            failures: 0,
            priority: Priority::Normal,
            adds: 0,
            reasons: 0,
            error: Some(self.damage.said),
        }
    }
}

/// A row of a table, as it is stored. `None` stands for null.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) state: Option<i64>,
    pub(crate) at: Option<i64>,
    pub(crate) epoch: Option<i64>,
    pub(crate) lease_until: Option<i64>,
    pub(crate) run_since: Option<i64>,
    pub(crate) run_priority: Option<i64>,
    pub(crate) run_adds: Option<i64>,
    pub(crate) run_reasons: Option<i64>,
    pub(crate) priority: Option<i64>,
    pub(crate) adds: Option<i64>,
    pub(crate) reasons: Option<i64>,
    pub(crate) failures: Option<i64>,
    pub(crate) steps: Option<i64>,
    pub(crate) until: Option<i64>,
    pub(crate) not_before: Option<i64>,
    pub(crate) since: Option<i64>,
    pub(crate) bound: Option<i64>,
    pub(crate) cancel_epoch: Option<i64>,
    pub(crate) error: Option<String>,
    pub(crate) worker: Option<String>,
}

/// The state of a row that was set aside. The row's `error` names the damage.
pub(crate) const SET_ASIDE: i64 = 3;

impl Raw {
    /// Returns the row if every value is valid. The rules are those of the schemas.
    pub(crate) fn read(self) -> Result<Row, Damage> {
        let state = self.state.unwrap_or(-1);
        if state == SET_ASIDE {
            let said = self.error.unwrap_or_else(|| "the cause is unknown".to_owned());
            return Err(Damage { said, is_set_aside: true });
        }
        if !(0..SET_ASIDE).contains(&state) {
            return Err(bad("state", self.state));
        }
        let asked = Asked {
            priority: priority("priority", self.priority)?,
            adds: count("adds", self.adds)?,
            reasons: count("reasons", self.reasons)?,
        };
        let at = self.at.map(|at| time("at", Some(at))).transpose()?;
        // A ready or waiting key has a pending run, and a parked key has none.
        if matches!((state, at), (0, None) | (2, Some(_))) {
            return Err(bad("at", self.at));
        }
        let bound = self.bound.map(|bound| time("bound", Some(bound))).transpose()?;
        if self.cancel_epoch.is_some_and(|epoch| epoch <= 0) {
            return Err(bad("cancel_epoch", self.cancel_epoch));
        }
        let run = match self.epoch {
            Some(epoch) if state == 1 && epoch > 0 => Some(Run {
                epoch,
                is_cancelled: self.cancel_epoch == Some(epoch),
                lease_until: time("lease_until", self.lease_until)?,
                since: time("run_since", self.run_since)?,
                asked: Asked {
                    priority: priority("run_priority", self.run_priority)?,
                    adds: count("run_adds", self.run_adds)?,
                    reasons: count("run_reasons", self.run_reasons)?,
                },
            }),
            None if state != 1 => None,
            epoch => return Err(bad("epoch", epoch)),
        };
        // Without a run in flight, the worker's name has no meaning.
        let worker = match (&run, &self.worker) {
            (Some(_), Some(name)) => worker(name.as_bytes())?,
            _ => None,
        };
        Ok(Row {
            at,
            // Without a pending run, the bound has no meaning.
            bound: bound.filter(|_| at.is_some()),
            run,
            worker,
            parked: state == 2,
            failures: count("failures", self.failures)?,
            steps: count("steps", self.steps)?,
            until: time("until", self.until)?,
            not_before: time("not_before", self.not_before)?,
            asked,
            since: time("since", self.since)?,
            error: self.error,
        })
    }
}

/// Refuses a key that is longer than an add permits.
pub(crate) fn check_length(key: &[u8]) -> Result<(), Damage> {
    match key.len() {
        ..=Key::LONGEST => Ok(()),
        bytes => Err(Damage::new(format!("the key has {bytes} bytes"))),
    }
}

pub(crate) fn bad(name: &str, value: Option<i64>) -> Damage {
    let said = value.map_or_else(|| format!("{name} is null"), |it| format!("{name} is {it}"));
    Damage::new(said)
}

/// Accepts times from 1970 on, so that the difference between two times never overflows.
fn time(name: &str, value: Option<i64>) -> Result<Micros, Damage> {
    value.filter(|&time| time >= 0).ok_or_else(|| bad(name, value))
}

fn count(name: &str, value: Option<i64>) -> Result<u32, Damage> {
    value.and_then(|value| value.try_into().ok()).ok_or_else(|| bad(name, value))
}

/// Returns the name of a worker, or `None` if it is empty.
pub(crate) fn worker(name: &[u8]) -> Result<Option<Arc<str>>, Damage> {
    if name.is_empty() {
        return Ok(None);
    }
    let name = std::str::from_utf8(name).ok().filter(|name| invalid_worker(name).is_none());
    name.map(|name| Some(name.into())).ok_or_else(bad_worker)
}

pub(crate) fn bad_worker() -> Damage {
    Damage::new("worker is not valid")
}

pub(crate) fn priority(name: &str, value: Option<i64>) -> Result<Priority, Damage> {
    let is = |one: &Priority| value == Some(one.number().into());
    Priority::ALL.into_iter().find(is).ok_or_else(|| bad(name, value))
}
