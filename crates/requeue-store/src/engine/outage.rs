//! Reports when a store stops answering, and when it answers again.
//!
//! Each background task of an open queue retries by a separate schedule. All tasks report here, so that an outage causes a
//! few lines in the log instead of one per attempt.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::engine::{Engine, Place, lock};
use crate::types::error::{Answer, EngineError, Kind};

/// The documented target of the events. It does not follow the path of this module, which may change.
const TARGET: &str = "requeue_store::outage";

/// The interval of reports during an outage. A part without further attempts for this long no longer counts as failing.
const EVERY: Duration = Duration::from_secs(60);
/// If an outage begins within this time after the previous one, both count as one outage. If a store fails every second
/// request, not every failure is therefore reported.
const SETTLED: Duration = Duration::from_secs(10);

/// The outages of one queue's store that this process has noticed.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// True during an outage. At other times, a success does not take the lock.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// For each part without a success since its last failure, the time of that failure.
    failing: HashMap<Part, Instant>,
    since: Option<Instant>,
    ended: Option<Instant>,
    /// The time of the last line about each trouble.
    reported: [Option<Instant>; 3],
    /// True if the store was unreachable in this outage.
    was_gone: bool,
    /// True if the current outage was reported. Then the end of the outage is also reported.
    is_known: bool,
}

/// The kinds of trouble with a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Unreachable,
    /// The store answers that it currently cannot process the request.
    Unable,
    Rejects,
}

impl Trouble {
    /// Returns the trouble of this kind, or `None` if the store works.
    const fn from_kind(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Absent | Kind::Unsure => Some(Self::Unreachable),
            Kind::Unable | Kind::Unconfirmed => Some(Self::Unable),
            Kind::Refused | Kind::PartlyRefused => Some(Self::Rejects),
            Kind::Locked | Kind::Dropped => None,
        }
    }

    /// Returns the words of the first line and of later lines.
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
    /// All shards of a queue with several shards.
    All,
}

impl Part {
    /// Returns the part of a request that concerns all shards.
    pub(crate) fn all_shards(engine: &dyn Engine, place: &Place) -> Self {
        if engine.shard_count(place) == 1 { Self::Shard(0) } else { Self::All }
    }
}

impl Place {
    /// Waits until `deadline` for the answer to a request, and records whether the part of the store has answered. A
    /// refusal is not recorded, because the request is not retried.
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

    /// Records the failure of a request that will be retried.
    pub(crate) fn note_failure(&self, part: Part, fault: &EngineError) {
        let Some(trouble) = Trouble::from_kind(fault.kind) else { return };
        let now = Instant::now();
        let mut state = lock(&self.outage.state);
        state.failing.insert(part, now);
        // `Relaxed` suffices, because all writers hold the lock. If an answer misses this value, the next answer ends
        // the outage.
        self.outage.is_on.store(true, Ordering::Relaxed);
        // Short failures in quick succession are one outage, and are not reported separately.
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

    /// Records that a request to this part has succeeded. `part` is called only during an outage, so that a
    /// successful request costs little at other times.
    pub(crate) fn note_answer(&self, part: impl FnOnce() -> Part) {
        if !self.outage.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = lock(&self.outage.state);
        state.failing.remove(&part());
        // Parts whose last failure is older are no longer retried.
        state.failing.retain(|_, failed| now - *failed < EVERY);
        if !state.failing.is_empty() {
            return;
        }
        self.outage.is_on.store(false, Ordering::Relaxed);
        state.ended = Some(now);
        let since = state.since.take();
        let was_known = std::mem::take(&mut state.is_known);
        // The line is logged after the lock is released, because a subscriber of `tracing` may be slow.
        let was_gone = std::mem::take(&mut state.was_gone);
        drop(state);
        if let (true, Some(since)) = (was_known, since) {
            let what = if was_gone { "reachable" } else { "works" };
            tracing::info!(target: TARGET, queue = self.name, "store {what} again after {}", show_duration(now - since));
        }
    }
}

/// Formats a duration in whole seconds, or in minutes and seconds.
fn show_duration(time: Duration) -> String {
    match (time + Duration::from_millis(500)).as_secs() {
        0 => "less than a second".to_owned(),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
