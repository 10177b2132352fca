//! Tables of the embedding program on the dashboard.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

pub(crate) type MakeSection = Box<dyn Fn() -> Option<Section> + Send + Sync>;

/// A table of the embedding program, for [`Builder::section`](crate::Builder::section).
///
/// A row with fewer cells than columns is filled with empty cells. Cells beyond the columns are not shown.
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
    /// Creates a table without rows. `title` and the names of the columns should be one to three words.
    pub fn new<C: Into<Cow<'static, str>>>(
        title: impl Into<Cow<'static, str>>,
        columns: impl IntoIterator<Item = C>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<C: ToString>(mut self, cells: impl IntoIterator<Item = C>) -> Self {
        let mut row: Vec<_> = cells.into_iter().map(|cell| cell.to_string()).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
        self
    }
}

/// Reads all sections. If the function of a section panics, the section is omitted.
pub(crate) fn read_sections(all: &[MakeSection]) -> Vec<Section> {
    // The functions are user code. A panic in one of them must not hide the other tables.
    let read = |make: &MakeSection| catch_unwind(AssertUnwindSafe(make)).ok().flatten();
    all.iter().filter_map(read).collect()
}
