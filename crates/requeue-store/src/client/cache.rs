//! Caches query results for dashboards and metrics, so that frequent readers cost the engine little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::engine::lock;
use crate::types::error::{Answer, EngineError};

/// The minimum time between two queries. A result that is more recent is never replaced.
const FRESH: Duration = Duration::from_secs(1);
/// The pause after a successful query, as a multiple of the duration of that query, up to [`LONG_PAUSE`].
const SHARE: u32 = 50;
/// The longest pause after a query that took up to 7.5 s. A query can be slow once, because the store was stopped or
/// the machine was busy. After such a query, results must not stay out of date for long.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// The minimum pause after long queries, as a multiple of their duration.
const LONG_SHARE: u32 = 4;
/// The time limit of a query. PostgreSQL counts 100 million keys in about half of this time.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The longest pause after a query that failed before its time limit, for example because the store could not be
/// reached.
const REST: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Cache<T> {
    /// The last result, and its time.
    found: Mutex<Option<(T, Instant)>>,
    /// The lock of the caller that queries the engine.
    turn: Arc<tokio::sync::Mutex<Turn>>,
}

#[derive(Debug)]
struct Turn {
    /// The time before which no query starts.
    until: Instant,
    /// The duration of the last successful query.
    took: Duration,
    /// The number of consecutive queries that failed, and the error of the last query.
    faults: u32,
    fault: String,
    /// The number of consecutive queries that reached their time limit.
    timeouts: u32,
}

impl<T: Clone + Send + 'static> Cache<T> {
    pub(crate) fn new() -> Arc<Self> {
        // The first query is often slower than later ones. Its duration must not cause a long pause.
        let took = FRESH;
        let turn =
            Turn { until: Instant::now(), took, faults: 0, fault: String::new(), timeouts: 0 };
        let turn = Arc::new(tokio::sync::Mutex::new(turn));
        Arc::new(Self { found: Mutex::new(None), turn })
    }

    /// Returns the last result, with its age.
    pub(crate) fn last_result(&self) -> Option<(T, Duration)> {
        lock(&self.found).as_ref().map(|(found, at)| (found.clone(), at.elapsed()))
    }

    /// Returns the result of `look` if a query is due, and otherwise the last result, with its age.
    pub(crate) async fn get_or_query(
        self: &Arc<Self>,
        look: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<(T, Duration)> {
        // Callers that wait here get the result of this query, or its error.
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        if turn.until <= Instant::now() {
            let this = Arc::clone(self);
            // The query continues if its caller is dropped. Otherwise, callers with a short timeout would
            // restart a long query again and again, and never get a result.
            let looking = tokio::spawn(async move {
                this.run_query(&mut turn, look).await;
                turn
            });
            turn = looking.await.map_err(EngineError::absent)?;
        }
        match self.last_result() {
            Some(found) if turn.faults == 0 => Ok(found),
            _ => Err(EngineError::absent(turn.fault.clone())),
        }
    }

    async fn run_query(&self, turn: &mut Turn, look: impl Future<Output = Answer<T>>) {
        let begin = Instant::now();
        let found = timeout(TIME_LIMIT, look).await;
        let took = begin.elapsed();
        turn.timeouts = if found.is_ok() { 0 } else { turn.timeouts.saturating_add(1) };
        let pause = match found.unwrap_or_else(|_| Err(EngineError::late())) {
            Ok(found) => {
                // The age counts from the answer. The engine's snapshot is older by at most the duration of the query.
                *lock(&self.found) = Some((found, Instant::now()));
                turn.faults = 0;
                // The pause follows the shorter of the last two durations: a large queue makes every query slow, but a
                // stall makes only one query slow.
                let usual = took.min(std::mem::replace(&mut turn.took, took));
                (usual * SHARE).min(LONG_PAUSE.max(usual * LONG_SHARE))
            }
            Err(fault) => {
                // The store may recover soon, so the pauses are short at first: they double with
                // each failure.
                let short = double_times(FRESH, turn.faults).min(REST);
                turn.faults = turn.faults.saturating_add(1);
                turn.fault = fault.source.to_string();
                // A slow store must not spend all its time on counts.
                let long = match turn.timeouts {
                    0 | 1 => Duration::ZERO,
                    timeouts => double_times(took, timeouts - 2).min(took * LONG_SHARE),
                };
                short.min(took * SHARE).max(long)
            }
        };
        // The pause begins after the query. Otherwise, a query that takes longer than the pause would repeat without a
        // break.
        turn.until = Instant::now() + pause.max(FRESH);
    }
}

fn double_times(time: Duration, times: u32) -> Duration {
    time.saturating_mul(2u32.saturating_pow(times))
}
