//! Keys as the API shows them.

use std::borrow::Cow;
use std::time::Duration;

use requeue::{Entry, Phase, Time};
use serde::{Serialize, Serializer};

use crate::keys::{SHOWN, escaped, to_base64};

/// More properties of a key, for [`Builder::detail`](crate::Builder::detail).
///
/// # Examples
///
/// ```
/// use requeue_http::Detail;
///
/// let detail = Detail::new().attempt(3).field("last exit", 7).field("slot", 2);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use]
pub struct Detail {
    pub(crate) attempt: Option<u32>,
    pub(crate) fields: Vec<(Cow<'static, str>, String)>,
}

impl Detail {
    /// Returns a detail without properties.
    pub const fn new() -> Self {
        Self { attempt: None, fields: Vec::new() }
    }

    /// Sets the number of the attempt, from 1. It replaces the count of the queue.
    pub const fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Adds a property. `name` should be one or two words.
    pub fn field(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        self.fields.push((name.into(), value.to_string()));
        self
    }
}

/// The state of a key, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ready,
    Waiting,
    Running,
    Failing,
    #[cfg(feature = "store")]
    Parked,
    /// The row in the store cannot be read.
    #[cfg(feature = "store")]
    Damaged,
    /// Not in the queue: only its failures are remembered.
    Idle,
}

impl State {
    fn of<K>(entry: &Entry<K>) -> Self {
        match entry.phase {
            Phase::Ready => Self::Ready,
            Phase::Processing | Phase::ProcessingDirty => Self::Running,
            _ if entry.due.is_none() => Self::Idle,
            _ if entry.failures > 0 => Self::Failing,
            _ => Self::Waiting,
        }
    }
}

/// One key.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    key: String,
    /// `None` for a key that is too long.
    key_base64: Option<String>,
    state: State,
    /// The key was re-added during its run.
    again: bool,
    /// The time in its state, in seconds.
    age: Option<f64>,
    /// The time until it is due, in seconds; `None` also if that is never.
    due_in: Option<f64>,
    /// The number of the attempt that runs, or of the next one.
    attempt: u32,
    failures: u32,
    adds: u32,
    priority: i32,
    why: String,
    #[serde(serialize_with = "as_map")]
    detail: Vec<(Cow<'static, str>, String)>,
}

impl Row {
    pub(crate) fn new<K>(entry: &Entry<K>, bytes: &[u8], now: Time, detail: Detail) -> Self {
        let state = State::of(entry);
        let (key, key_base64) = shown(bytes);
        Self {
            key,
            key_base64,
            state,
            again: entry.phase == Phase::ProcessingDirty,
            age: entry
                .since
                .filter(|_| state != State::Idle)
                .map(|since| seconds(now.since(since))),
            due_in: entry.due.filter(|&due| due < Time::NEVER).map(|due| seconds(due.since(now))),
            attempt: detail.attempt.unwrap_or_else(|| entry.failures.saturating_add(1)),
            failures: entry.failures,
            adds: entry.adds,
            priority: entry.priority,
            why: entry.explain(now).to_string(),
            detail: detail.fields,
        }
    }
}

#[cfg(feature = "store")]
impl Row {
    pub(crate) fn stored(entry: &requeue_store::Entry, mut detail: Detail) -> Self {
        use requeue_store::State as Stored;

        let (key, key_base64) = shown(&entry.key);
        if let Some(epoch) = entry.epoch {
            detail = detail.field("epoch", epoch);
        }
        let why = match &entry.worker {
            // The worker is a property of its own, and must not be repeated in the reason.
            Some(worker) => {
                detail = detail.field("worker", escaped(worker.as_bytes()));
                let mut unnamed = entry.clone();
                unnamed.worker = None;
                unnamed.explain()
            }
            None => entry.explain(),
        };
        Self {
            key,
            key_base64,
            state: match entry.state {
                Stored::Ready => State::Ready,
                Stored::Processing => State::Running,
                Stored::Parked => State::Parked,
                Stored::Damaged => State::Damaged,
                // Only `Waiting` is left.
                _ if entry.failures > 0 => State::Failing,
                _ => State::Waiting,
            },
            again: entry.dirty,
            age: entry.since.map(seconds),
            due_in: entry.due.map(seconds),
            attempt: detail.attempt.unwrap_or_else(|| entry.failures.saturating_add(1)),
            failures: entry.failures,
            adds: entry.adds,
            priority: entry.priority.number().into(),
            why,
            detail: detail.fields,
        }
    }
}

/// Returns a key as text, and in base64 unless it is too long.
fn shown(key: &[u8]) -> (String, Option<String>) {
    let is_whole = key.len() <= SHOWN;
    let mut text = escaped(&key[..key.len().min(SHOWN)]).into_owned();
    if !is_whole {
        text.push('…');
    }
    (text, is_whole.then(|| to_base64(key)))
}

/// Returns seconds, rounded to microseconds.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

fn as_map<S: Serializer>(
    fields: &[(Cow<'static, str>, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}
