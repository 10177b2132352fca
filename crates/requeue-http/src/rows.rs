//! Converts keys and runs to the rows that the API shows.

use std::borrow::Cow;

use requeue::{Entry, Phase, Reasons, Time, describe_reasons};

#[cfg(feature = "store")]
use crate::api::NOT_IN_QUEUE;
#[cfg(feature = "store")]
use crate::api::Outcome;
use crate::api::{KeyPage, PastRun, Row, State};
use crate::history::Past;
use crate::keys::{SHOWN, escape_key, to_base64};
use crate::time::{seconds, unix_time};

/// Additional properties of a key, which the function of
/// [`Builder::detail`](crate::Builder::detail) returns.
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
    pub(crate) why: Option<String>,
    pub(crate) fields: Vec<(Cow<'static, str>, String)>,
}

impl Detail {
    /// Creates a value without properties.
    pub const fn new() -> Self {
        Self { attempt: None, why: None, fields: Vec::new() }
    }

    /// Sets the number of the attempt, beginning with 1. It replaces the number that the queue has
    /// counted.
    pub const fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Sets a reason why the key waits that only the program knows. The dashboard shows it after
    /// the reason of the queue.
    ///
    /// ```
    /// use requeue_http::Detail;
    ///
    /// let detail = Detail::new().why("waits for the upload of its file");
    /// ```
    pub fn why(mut self, reason: impl Into<String>) -> Self {
        self.why = Some(reason.into());
        self
    }

    /// Adds a property, which the dashboard shows as `name` and `value`. The name should consist of
    /// one or two words.
    pub fn field(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        self.fields.push((name.into(), value.to_string()));
        self
    }
}

impl State {
    pub(crate) fn of_entry<K>(entry: &Entry<K>) -> Self {
        match entry.phase {
            Phase::Ready => Self::Ready,
            Phase::InFlight | Phase::InFlightDirty => Self::Running,
            _ if entry.due.is_none() => Self::Idle,
            _ if entry.failures > 0 => Self::BackingOff,
            _ => Self::Waiting,
        }
    }

    /// Converts the state of a key in a store.
    #[cfg(feature = "store")]
    pub const fn stored(state: requeue_store::State) -> Self {
        use requeue_store::State as Stored;
        match state {
            Stored::Ready => Self::Ready,
            Stored::InFlight => Self::Running,
            Stored::Parked => Self::Parked,
            Stored::Damaged => Self::Damaged,
            // The other states are `Waiting`, and states that this version does not know.
            _ => Self::Waiting,
        }
    }
}

impl KeyPage {
    pub(crate) fn new(row: Row, past: Option<Past>) -> Self {
        Self { row, runs: past.map(|past| past.runs.into()).unwrap_or_default(), missing: None }
    }
}

#[cfg(feature = "store")]
impl PastRun {
    /// Converts the failed runs of a key in a store.
    #[must_use]
    pub fn of_attempts(
        entry: &requeue_store::Entry,
        attempts: Vec<requeue_store::Attempt>,
    ) -> Vec<Self> {
        let is_parked = entry.state == requeue_store::State::Parked;
        let run = |attempt: requeue_store::Attempt| {
            let is_last = is_parked && attempt.number == entry.failures;
            Self::of_attempt(attempt, is_last)
        };
        attempts.into_iter().map(run).collect()
    }

    /// Converts one failed run. `is_last` is true if the key was parked after it.
    fn of_attempt(attempt: requeue_store::Attempt, is_last: bool) -> Self {
        Self {
            at: unix_time() - seconds(attempt.ended),
            outcome: if is_last { Outcome::GivenUp } else { Outcome::Failed },
            attempt: attempt.number,
            took: Some(seconds(attempt.took)),
            worker: attempt.worker.map(|worker| escape_key(worker.as_bytes()).into_owned()),
            exit_status: attempt.exit_status,
            error: Some(attempt.error),
            output: attempt.output,
        }
    }
}

impl Row {
    /// Returns the row of a key that the queue does not have, but the history does. `cut_short`
    /// explains a key that is not parked although its last run failed.
    pub(crate) fn of_past(bytes: &[u8], past: &Past, detail: Detail, cut_short: &str) -> Self {
        let (key, key_base64) = shown_key(bytes);
        let parked_for = past.parked_for();
        let failures = if past.has_succeeded() { 0 } else { past.attempts() };
        let why = match (parked_for, failures) {
            (Some(_), 1) => "parked after 1 attempt; an add or a revival runs it again".to_owned(),
            (Some(_), n) => format!("parked after {n} attempts; an add or a revival runs it again"),
            (None, 0) => "not in the queue: its last run succeeded".to_owned(),
            (None, _) => cut_short.to_owned(),
        };
        let mut row = Self {
            key,
            key_base64,
            state: if parked_for.is_some() { State::Parked } else { State::Idle },
            age: parked_for.map(seconds),
            attempt: past.attempts(),
            failures,
            why,
            detail: detail.fields,
            ..Self::default()
        };
        row.note_failed(past.last_failed().filter(|_| failures > 0));
        row
    }

    /// Appends the reasons for the run in flight, or for the pending run, to the explanation.
    pub(crate) fn note_reasons(&mut self, reasons: &Reasons) {
        if !reasons.is_empty() {
            let reasons = format!("added for {}", describe_reasons(reasons));
            self.why = with_reason(std::mem::take(&mut self.why), Some(reasons));
        }
    }

    /// Sets the error and the time of the last failed run.
    pub(crate) fn note_failed(&mut self, run: Option<&PastRun>) {
        self.error = run.and_then(|run| run.error.clone());
        self.last_failure = run.map(|run| (unix_time() - run.at).max(0.0));
    }

    pub(crate) fn new<K>(entry: &Entry<K>, bytes: &[u8], now: Time, detail: Detail) -> Self {
        let state = State::of_entry(entry);
        let (key, key_base64) = shown_key(bytes);
        Self {
            key,
            key_base64,
            state,
            again: entry.phase == Phase::InFlightDirty,
            age: entry
                .since
                .filter(|_| state != State::Idle)
                .map(|since| seconds(now.since(since))),
            due_in: next_due(entry, now)
                .filter(|&due| due < Time::NEVER)
                .map(|due| seconds(due.since(now))),
            attempt: detail.attempt.unwrap_or_else(|| entry.failures.saturating_add(1)),
            failures: entry.failures,
            adds: entry.adds,
            priority: entry.priority,
            why: with_reason(entry.explain(now).to_string(), detail.why),
            detail: detail.fields,
            ..Self::default()
        }
    }
}

/// Returns the time at which a waiting key becomes ready: the end of the wait for its pace, or else
/// its due time.
pub(crate) fn next_due<K>(entry: &Entry<K>, now: Time) -> Option<Time> {
    entry.waits_for_pace(now).map(|(_, until)| until).or(entry.due)
}

#[cfg(feature = "store")]
impl Row {
    /// Returns the row of a key that the queue does not have.
    pub(crate) fn of_missing(bytes: &[u8]) -> Self {
        let (key, key_base64) = shown_key(bytes);
        Self {
            key,
            key_base64,
            state: State::Idle,
            why: NOT_IN_QUEUE.to_owned(),
            ..Self::default()
        }
    }

    /// Appends the time at which the key's schedule adds it again to the explanation.
    pub(crate) fn note_schedule(&mut self, schedule: &requeue_store::ScheduleInfo) {
        self.why = with_reason(std::mem::take(&mut self.why), Some(schedule.explain()));
        if self.state == State::Idle {
            self.due_in = schedule.next.map(seconds);
        }
    }

    /// Returns the row of a key in a store. `explained` is the queue's explanation of the state,
    /// which replaces the shorter explanation of the entry.
    pub(crate) fn of_stored(
        entry: &requeue_store::Entry,
        explained: Option<String>,
        mut detail: Detail,
    ) -> Self {
        let (key, key_base64) = shown_key(&entry.key);
        if let Some(token) = entry.fencing_token {
            detail = detail.field("fencing_token", token);
        }
        // The worker, the group and the error are separate properties, so the explanation must not
        // repeat them.
        let mut unnamed = entry.clone();
        if let Some(worker) = unnamed.worker.take() {
            detail = detail.field("worker", escape_key(worker.as_bytes()));
        }
        if let Some(group) = unnamed.group.take().filter(|group| !group.is_empty()) {
            detail = detail.field("group", escape_key(group.as_bytes()));
        }
        unnamed.error = None;
        let why = explained.unwrap_or_else(|| unnamed.explain());
        let why = why.strip_prefix(&format!("{}: ", entry.key)).map(str::to_owned).unwrap_or(why);
        Self {
            key,
            key_base64,
            state: State::stored(entry.state),
            again: entry.dirty,
            age: entry.since.map(seconds),
            due_in: entry.due.map(seconds),
            lease_in: entry.lease.map(seconds),
            attempt: detail.attempt.unwrap_or_else(|| {
                // A parked key has no next attempt, so its last attempt is shown.
                let next = u32::from(entry.state != requeue_store::State::Parked);
                entry.failures.saturating_add(next)
            }),
            failures: entry.failures,
            adds: entry.adds,
            priority: entry.priority.into(),
            why: with_reason(why, detail.why),
            error: entry.error.clone(),
            last_failure: entry.failed.map(seconds),
            detail: detail.fields,
        }
    }
}

/// Returns the queue's explanation, followed by the reason of the program, if there is one.
fn with_reason(mut why: String, reason: Option<String>) -> String {
    if let Some(reason) = reason {
        why.push_str("; ");
        why.push_str(&reason);
    }
    why
}

/// Returns a key as text. Also returns it in base64, if it is at most [`SHOWN`] bytes long.
pub(crate) fn shown_key(key: &[u8]) -> (String, Option<String>) {
    let is_whole = key.len() <= SHOWN;
    let mut text = escape_key(&key[..key.len().min(SHOWN)]).into_owned();
    if !is_whole {
        text.push('…');
    }
    (text, is_whole.then(|| to_base64(key)))
}
