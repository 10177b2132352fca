//! Handles rows that cannot be read. They are set aside: the engine keeps them, lists them as damaged, and never
//! delivers them.
//!
//! Only Redis can have damaged rows. In SQLite and PostgreSQL, the constraints of the tables refuse them. Damaged rows
//! result from manual edits and faulty restores; requeue does not write them. A damaged row cannot harm other keys,
//! because each value is checked where it is read. An add replaces a damaged row, and a cancel or a drop of the queue
//! removes it. No other operation changes it.

use crate::engine::row::Row;
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// A key whose row cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    pub(crate) key: Key,
    /// Names the invalid value in a few words.
    pub(crate) why: String,
}

impl Damaged {
    /// Reports a key that was set aside. Only the process that set the key aside reports it.
    pub(crate) fn report_set_aside(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.why,
            "the key's row is damaged: it was set aside; add the key again to run it, or cancel it"
        );
    }

    /// Reports a key whose damaged row an add has replaced before the row was set aside.
    pub(crate) fn report_replaced(&self, queue: &str) {
        tracing::warn!(
            target: "requeue_store::damaged",
            queue,
            key = %self.key,
            damage = self.why,
            "the key's row was damaged: this add has replaced it, and the key runs"
        );
    }

    /// Returns the entry that readers see.
    pub(crate) fn into_entry(self) -> Entry {
        let entry = Row::default().to_entry(self.key, 0);
        Entry { state: State::Damaged, since: None, error: Some(self.why), ..entry }
    }
}
