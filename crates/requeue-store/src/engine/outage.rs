//! Reports when a store stops answering, and when it answers again.
//!
//! Everything that a queue's handles do in the background tries again by itself, each at its own pace.
//! All of them report here, so that an outage is a few lines in a log, not one for each attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{Engine, Place};
use crate::types::error::{EngineError, Kind};

/// The documented target of the events: not this module's path, which may change.
const TARGET: &str = "requeue_store::outage";

/// How often an outage is reported while it lasts; and after this long a part that nobody has tried
/// again no longer counts as failing.
const EVERY: Duration = Duration::from_secs(60);
/// An outage that begins within this time of the last one's end continues it, so that a store that
/// fails every other time is not reported each time.
const SETTLED: Duration = Duration::from_secs(10);

/// The outages of one queue's store, as this process sees them.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Whether there is one: what succeeds meanwhile does not take the lock otherwise.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When each part failed last, of those that have not succeeded since.
    failing: HashMap<Part, Instant>,
    since: Option<Instant>,
    ended: Option<Instant>,
    /// When the last line about an outage was written.
    reported: Option<Instant>,
    /// Whether there was a line about this one, so that its end is reported too.
    is_known: bool,
}

/// What fails and recovers by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    Shard(usize),
    /// What goes to all shards of a queue that has several.
    All,
}

impl Part {
    /// What goes to all shards.
    pub(crate) fn all(engine: &dyn Engine, place: &Place) -> Self {
        if engine.shards(place) == 1 { Self::Shard(0) } else { Self::All }
    }
}

impl Place {
    /// Something has failed that is tried again.
    pub(crate) fn note_failure(&self, part: Part, fault: &EngineError) {
        // A store that says so is reached.
        if matches!(fault.kind, Kind::Locked | Kind::Dropped) {
            return;
        }
        let now = Instant::now();
        let mut state = self.outage.lock();
        state.failing.insert(part, now);
        self.outage.is_on.store(true, Ordering::Relaxed);
        let continues = state.ended.is_some_and(|ended| now - ended < SETTLED);
        let since = *state.since.get_or_insert(now);
        let is_first = !state.is_known && !continues;
        if !is_first && state.reported.is_some_and(|reported| now - reported < EVERY) {
            return;
        }
        let is_new = !std::mem::replace(&mut state.is_known, true);
        state.reported = Some(now);
        drop(state);
        let (queue, error) = (&self.name, &fault.source);
        match (is_new, fault.kind) {
            (true, Kind::Refused) => {
                tracing::warn!(target: TARGET, queue, "store refuses what is asked: {error}; retrying");
            }
            (true, _) => {
                tracing::warn!(target: TARGET, queue, "store unreachable: {error}; retrying")
            }
            (false, _) => {
                let lasts = shown(now - since);
                tracing::warn!(target: TARGET, queue, "store still unreachable after {lasts}: {error}; retrying");
            }
        }
    }

    /// Something has succeeded: this part, which costs nothing to name while there is no outage.
    pub(crate) fn note_answer(&self, part: impl FnOnce() -> Part) {
        if !self.outage.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = self.outage.lock();
        state.failing.remove(&part());
        // Of these, nobody tries any more.
        state.failing.retain(|_, failed| now - *failed < EVERY);
        if !state.failing.is_empty() {
            return;
        }
        self.outage.is_on.store(false, Ordering::Relaxed);
        state.ended = Some(now);
        let since = state.since.take();
        let was_known = std::mem::take(&mut state.is_known);
        drop(state);
        if let (true, Some(since)) = (was_known, since) {
            tracing::info!(target: TARGET, queue = self.name, "store reachable again after {}", shown(now - since));
        }
    }
}

impl Outage {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In whole seconds, or minutes and seconds.
fn shown(time: Duration) -> String {
    match (time + Duration::from_millis(500)).as_secs() {
        0 => "less than a second".to_owned(),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
