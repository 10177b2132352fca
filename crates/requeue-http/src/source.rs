//! What is shown: a queue of whatever kind and keys, seen as rows.

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

/// What is asked of a queue. Only what may take its time is waited for.
pub(crate) trait Source: Send + Sync {
    fn name(&self) -> Option<&str>;
    fn status(&self) -> Status;
    fn gauges(&self) -> Gauges;
    /// Up to so many of the running keys, the longest running first; none if that is not known.
    fn longest(&self, limit: usize) -> Vec<Row>;
    fn walk<'a>(&'a self, walk: &'a Walk) -> Answer<'a, Walked>;
    fn find<'a>(&'a self, key: &'a [u8]) -> Answer<'a, Found>;
}

/// What there is of one key.
pub(crate) enum Found {
    Row(Box<Row>),
    /// It is not in the queue.
    Nothing,
    /// There can't be a key of these bytes.
    NoKey,
}

/// A page of keys that is asked for.
pub(crate) struct Walk {
    pub(crate) which: Which,
    pub(crate) part: Option<Part>,
    pub(crate) limit: usize,
    /// Where to go on: what a page before has said.
    pub(crate) cursor: Option<String>,
}

impl Walk {
    /// The cursor is none of those that were given out.
    pub(crate) fn bad_cursor() -> Problem {
        let error = "not the `next` of an earlier page; begin again without a cursor";
        Problem::parameter("cursor", error)
    }
}

/// Which keys.
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

/// What was found.
#[derive(Default)]
pub(crate) struct Walked {
    pub(crate) rows: Vec<Row>,
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<String>,
    /// About how many keys were looked at.
    pub(crate) looked_at: usize,
}

/// How many keys are looked at for one request.
pub(crate) const LOOKS: usize = 100_000;

/// Whether the queue takes keys and hands them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Open,
    Paused,
    /// No new keys; what there is runs.
    Closed,
    ShutDown,
    /// Where its keys are can't be reached.
    #[cfg(feature = "store")]
    Unreachable,
    /// The program has ended, or is about to.
    Ended,
}

/// The numbers of a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    /// All of them.
    pub(crate) keys: usize,
    pub(crate) ready: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    /// If they are counted.
    pub(crate) failing: Option<usize>,
    /// If there can be such.
    pub(crate) parked: Option<usize>,
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

    pub(crate) fn is_in(&self, text: &str) -> bool {
        let first = self.0.first().map_or(0, |&byte| byte);
        text.as_bytes().windows(self.0.len()).any(|window| {
            window[0].to_ascii_lowercase() == first && window.eq_ignore_ascii_case(&self.0)
        })
    }
}

/// A program's trouble with one key is no reason to show nothing of the others.
pub(crate) fn detail_of<K>(detail: &DetailOf<K>, key: &K) -> Detail {
    catch_unwind(AssertUnwindSafe(|| detail(key))).unwrap_or_default()
}
