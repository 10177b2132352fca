//! A queue of whatever keys, seen as rows.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use requeue::{Counts, Cursor, Entry, Filter, Histograms, Key, Queue};

use crate::keys::escaped;
use crate::rows::{Detail, Row};

pub(crate) type Show<K> = Box<dyn Fn(&K) -> Cow<'_, [u8]> + Send + Sync>;
pub(crate) type Read<K> = Box<dyn Fn(&[u8]) -> Option<K> + Send + Sync>;
pub(crate) type DetailOf<K> = Box<dyn Fn(&K) -> Detail + Send + Sync>;

/// A queue, and how its keys are shown.
pub(crate) struct Shown<K: Key, S> {
    pub(crate) queue: Queue<K, S>,
    pub(crate) show: Show<K>,
    pub(crate) read: Read<K>,
    pub(crate) detail: DetailOf<K>,
}

/// What is asked of it. Nothing here takes longer than a look at 256 keys.
pub(crate) trait Source: Send + Sync {
    fn name(&self) -> Option<&str>;
    fn status(&self) -> Status;
    fn gauges(&self) -> Gauges;
    /// Looks at about `limit` keys, at most 256.
    fn slice(&self, filter: Filter, part: Option<&Part>, at: Cursor, limit: usize) -> Slice;
    /// Looks at about `limit` of the running keys, the longest running first; `None` if times are
    /// not kept.
    fn running(&self, part: Option<&Part>, skip: usize, limit: usize) -> Option<Running>;
    fn find(&self, key: &[u8]) -> Found;
}

/// What there is of one key.
pub(crate) enum Found {
    Row(Box<Row>),
    /// It is not in the queue.
    Nothing,
    /// There can't be a key of these bytes.
    NoKey,
}

/// A part of a walk.
pub(crate) struct Slice {
    pub(crate) rows: Vec<Row>,
    pub(crate) next: Option<Cursor>,
}

/// A part of the running keys.
pub(crate) struct Running {
    pub(crate) rows: Vec<Row>,
    /// How many were looked at.
    pub(crate) looked_at: usize,
}

/// Whether the queue takes keys and hands them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Open,
    Paused,
    /// No new keys; what there is runs.
    Closed,
    ShutDown,
    /// The program has ended, or is about to.
    Ended,
}

/// The numbers of a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauges {
    /// All of them.
    pub(crate) keys: usize,
    pub(crate) ready: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) failing: usize,
    pub(crate) counts: Counts,
    pub(crate) given_up: u64,
    pub(crate) panics: u64,
    /// If times are kept.
    pub(crate) times: Option<Histograms>,
    pub(crate) oldest_ready: Duration,
    pub(crate) longest_running: Duration,
}

/// What a key has to have in it, as it is shown, in any case of its ASCII letters.
pub(crate) struct Part(Vec<u8>);

impl Part {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_ascii_lowercase())
    }

    fn is_in(&self, text: &str) -> bool {
        let first = self.0.first().map_or(0, |&byte| byte);
        text.as_bytes().windows(self.0.len()).any(|window| {
            window[0].to_ascii_lowercase() == first && window.eq_ignore_ascii_case(&self.0)
        })
    }
}

impl<K: Key, S: BuildHasher> Shown<K, S> {
    fn row(&self, entry: &Entry<K>, bytes: &[u8]) -> Row {
        // A program's trouble with one key is no reason to show nothing of the others.
        let detail = catch_unwind(AssertUnwindSafe(|| (self.detail)(&entry.key)));
        Row::new(entry, bytes, self.queue.now(), detail.unwrap_or_default())
    }

    fn rows(&self, entries: Vec<Entry<K>>, part: Option<&Part>) -> Vec<Row> {
        let row = |entry: Entry<K>| {
            let bytes = (self.show)(&entry.key);
            let shown = part.is_none_or(|part| part.is_in(&escaped(&bytes)));
            shown.then(|| self.row(&entry, &bytes))
        };
        entries.into_iter().filter_map(row).collect()
    }
}

impl<K: Key, S: BuildHasher + Send + Sync> Source for Shown<K, S> {
    fn name(&self) -> Option<&str> {
        self.queue.name()
    }

    fn status(&self) -> Status {
        match () {
            () if self.queue.shutting_down() => Status::ShutDown,
            () if self.queue.is_paused() => Status::Paused,
            () if self.queue.is_closed() => Status::Closed,
            () => Status::Open,
        }
    }

    fn gauges(&self) -> Gauges {
        let queue = &self.queue;
        Gauges {
            keys: queue.known(),
            ready: queue.len(),
            waiting: queue.waiting(),
            running: queue.processing(),
            failing: queue.failing(),
            counts: queue.counts(),
            given_up: queue.given_up(),
            panics: queue.panics(),
            times: queue.running(0, 0).map(|_| queue.histograms()),
            oldest_ready: queue.oldest_ready(),
            longest_running: queue.longest_running(),
        }
    }

    fn slice(&self, filter: Filter, part: Option<&Part>, at: Cursor, limit: usize) -> Slice {
        let page = self.queue.snapshot(filter, at, limit);
        Slice { rows: self.rows(page.entries, part), next: page.next }
    }

    fn running(&self, part: Option<&Part>, skip: usize, limit: usize) -> Option<Running> {
        let entries = self.queue.running(skip, limit)?;
        Some(Running { looked_at: entries.len(), rows: self.rows(entries, part) })
    }

    fn find(&self, key: &[u8]) -> Found {
        let Some(key) = (self.read)(key) else { return Found::NoKey };
        match self.queue.look_up(&key) {
            None => Found::Nothing,
            Some(entry) => Found::Row(Box::new(self.row(&entry, &(self.show)(&entry.key)))),
        }
    }
}
