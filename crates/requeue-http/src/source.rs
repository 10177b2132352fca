//! The trait of sources: a queue of any kind, as rows.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::Duration;

use requeue::{Counts, Histograms};

use crate::params::Problem;
use crate::rows::{Detail, Row};

pub(crate) type Show<K> = Box<dyn Fn(&K) -> Cow<'_, [u8]> + Send + Sync>;
pub(crate) type Read<K> = Box<dyn Fn(&[u8]) -> Option<K> + Send + Sync>;
pub(crate) type DetailOf<K> = Box<dyn Fn(&K) -> Detail + Send + Sync>;
pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send + 'a>>;

/// A queue as the site sees it. Only the methods that may take long are asynchronous.
pub(crate) trait Source: Send + Sync {
    fn name(&self) -> Option<&str>;
    fn status(&self) -> Status;
    fn gauges(&self) -> Gauges;
    /// Returns up to `limit` running keys, the one that has run the longest first. Empty if the queue does not keep
    /// times.
    fn longest(&self, limit: usize) -> Vec<Row>;
    fn walk<'a>(&'a self, walk: &'a Walk) -> Answer<'a, Walked>;
    fn find<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Found>;
}

/// The result of a search for one key.
pub(crate) enum Found {
    Row(Box<Row>),
    /// The key is not in the queue.
    Nothing,
    /// No key can have these bytes.
    NoKey,
}

/// A request for a page of keys.
pub(crate) struct Walk {
    pub(crate) which: Which,
    pub(crate) part: Option<Part>,
    pub(crate) limit: usize,
    /// The `next` of the page before.
    pub(crate) cursor: Option<String>,
}

impl Walk {
    /// Returns the error for an invalid cursor.
    pub(crate) fn bad_cursor() -> Problem {
        let error = "not the `next` of an earlier page; start again without a cursor";
        Problem::parameter("cursor", error)
    }
}

/// The keys of a walk, by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    All,
    Ready,
    Waiting,
    Running,
    Failing,
    Parked,
    Damaged,
}

/// A page of keys.
#[derive(Default)]
pub(crate) struct Walked {
    pub(crate) rows: Vec<Row>,
    /// The cursor of the next page; `None` at the end.
    pub(crate) next: Option<String>,
    /// The approximate number of keys that were read.
    pub(crate) looked_at: usize,
}

/// The number of keys that are read for one request.
pub(crate) const LOOKS: usize = 100_000;

/// The status of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Open,
    Paused,
    /// New keys are refused, and known keys run.
    Closed,
    ShutDown,
    /// The store cannot be reached.
    #[cfg(feature = "store")]
    Unreachable,
    /// The site has ended.
    Ended,
}

/// The numbers at a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// The number of all keys.
    pub(crate) keys: usize,
    pub(crate) ready: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    /// `None` if they are not counted.
    pub(crate) failing: Option<usize>,
    /// `None` if the queue does not park keys.
    pub(crate) parked: Option<usize>,
    pub(crate) counts: Counts,
    pub(crate) given_up: u64,
    pub(crate) panics: u64,
    /// `None` if the queue does not keep times.
    pub(crate) times: Option<Histograms>,
    pub(crate) oldest_ready: Duration,
    pub(crate) longest_running: Duration,
}

/// A text to search for in keys as they are shown. ASCII letters match in upper and lower case.
pub(crate) struct Part(Vec<u8>);

impl Part {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_ascii_lowercase())
    }

    pub(crate) fn is_in(&self, text: &str) -> bool {
        let first = self.0.first().map_or(0, |&byte| byte);
        text.as_bytes().windows(self.0.len()).any(|window| {
            window[0].to_ascii_lowercase() == first && window.eq_ignore_ascii_case(&self.0)
        })
    }
}

/// Returns the detail of a key. If that panics, the detail is empty, so that other keys are still shown.
pub(crate) fn detail_of<K>(detail: &DetailOf<K>, key: &K) -> Detail {
    catch_unwind(AssertUnwindSafe(|| detail(key))).unwrap_or_default()
}
