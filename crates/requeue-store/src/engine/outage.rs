//! Reports when a store stops answering, and when it answers again.
//!
//! Each background task of an open queue retries on its own schedule. All of them report here, so that an
//! outage takes a few lines in the log, not one line per attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{Engine, Place};
use crate::types::error::{EngineError, Kind};

/// The documented target of the events. It does not follow the path of this module, which may change.
const TARGET: &str = "requeue_store::outage";

/// The interval of reports during an outage. A part that was not tried again for this long no longer counts
/// as failing.
const EVERY: Duration = Duration::from_secs(60);
/// An outage that begins within this time after the previous one continues that outage. A store that fails
/// every other request is therefore not reported each time.
const SETTLED: Duration = Duration::from_secs(10);

/// The outages of one queue's store, as this process sees them.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// True during an outage. At other times, a success does not take the lock.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time of the last failure of each part that has not succeeded since.
    failing: HashMap<Part, Instant>,
    since: Option<Instant>,
    ended: Option<Instant>,
    /// When the last line about an outage was logged.
    reported: Option<Instant>,
    /// True if the current outage was reported, so that its end is reported too.
    is_known: bool,
}

/// A part of a store that fails and recovers independently of the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    Shard(usize),
    /// All shards of a queue that has several.
    All,
}

impl Part {
    /// Returns the part of a request that concerns all shards.
    pub(crate) fn all(engine: &dyn Engine, place: &Place) -> Self {
        if engine.shards(place) == 1 { Self::Shard(0) } else { Self::All }
    }
}

impl Place {
    /// Records the failure of a request that will be retried.
    pub(crate) fn note_failure(&self, part: Part, fault: &EngineError) {
        // A store that returns one of these errors is reachable.
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
                tracing::warn!(target: TARGET, queue, "store rejects the request: \
                    {error}; retrying");
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

    /// Records that a request to this part has succeeded. `part` is called only during an outage, so that a
    /// successful request costs little at other times.
    pub(crate) fn note_answer(&self, part: impl FnOnce() -> Part) {
        if !self.outage.is_on.load(Ordering::Relaxed) {
            return;
        }
        let now = Instant::now();
        let mut state = self.outage.lock();
        state.failing.remove(&part());
        // These parts are no longer retried.
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

/// Formats a duration in whole seconds, or in minutes and seconds.
fn shown(time: Duration) -> String {
    match (time + Duration::from_millis(500)).as_secs() {
        0 => "less than a second".to_owned(),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
