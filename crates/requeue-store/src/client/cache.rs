//! Caches query results for dashboards and metrics, so that frequent readers cost the engine little.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::metrics::{Sample, Scrape};
use tokio::time::{Instant, timeout};

use crate::api::queue::{Queue, Shared};
use crate::types::error::{EngineError, ReadError};
use crate::types::inspect::{Counts, Entry, State};

/// The minimum time between two queries. A result that is more recent is never renewed.
const FRESH: Duration = Duration::from_secs(1);
/// The pause after a successful query, as a multiple of the duration of that query, up to [`LONG_PAUSE`].
const SHARE: u32 = 50;
/// The longest pause after a query that took up to 7.5 s. A query can be slow once, because the store was
/// stopped or the machine was busy. The results must not be out of date for long after that.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// The minimum pause after long queries, as a multiple of their duration.
const LONG_SHARE: u32 = 4;
/// The time limit of a query. PostgreSQL counts 100 million keys in about half of it.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause after a query that failed before its time limit, such as that of a store that could not be
/// reached.
const REST: Duration = Duration::from_secs(10);
/// The maximum number of keys in flight that are searched for the longest runs.
const RUNNING: usize = 256;
/// The time between two counts for metrics.
#[cfg(feature = "prometheus")]
const BETWEEN_SCRAPES: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Cache<T> {
    /// The last result, and its time.
    found: Mutex<Option<(T, Instant)>>,
    /// Held by the caller that queries the engine.
    turn: Arc<tokio::sync::Mutex<Turn>>,
}

#[derive(Debug)]
struct Turn {
    /// The time before which no query starts.
    until: Instant,
    /// The duration of the last successful query.
    took: Duration,
    /// The number of queries in a row that failed, and the error of the last one.
    faults: u32,
    fault: String,
    /// The number of queries in a row that reached their time limit.
    timeouts: u32,
}

impl<T: Clone + Send + 'static> Cache<T> {
    pub(crate) fn new() -> Arc<Self> {
        // The first query may be slow once, so its duration counts as short.
        let took = FRESH;
        let turn =
            Turn { until: Instant::now(), took, faults: 0, fault: String::new(), timeouts: 0 };
        let turn = Arc::new(tokio::sync::Mutex::new(turn));
        Arc::new(Self { found: Mutex::new(None), turn })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(T, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of `look` if a query is due, and the last result otherwise, with its age.
    async fn or(
        self: &Arc<Self>,
        look: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<(T, Duration), EngineError> {
        // Callers that wait here get the result of this query, or its error.
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        if turn.until <= Instant::now() {
            let this = Arc::clone(self);
            // The query continues if its caller is dropped. Otherwise, callers with a short timeout would
            // restart a long query again and again, and never get a result.
            let looking = tokio::spawn(async move {
                this.look(&mut turn, look).await;
                turn
            });
            turn = looking.await.map_err(EngineError::absent)?;
        }
        match &*self.lock() {
            Some((found, at)) if turn.faults == 0 => Ok((found.clone(), at.elapsed())),
            _ => Err(EngineError::absent(turn.fault.clone())),
        }
    }

    async fn look(&self, turn: &mut Turn, look: impl Future<Output = Result<T, EngineError>>) {
        let begin = Instant::now();
        let found = timeout(LONGEST, look).await;
        let took = begin.elapsed();
        turn.timeouts = if found.is_ok() { 0 } else { turn.timeouts.saturating_add(1) };
        let found =
            found.unwrap_or_else(|_| Err(EngineError::absent("the store did not answer in time")));
        let pause = match found {
            Ok(found) => {
                *self.lock() = Some((found, Instant::now()));
                turn.faults = 0;
                // A large queue makes every query slow, and a stall makes one query slow.
                let usual = took.min(std::mem::replace(&mut turn.took, took));
                (usual * SHARE).min(LONG_PAUSE.max(usual * LONG_SHARE))
            }
            Err(fault) => {
                // The store may recover soon, so the pauses are short at first: they double with
                // each failure.
                let short = doubled(FRESH, turn.faults).min(REST);
                turn.faults = turn.faults.saturating_add(1);
                turn.fault = fault.source.to_string();
                // A store that is only slow must not count all the time.
                let long = match turn.timeouts {
                    0 | 1 => Duration::ZERO,
                    timeouts => doubled(took, timeouts - 2).min(took * LONG_SHARE),
                };
                short.min(took * SHARE).max(long)
            }
        };
        turn.until = Instant::now() + pause.max(FRESH);
    }
}

fn doubled(time: Duration, times: u32) -> Duration {
    time.saturating_mul(2u32.saturating_pow(times))
}

impl Shared {
    /// The future does not keep the queue alive.
    fn recent_counts(&self) -> impl Future<Output = Result<Counts, ReadError>> + Send + use<> {
        let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
        let counts = Arc::clone(&self.counts);
        async move {
            let counted = counts.or(async move { engine.counts(&place).await }).await;
            counted
                .map(|(counts, _)| counts)
                .map_err(|fault| ReadError::of("the keys were not counted", fault))
        }
    }
}

impl Scrape for Shared {
    fn scrape(&self) -> Option<Sample> {
        let (counts, at) = (*self.counts.lock())?;
        Some(self.place.meters.sample(counts, at.elapsed(), self.leases.ages()))
    }
}

impl Queue {
    /// Returns recent [counts](Self::counts). The engine counts again after a pause, which depends on the duration
    /// of the last two counts. The shorter one decides, so that a stall of the store makes no long pause:
    ///
    /// - Up to 0.6 s: the pause is fifty times the duration, and at least 1 s.
    /// - Up to 7.5 s: the pause is 30 s.
    /// - Over 7.5 s: the pause is four times the duration.
    ///
    /// So counts that take a similar time take at most a fifth of the time of the engine, and at most a fiftieth if
    /// they take up to 0.6 s. The number of callers does not matter. Counts whose durations differ much, or that
    /// reach their time limit, can take more.
    ///
    /// Callers that arrive during a count wait for it. [`sample`](Self::sample) returns the last counts
    /// without waiting, and their age.
    ///
    /// # Errors
    ///
    /// Returns an error if the last count failed, now or recently. A count that takes over a minute fails.
    /// After a failure, the engine is not queried again for 1 s to 10 s. If several counts in a row take too
    /// long, the pauses are one minute, two and then four. On SQLite, a count that takes too long runs to its end.
    ///
    /// # Cancel safety
    ///
    /// A count continues if its callers are dropped.
    pub async fn recent_counts(&self) -> Result<Counts, ReadError> {
        self.shared.recent_counts().await
    }

    /// Returns recent entries of the keys in flight, with the longest runs first. The entries are renewed
    /// as often as [`recent_counts`](Self::recent_counts). The times of an entry count up or down to now.
    ///
    /// If more than 256 keys are in flight, only the first 256 by key are considered.
    ///
    /// # Errors
    ///
    /// As [`recent_counts`](Self::recent_counts).
    ///
    /// # Cancel safety
    ///
    /// As [`recent_counts`](Self::recent_counts).
    pub async fn recent_longest(&self) -> Result<Vec<Entry>, ReadError> {
        let Shared { engine, place, longest, .. } = &*self.shared;
        let (engine, place) = (Arc::clone(engine), Arc::clone(place));
        let look = async move {
            let running = engine.page(&place, Some(State::Processing), None, RUNNING);
            let mut running = running.await?;
            running.sort_by_key(|entry| Reverse(entry.since));
            Ok(running)
        };
        let longest = longest.or(look).await;
        let (mut longest, age) =
            longest.map_err(|fault| ReadError::of("the keys were not listed", fault))?;
        for Entry { since, due, bound, lease, .. } in &mut longest {
            *since = since.map(|since| since.saturating_add(age));
            for until in [due, bound, lease] {
                *until = until.map(|until| until.saturating_sub(age));
            }
        }
        Ok(longest)
    }

    /// Returns the values of the queue's metrics, or `None` before the first
    /// [`recent_counts`](Self::recent_counts).
    ///
    /// The numbers of keys are those of all processes, as of the last `recent_counts`: `counts_age` is their
    /// age. The other values describe this process:
    ///
    /// - A completion counts when the worker makes it, even if the store does not accept it. A success after
    ///   the lease has expired counts as a failure, as in the store. A worker that was killed counts nothing.
    /// - Adds are those of this process, including delayed ones.
    /// - `enqueued` counts the adds that gave a key its pending run. A delayed add counts immediately, and a retry
    ///   or a requeue does not count: another process may deliver the key. In a queue in memory, a key counts when
    ///   it becomes ready.
    /// - `given_up` counts the keys that failed for the last time in this process: they were given up, or
    ///   reached the limit of failures. If such a key was added during its last run, it is not parked but
    ///   runs again with its failures reset. It includes the keys that claims of this process have parked.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_all(["alice", "bob"]).await?;
    /// assert_eq!(queue.sample(), None);
    /// queue.recent_counts().await?;
    /// assert_eq!(queue.sample().map(|sample| sample.depth), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sample(&self) -> Option<Sample> {
        self.shared.scrape()
    }
}

/// Counts the keys regularly until the queue is gone. A scrape cannot wait for a count.
#[cfg(feature = "prometheus")]
pub(crate) async fn keep_counting(shared: std::sync::Weak<Shared>) {
    let begin = |shared: Arc<Shared>| (Arc::clone(&shared.place), shared.recent_counts());
    while let Some((place, counting)) = shared.upgrade().map(begin) {
        if let Err(error) = counting.await {
            // The other calls on the queue report an outage.
            let error = crate::types::error::chain(&error);
            tracing::debug!(queue = place.name, error, "the metrics were not updated");
        }
        tokio::time::sleep(BETWEEN_SCRAPES).await;
    }
}
