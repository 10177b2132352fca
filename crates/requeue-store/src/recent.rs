//! How many keys there were not long ago, for those who look again and again: pages and metrics.

use std::time::Duration;

use requeue::metrics::{Sample, Scrape};
use tokio::time::{Instant, timeout};

use crate::error::{Fault, LookError};
use crate::inspect::Counts;
use crate::queue::{Queue, Shared};

/// How old counts may be at least.
const FRESH: Duration = Duration::from_secs(1);
/// Of how much time one part may be spent on counting.
const SHARE: u32 = 50;
/// How often keys are counted for metrics.
#[cfg(feature = "prometheus")]
const BETWEEN_SCRAPES: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Recent {
    counts: Counts,
    /// Until when it is recent.
    until: Instant,
}

impl Shared {
    pub(crate) async fn recent_counts(&self) -> Result<Counts, LookError> {
        // Others who ask meanwhile get what this one finds.
        let mut recent = self.recent.lock().await;
        let begin = Instant::now();
        if let Some(recent) = recent.as_ref().filter(|recent| recent.until > begin) {
            return Ok(recent.counts);
        }
        let counted = timeout(self.options.lease, self.engine.counts(&self.place)).await;
        let counted = counted.unwrap_or_else(|_| Err(Fault::absent("there was no answer in time")));
        let counts = counted.map_err(|fault| LookError::of("the keys were not counted", fault))?;
        self.place.meters.counted(counts);
        let until = begin + FRESH.max(SHARE * begin.elapsed());
        *recent = Some(Recent { counts, until });
        Ok(counts)
    }
}

impl Scrape for Shared {
    fn scrape(&self) -> Option<Sample> {
        self.place.meters.sample(self.leases.ages())
    }
}

impl Queue {
    /// The [counts](Self::counts) of not long ago: they are counted anew when they are older than a
    /// second and than fifty times as long as it took. However many ask, and however many keys there
    /// are, this process has the engine count for a fiftieth of the time at most.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn recent_counts(&self) -> Result<Counts, LookError> {
        self.shared.recent_counts().await
    }

    /// What metrics show of the queue: how many keys it has, by all processes, as of the last
    /// [`recent_counts`](Self::recent_counts); and what this process has done. `None` before those
    /// were asked for.
    ///
    /// What has ended counts when the worker says so, whether or not the store takes it; a lease that has run
    /// out counts nowhere. Counts of adds are those of this process, delayed ones included. `given_up` is how many it has
    /// parked by themselves or for too many failures, including those few that had been added
    /// meanwhile and began anew.
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
    while let Some(shared) = shared.upgrade() {
        if let Err(error) = shared.recent_counts().await {
            tracing::warn!(queue = shared.place.name, %error, "metrics are as they were");
        }
        drop(shared);
        tokio::time::sleep(BETWEEN_SCRAPES).await;
    }
}
