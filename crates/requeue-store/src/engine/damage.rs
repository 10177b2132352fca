//! Handles rows that cannot be read. They are set aside: kept, listed as damaged, and never delivered.
//!
//! Only Redis can have damaged rows: the constraints of the tables refuse them in SQLite and PostgreSQL.
//! requeue does not write them. They result from manual edits and faulty restores. A damaged row cannot harm
//! other keys, because each value is checked where it is read. An add replaces a damaged row, and a cancel or
//! a drop of the queue removes it. No other operation changes it.

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
    /// Reports a key that was set aside. The process that set it aside reports it, once.
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
