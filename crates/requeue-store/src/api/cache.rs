//! What was found not long ago, for those who look again and again: pages and metrics.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use requeue::metrics::{Sample, Scrape};
use tokio::time::{Instant, timeout};

use crate::api::queue::{Queue, Shared};
use crate::types::error::{EngineError, ReadError};
use crate::types::inspect::{Counts, Entry, State};

/// How old what was found may be at least.
const FRESH: Duration = Duration::from_secs(1);
/// Of how much time one part may be spent on looking.
const SHARE: u32 = 50;
/// How long a look may take. Engines find out by themselves that nobody is there; this is for what
/// would never come to an end.
const LONGEST: Duration = Duration::from_secs(600);
/// How long a store that could not be reached is left alone at most.
const REST: Duration = Duration::from_secs(10);
/// How many running keys are looked at for those that have been so longest.
const RUNNING: usize = 256;
/// How often keys are counted for metrics.
#[cfg(feature = "prometheus")]
const BETWEEN_SCRAPES: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Cache<T> {
    /// What was found last, and when.
    found: Mutex<Option<(T, Instant)>>,
    /// Whoever looks has it.
    turn: Arc<tokio::sync::Mutex<Turn>>,
}

#[derive(Debug)]
struct Turn {
    /// Until when nobody looks again.
    until: Instant,
    /// How many looks in a row have found nothing, and why the last one.
    faults: u32,
    fault: String,
}

impl<T: Clone + Send + 'static> Cache<T> {
    pub(crate) fn new() -> Arc<Self> {
        let turn = Turn { until: Instant::now(), faults: 0, fault: String::new() };
        let turn = Arc::new(tokio::sync::Mutex::new(turn));
        Arc::new(Self { found: Mutex::new(None), turn })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(T, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `look` finds, if it is time for that; else, what the last one has.
    async fn or(
        self: &Arc<Self>,
        look: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        // Others who ask meanwhile get what this one finds, good or bad.
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        if turn.until <= Instant::now() {
            let this = Arc::clone(self);
            // It goes on when who asked has gone: given up each time, what takes long would be
            // begun again and again, and never be found.
            let looking = tokio::spawn(async move {
                this.look(&mut turn, look).await;
                turn
            });
            turn = looking.await.map_err(EngineError::absent)?;
        }
        match &*self.lock() {
            Some((found, _)) if turn.faults == 0 => Ok(found.clone()),
            _ => Err(EngineError::absent(turn.fault.clone())),
        }
    }

    async fn look(&self, turn: &mut Turn, look: impl Future<Output = Result<T, EngineError>>) {
        let begin = Instant::now();
        let found = timeout(LONGEST, look).await;
        let found =
            found.unwrap_or_else(|_| Err(EngineError::absent("there was no answer in time")));
        let mut pause = begin.elapsed() * SHARE;
        match found {
            Ok(found) => {
                *self.lock() = Some((found, Instant::now()));
                turn.faults = 0;
            }
            Err(fault) => {
                // Whoever could not be reached may soon be: it is given up by and by.
                pause = pause.min(FRESH * 2u32.saturating_pow(turn.faults)).min(REST);
                turn.faults = turn.faults.saturating_add(1);
                turn.fault = fault.source.to_string();
            }
        }
        turn.until = Instant::now() + pause.max(FRESH);
    }
}

impl Shared {
    /// A queue that is gone meanwhile is not kept by it.
    fn recent_counts(&self) -> impl Future<Output = Result<Counts, ReadError>> + Send + use<> {
        let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
        let counts = Arc::clone(&self.counts);
        async move {
            let counted = counts.or(async move { engine.counts(&place).await }).await;
            counted.map_err(|fault| ReadError::of("the keys were not counted", fault))
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
    /// The [counts](Self::counts) of not long ago: they are counted anew when they are older than a
    /// second and than fifty times as long as it took. However many ask, and however many keys there
    /// are, this process has the engine count for a fiftieth of the time at most, or a little more
    /// while that goes wrong.
    ///
    /// A count that is under way is waited for, also by those who come meanwhile, and goes on when
    /// they have gone. [`sample`](Self::sample) has the last counts without waiting.
    ///
    /// # Errors
    ///
    /// If the store could not be reached when it was last asked: just now, or not long ago.
    pub async fn recent_counts(&self) -> Result<Counts, ReadError> {
        self.shared.recent_counts().await
    }

    /// Keys with workers, those first that have been so longest: of not long ago, as
    /// [`recent_counts`](Self::recent_counts) has it. Of more than 256, only the first 256 by key are
    /// looked at.
    ///
    /// # Errors
    ///
    /// As of [`recent_counts`](Self::recent_counts).
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
        longest.map_err(|fault| ReadError::of("the keys were not looked at", fault))
    }

    /// What metrics show of the queue: how many keys it has, by all processes, as of the last
    /// [`recent_counts`](Self::recent_counts); and what this process has done. `None` before those
    /// were asked for.
    ///
    /// What has ended counts when the worker says so, whether or not the store takes it; a lease
    /// that has run out counts nowhere. Counts of adds are those of this process, delayed ones
    /// included. `given_up` counts the keys that failed for the last time here, by their own word or
    /// for too many failures: those among them that were added meanwhile are not parked, but begin
    /// anew.
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

/// Counts for those who scrape, who can't wait for it, until the queue is gone.
#[cfg(feature = "prometheus")]
pub(crate) async fn keep_counting(shared: std::sync::Weak<Shared>) {
    let begin = |shared: Arc<Shared>| (Arc::clone(&shared.place), shared.recent_counts());
    while let Some((place, counting)) = shared.upgrade().map(begin) {
        if let Err(error) = counting.await {
            // An outage is reported by what works on the queue.
            let error = crate::types::error::chain(&error);
            tracing::debug!(queue = place.name, error, "metrics are as they were");
        }
        tokio::time::sleep(BETWEEN_SCRAPES).await;
    }
}
