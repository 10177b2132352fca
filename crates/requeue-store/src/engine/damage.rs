//! Handles rows that an engine cannot read. Such a row is set aside: the engine keeps it, lists its key as damaged, and
//! never delivers the key.
//!
//! Only Redis can have damaged rows. In SQLite and PostgreSQL, the constraints of the tables refuse them. Damaged rows
//! result from manual edits and faulty restores, because requeue does not write them. A damaged row does not affect
//! other keys: each value is checked when it is read. An add replaces a damaged row, and a cancel or a drop of the
//! queue removes it. No other operation changes it.

use crate::engine::row::Row;
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// A key whose row cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    pub(crate) key: Key,
    /// Says in a few words which value is invalid.
    pub(crate) why: String,
}

impl Damaged {
    /// Logs that the row of a key was set aside. Only the process whose operation has set the row aside logs the event.
    pub(crate) fn report_set_aside(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.why,
            "the key's row is damaged: it was set aside; add the key again to run it, or cancel it"
        );
    }

    /// Logs that an add has replaced a damaged row that was not set aside before.
    pub(crate) fn report_replaced(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.why,
            "the key's row was damaged: this add has replaced it, and the key runs"
        );
    }

    /// Returns the entry of the damaged key, as reads return it.
    pub(crate) fn into_entry(self) -> Entry {
        let entry = Row::default().to_entry(self.key, 0);
        Entry { state: State::Damaged, since: None, error: Some(self.why), ..entry }
    }
}
