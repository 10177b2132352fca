//! Handles rows that cannot be read. They are set aside: kept, listed as damaged, and never delivered.
//!
//! Only Redis can have damaged rows: the constraints of the tables refuse them in SQLite and PostgreSQL.
//! requeue does not write them. They result from manual edits and faulty restores. A damaged row cannot harm
//! other keys, because each value is checked where it is read. An add replaces a damaged row, and a cancel or
//! a drop of the queue removes it. No other operation changes it.

use std::sync::Arc;

use crate::types::add::Priority;
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;
use crate::types::worker::invalid_worker;

/// The reason why a row cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damage {
    /// Names the invalid value in a few words.
    pub(crate) said: String,
}

impl Damage {
    pub(crate) fn new(said: impl Into<String>) -> Self {
        Self { said: said.into() }
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
            fencing_token: None,
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

pub(crate) fn bad(name: &str, value: Option<i64>) -> Damage {
    let said = value.map_or_else(|| format!("{name} is null"), |it| format!("{name} is {it}"));
    Damage::new(said)
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
