//! Caches query results for dashboards and metrics, so that frequent readers cost the engine little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::engine::lock;
use crate::types::error::{Answer, EngineError};

/// The minimum interval between two queries. A query does not replace a younger result.
const FRESH: Duration = Duration::from_secs(1);
/// The interval after a successful query, as a multiple of the query's duration. The interval is at most
/// [`LONG_PAUSE`].
const SHARE: u32 = 50;
/// The maximum interval after a query that took up to 7.5 s. A single query can be slow because the store was stopped
/// or the machine was busy. After a single slow query, results must not stay out of date for long.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// The minimum interval after a query that took longer, as a multiple of its duration.
const LONG_SHARE: u32 = 4;
/// The time limit of a query. PostgreSQL counts 100 million keys in about half of this time.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The maximum interval after a query that failed before its time limit, for example because the store could not be
/// reached.
const REST: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Cache<T> {
    /// The last result, and its time.
    found: Mutex<Option<(T, Instant)>>,
    /// The caller that holds this lock queries the engine.
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
        // The first query is often slower than later ones. Its duration must not cause a long interval.
        let took = FRESH;
        let turn =
            Turn { until: Instant::now(), took, faults: 0, fault: String::new(), timeouts: 0 };
        let turn = Arc::new(tokio::sync::Mutex::new(turn));
        Arc::new(Self { found: Mutex::new(None), turn })
    }

    /// Returns the last result and its age.
    pub(crate) fn last_result(&self) -> Option<(T, Duration)> {
        lock(&self.found).as_ref().map(|(found, at)| (found.clone(), at.elapsed()))
    }

    /// Queries the engine with `look` if a query is due. Returns the last result and its age.
    pub(crate) async fn get_or_query(
        self: &Arc<Self>,
        look: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<(T, Duration)> {
        // Callers that wait for this lock get the result of the query of its holder, or the error of that query.
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        if turn.until <= Instant::now() {
            let this = Arc::clone(self);
            // The query continues if its caller is dropped. Otherwise, callers with a short timeout could restart a
            // long query repeatedly, and never get a result.
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
                // The age is measured from the answer. The engine's snapshot is older by at most the duration of the
                // query.
                *lock(&self.found) = Some((found, Instant::now()));
                turn.faults = 0;
                // The interval depends on the shorter of the last two durations. A large queue makes every query slow,
                // but a stall makes only one query slow.
                let usual = took.min(std::mem::replace(&mut turn.took, took));
                (usual * SHARE).min(LONG_PAUSE.max(usual * LONG_SHARE))
            }
            Err(fault) => {
                // The store may recover soon, so the first interval is short. Each failure doubles the interval.
                let short = double_times(FRESH, turn.faults).min(REST);
                turn.faults = turn.faults.saturating_add(1);
                turn.fault = fault.source.to_string();
                // A slow store must not spend all its time on queries that reach the time limit.
                let long = match turn.timeouts {
                    0 | 1 => Duration::ZERO,
                    timeouts => double_times(took, timeouts - 2).min(took * LONG_SHARE),
                };
                short.min(took * SHARE).max(long)
            }
        };
        // The interval begins after the query. Otherwise, a query that takes longer than the interval would repeat
        // without a break.
        turn.until = Instant::now() + pause.max(FRESH);
    }
}

fn double_times(time: Duration, times: u32) -> Duration {
    time.saturating_mul(2u32.saturating_pow(times))
}
