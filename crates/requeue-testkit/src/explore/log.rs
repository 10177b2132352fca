//! The log of a run, for reports and to compare two runs.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Uri};

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
    /// A request, with the status of its answer.
    Request { method: Method, uri: Uri, body: Bytes, status: u16 },
    /// A fault.
    Fault(String),
    /// A step of a process, an operation on a store, or a note.
    Note(String),
}

impl Log {
    pub(super) fn push(&mut self, at: Duration, writer: Option<Writer>, what: What) {
        self.0.push(Entry { at, writer, what });
    }

    /// Returns all lines. Those of requests have the query and the body.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|entry| match &entry.what {
            // The name and the times of an Event are from the real clock.
            What::Request { uri, body, .. } if !is_for_events(uri) => {
                let query = uri.query().unwrap_or_default();
                format!("{entry} {query} {}", String::from_utf8_lossy(body))
            }
            _ => entry.to_string(),
        })
    }

    /// Returns the last lines, without queries and bodies.
    pub(super) fn tail(&self) -> Vec<String> {
        // Renewals of Leases, and the checks of the test, would hide everything else.
        let is_shown = |entry: &&Entry| match &entry.what {
            What::Request { method, uri, .. } => {
                let is_check = entry.writer == Some(Writer::User) && *method == Method::GET;
                !is_check && !uri.path().contains("/leases")
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
            What::Request { method, uri, status, .. } => {
                let path = uri.path();
                let shown = match path.rsplit_once('/') {
                    Some((list, _name)) if list.ends_with("/events") => list,
                    _ => path,
                };
                write!(f, "{method} {shown} -> {status}")
            }
            What::Fault(fault) => write!(f, "FAULT at {fault}"),
            What::Note(note) => f.write_str(note),
        }
    }
}

fn is_for_events(uri: &Uri) -> bool {
    uri.path().split('/').any(|part| part == "events")
}
