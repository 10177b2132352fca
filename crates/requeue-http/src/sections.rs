//! The tables that the embedding program adds to the dashboard.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

pub(crate) type MakeSection = Box<dyn Fn() -> Option<Section> + Send + Sync>;

/// A table that the embedding program shows on the dashboard: see
/// [`Builder::section`](crate::Builder::section).
///
/// If a row has fewer cells than the table has columns, empty cells are added. If it has more, the
/// additional cells are dropped.
///
/// # Examples
///
/// ```
/// use requeue_http::Section;
///
/// let section = Section::new("Replicas", ["replica", "shards"]).row(["a", "32"]).row(["b", "32"]);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[must_use]
pub struct Section {
    title: Cow<'static, str>,
    columns: Vec<Cow<'static, str>>,
    rows: Vec<Vec<String>>,
}

impl Section {
    /// Creates a table without rows. `title` and each name in `columns` should consist of one to
    /// three words.
    pub fn new<C: Into<Cow<'static, str>>>(
        title: impl Into<Cow<'static, str>>,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row below the existing rows.
    pub fn row<C: ToString>(mut self, cells: impl IntoIterator<Item = C>) -> Self {
        let mut row: Vec<_> = cells.into_iter().map(|cell| cell.to_string()).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self
    }
}

/// Calls the functions of all sections, and returns their tables. If a function panics, its table
/// is omitted.
pub(crate) fn read_sections(all: &[MakeSection]) -> Vec<Section> {
    // The functions belong to the user. If one of them panics, the other tables must still be
    // shown.
    let read = |make: &MakeSection| catch_unwind(AssertUnwindSafe(make)).ok().flatten();
    all.iter().filter_map(read).collect()
}
