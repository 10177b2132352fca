//! The log of a run, for reports and to compare two runs.

use std::fmt;
use std::time::Duration;

use crate::invariants::Writer;

/// The number of the last entries that a report shows.
const SHOWN: usize = 40;

/// The events of a run, in order.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    at: Duration,
    writer: Option<Writer>,
    what: What,
}

/// One thing that happened.
#[derive(Debug)]
pub(super) enum What {
    /// A request, by its method and its path, with the status of the answer.
    Answer(http::Method, String, u16),
    /// A fault.
    Fault(String),
    /// A step of a process, an operation on a store, or a note.
    Note(String),
}

impl Log {
    pub(super) fn push(&mut self, at: Duration, writer: Option<Writer>, what: What) {
        self.0.push(Entry { at, writer, what });
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(ToString::to_string)
    }

    /// Returns the last lines.
    pub(super) fn tail(&self) -> Vec<String> {
        // Renewals of Leases, and the checks of the test, would hide everything else.
        let is_shown = |entry: &&Entry| match &entry.what {
            What::Answer(method, path, _) => {
                let is_check = entry.writer == Some(Writer::User) && *method == http::Method::GET;
                !is_check && !path.contains("/leases")
            }
            _ => true,
        };
        let mut lines: Vec<_> =
            self.0.iter().rev().filter(is_shown).take(SHOWN).map(ToString::to_string).collect();
        lines.reverse();
        lines
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9.3} s  ", self.at.as_secs_f64())?;
        if let Some(writer) = self.writer {
            write!(f, "{writer}: ")?;
        }
        match &self.what {
            What::Answer(method, path, code) => write!(f, "{method} {path} -> {code}"),
            What::Fault(fault) => write!(f, "FAULT at {fault}"),
            What::Note(note) => f.write_str(note),
        }
    }
}
