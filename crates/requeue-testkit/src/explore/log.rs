//! The log of a run. Reports show it, and tests compare the logs of two runs.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Uri};

use crate::invariants::Writer;

/// The number of entries that a report shows. These are the last ones.
const SHOWN: usize = 40;

/// The entries of a run, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Log(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    at: Duration,
    writer: Option<Writer>,
    what: What,
}

/// The event that an entry of the log describes.
#[derive(Debug)]
pub(super) enum What {
    /// A request to the API server, with the status of the response.
    Request { method: Method, uri: Uri, body: Bytes, status: u16 },
    /// A fault that has happened.
    Fault(String),
    /// A step of a process, an operation on a store, or a note.
    Note(String),
}

impl Log {
    pub(super) fn push(&mut self, at: Duration, writer: Option<Writer>, what: What) {
        self.0.push(Entry { at, writer, what });
    }

    /// Returns all entries as text. The entries of requests contain the query and the
    /// body.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|entry| match &entry.what {
            // The queries and bodies of Events are omitted, because kube's `Recorder`
            // takes their names and times from the real clock.
            What::Request { uri, body, .. } if !is_for_events(uri) => {
                let query = uri.query().unwrap_or_default();
                format!("{entry} {query} {}", String::from_utf8_lossy(body))
            }
            _ => entry.to_string(),
        })
    }

    /// Returns the last entries as text, without queries and bodies.
    pub(super) fn tail(&self) -> Vec<String> {
        // The renewals of Leases and the reads by the test are omitted. Otherwise, few
        // other entries would be shown.
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
