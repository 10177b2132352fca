//! Logs when a store stops answering, and when it answers again.
//!
//! Each background task of an open queue retries independently. All tasks report their failures to this module, so that
//! an outage causes a few lines in the log instead of one line per attempt.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::engine::{Engine, Place, lock};
use crate::types::error::{Answer, EngineError, Kind};

/// The target of the events. The documentation names it. It does not contain the path of this module, because the path
/// may change.
const TARGET: &str = "requeue_store::outage";

/// The interval between log lines during an outage. If no request to a part was attempted for this time, the part no
/// longer counts as failing.
const EVERY: Duration = Duration::from_secs(60);
/// If an outage begins within this time after the previous one, both are one outage. Therefore, a store that fails
/// every second request does not cause a log line for each failure.
const SETTLED: Duration = Duration::from_secs(10);

/// The outages of a queue's store, as far as this process has detected them.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// True during an outage. Otherwise, a success need not take the lock.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time of the last failure of each part that has not succeeded since.
    failing: HashMap<Part, Instant>,
    since: Option<Instant>,
    ended: Option<Instant>,
    /// The time of the last log line about each kind of trouble.
    reported: [Option<Instant>; 3],
    /// True if the store could not be reached during this outage.
    was_gone: bool,
    /// True if the current outage was logged. Its end is then also logged.
    is_known: bool,
}

/// The kinds of failure of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Unreachable,
    /// The store answers that it cannot process the request now.
    Unable,
    Rejects,
}

impl Trouble {
    /// Returns the trouble that a failure of this kind shows, or `None` if the store works.
    const fn from_kind(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Absent | Kind::Unsure => Some(Self::Unreachable),
            Kind::Unable | Kind::Unconfirmed => Some(Self::Unable),
            Kind::Refused | Kind::PartlyRefused => Some(Self::Rejects),
            Kind::Locked | Kind::Dropped => None,
        }
    }

    /// Returns the words for the first log line and for later log lines.
    const fn report_words(self) -> [&'static str; 2] {
        match self {
            Self::Unreachable => ["store unreachable", "store still unreachable"],
            Self::Unable => {
                ["store cannot complete the request", "store still cannot complete the request"]
            }
            Self::Rejects => ["store rejects the request", "store still rejects the request"],
        }
    }
}

/// A part of a store that fails and recovers independently of the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    Shard(usize),
    /// All shards of a queue that has several shards.
    All,
}

impl Part {
    /// Returns the part of the store that serves requests to all shards.
    pub(crate) fn all_shards(engine: &dyn Engine, place: &Place) -> Self {
        if engine.shard_count(place) == 1 { Self::Shard(0) } else { Self::All }
    }
}

impl Place {
    /// Waits until `deadline` for the answer to a request. Records whether the part of the store has answered. A
    /// refusal is not recorded, because the caller does not retry the request.
    pub(crate) async fn answer_by<T>(
        &self,
        deadline: Instant,
        part: impl FnOnce() -> Part,
        request: impl Future<Output = Answer<T>>,
    ) -> Answer<T> {
        let answer = timeout_at(deadline, request).await;
        let answer = answer.unwrap_or_else(|_| Err(EngineError::late()));
        match &answer {
            Ok(_) => self.note_answer(part),
            Err(fault) if fault.kind.is_final() => {}
            Err(fault) => self.note_failure(part(), fault),
        }
        answer
    }

    /// Records the failure of a request that the caller will retry.
    pub(crate) fn note_failure(&self, part: Part, fault: &EngineError) {
        let Some(trouble) = Trouble::from_kind(fault.kind) else { return };
        let now = Instant::now();
        let mut state = lock(&self.outage.state);
        state.failing.insert(part, now);
        // `Relaxed` suffices, because each writer holds the lock. A success that does not see this value is ignored,
        // and the next success ends the outage.
        self.outage.is_on.store(true, Ordering::Relaxed);
        // Several failures within a short time are one outage, and cause no separate lines.
        let continues = state.ended.is_some_and(|ended| now - ended < SETTLED);
        let since = *state.since.get_or_insert(now);
        state.was_gone |= trouble == Trouble::Unreachable;
        let is_first = !state.is_known && !continues;
        let reported = state.reported[trouble as usize].filter(|_| !is_first);
        if reported.is_some_and(|reported| now - reported < EVERY) {
            return;
        }
        state.is_known = true;
        state.reported[trouble as usize] = Some(now);
        drop(state);
        let (queue, error) = (&self.name, &fault.source);
        let [first, later] = trouble.report_words();
        match reported.is_some_and(|reported| reported >= since) {
            false => tracing::warn!(target: TARGET, queue, "{first}: {error}; retrying"),
            true => {
                let lasts = show_duration(now - since);
                tracing::warn!(target: TARGET, queue, "{later} after {lasts}: {error}; retrying");
            }
        }
    }

    /// Records that a request to a part has succeeded. `part` is called only during an outage. Therefore, a successful
    /// request at other times costs little.
    pub(crate) fn note_answer(&self, part: impl FnOnce() -> Part) {
        if !self.outage.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = lock(&self.outage.state);
        state.failing.remove(&part());
        // If the last failure of a part is older, requests to this part are no longer retried.
        state.failing.retain(|_, failed| now - *failed < EVERY);
        if !state.failing.is_empty() {
            return;
        }
        self.outage.is_on.store(false, Ordering::Relaxed);
        state.ended = Some(now);
        let since = state.since.take();
        let was_known = std::mem::take(&mut state.is_known);
        // The lock is released before the line is logged, because a subscriber of `tracing` may be slow.
        let was_gone = std::mem::take(&mut state.was_gone);
        drop(state);
        if let (true, Some(since)) = (was_known, since) {
            let what = if was_gone { "reachable" } else { "works" };
            tracing::info!(target: TARGET, queue = self.name, "store {what} again after {}", show_duration(now - since));
        }
    }
}

/// Returns a duration as text, in whole seconds, or in minutes and seconds.
fn show_duration(time: Duration) -> String {
    match (time + Duration::from_millis(500)).as_secs() {
        0 => "less than a second".to_owned(),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
