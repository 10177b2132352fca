//! The queues of a store that clients read: their list, and the numbers of each queue.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use futures_util::future::join_all;
use parking_lot::Mutex;
use requeue_store::{
    Activity, ErrorKind, OpenError, OpenOptions, Queue, QueueInfo, ReadError, StateCounts, Store,
    Tally,
};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::{Instant, timeout};

use crate::params::{Problem, with_source};
use crate::state::SiteState;

/// The minimum time between two reads of the numbers of a queue, and between two searches for queues to close.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// The minimum time between two reads, per queue. Of many queues, 100 are read each second.
const PER_QUEUE: Duration = Duration::from_millis(10);
/// The number of queues that are read at the same time.
const READS: usize = 4;
/// The age after which the list of queues is read again.
const FRESH: Duration = Duration::from_secs(1);
/// The time limit of the list, which the store reads quickly.
const PATIENCE_FOR_LIST: Duration = Duration::from_secs(5);
/// The time limit of other requests to the store.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for which a queue stays open after the last request. Prometheus reads more often than once in this time.
const KEPT: Duration = Duration::from_secs(300);
/// The period that the rates cover.
const RATED: Duration = Duration::from_secs(300);

pub(crate) type OpenWith = Box<dyn Fn(OpenOptions) -> OpenOptions + Send + Sync>;

pub(crate) struct OpenQueues {
    store: Store,
    open_with: OpenWith,
    /// The lock is held by the caller that reads the list. The other callers share its result.
    list: tokio::sync::Mutex<List>,
    queues: Mutex<BTreeMap<String, Arc<OpenQueue>>>,
    reads: Semaphore,
}

/// The result of the last read of the list.
#[derive(Clone, Default)]
pub(crate) struct List {
    pub(crate) queues: Arc<[QueueInfo]>,
    /// The time of the read, or `None` before the first read.
    at: Option<Instant>,
    tried: Option<Instant>,
    /// The reason why the last read failed.
    pub(crate) error: Option<String>,
}

impl List {
    pub(crate) fn age(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

/// A queue that was opened for a client.
pub(crate) struct OpenQueue {
    name: String,
    queue: OnceCell<Queue>,
    numbers: Mutex<Numbers>,
    used: Mutex<Instant>,
    /// The site of the queue, which is created at the first request for it.
    site: OnceLock<(Arc<SiteState>, Router)>,
}

/// The last numbers of a queue that were read.
#[derive(Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) counts: Option<(StateCounts, Instant)>,
    pub(crate) work: Option<Work>,
    /// The reason why the last read failed.
    pub(crate) error: Option<String>,
    is_reading: bool,
    /// The time of the last read.
    began: Option<Instant>,
}

/// The recent work on a queue in all processes.
#[derive(Clone)]
pub(crate) struct Work {
    /// Runs and failures per second in the last minutes.
    pub(crate) runs: f64,
    pub(crate) failures: f64,
    /// The work in the last hour.
    pub(crate) hour: Tally,
    /// The number of workers that are alive.
    pub(crate) workers: usize,
}

impl Work {
    fn new(activity: &Activity) -> Self {
        let recent = || activity.minutes.iter().filter(|minute| minute.ago < RATED);
        // The present minute is incomplete. Minutes without work are not listed, so the age of a minute is read from
        // any of them.
        let minute = recent().next().map_or(0.0, |minute| minute.ago.as_secs_f64() % 60.0);
        let period = RATED.as_secs_f64() - 60.0 + minute;
        let rate = |count: fn(&Tally) -> u64| {
            let sum: u64 = recent().map(|minute| count(&minute.tally)).sum();
            (sum as f64 / period * 1e3).round() / 1e3
        };
        Self {
            runs: rate(|tally| tally.starts),
            failures: rate(|tally| tally.failures),
            hour: activity.total(),
            workers: activity.workers.len(),
        }
    }
}

impl OpenQueue {
    fn new(name: String) -> Self {
        Self {
            name,
            queue: OnceCell::new(),
            numbers: Mutex::default(),
            used: Mutex::new(Instant::now()),
            site: OnceLock::new(),
        }
    }

    /// Returns the site of the queue, which `make` starts.
    pub(crate) fn site(&self, make: impl FnOnce(Queue) -> (Arc<SiteState>, Router)) -> Router {
        let make = || self.queue.get().map(|queue| make(queue.clone()));
        let made = self.site.get().or_else(|| {
            let made = make()?;
            // If two requests create a site, only one of the sites is kept.
            Some(self.site.get_or_init(|| made))
        });
        made.map(|(_, router)| router.clone()).unwrap_or_default()
    }

    pub(crate) fn end_site(&self) {
        if let Some((site, _)) = self.site.get() {
            site.end();
        }
    }

    fn is_in_use(&self) -> bool {
        let is_watched = self.site.get().is_some_and(|(site, _)| site.ticks.receiver_count() > 0);
        is_watched || self.used.lock().elapsed() < KEPT
    }

    /// Returns true if the caller must read the numbers.
    fn begin_read(&self, every: Duration) -> bool {
        *self.used.lock() = Instant::now();
        let mut numbers = self.numbers.lock();
        let is_due = numbers.began.is_none_or(|began| began.elapsed() >= every);
        let begins = is_due && !numbers.is_reading;
        if begins {
            (numbers.is_reading, numbers.began) = (true, Some(Instant::now()));
        }
        begins
    }

    fn end_read(&self, read: Result<(StateCounts, Duration, Work), String>) {
        let mut numbers = self.numbers.lock();
        numbers.is_reading = false;
        let now = Instant::now();
        match read {
            Ok((counts, age, work)) => {
                numbers.counts = Some((counts, now.checked_sub(age).unwrap_or(now)));
                (numbers.work, numbers.error) = (Some(work), None);
            }
            Err(error) => numbers.error = Some(error),
        }
    }
}

/// The reason why a queue cannot be read.
enum Unread {
    /// The queue was dropped, or never existed.
    Gone,
    Failed(String),
}

impl From<OpenError> for Unread {
    fn from(error: OpenError) -> Self {
        match error.kind() {
            ErrorKind::Missing | ErrorKind::Invalid | ErrorKind::Dropped => Self::Gone,
            _ => Self::Failed(with_source(error)),
        }
    }
}

impl From<ReadError> for Unread {
    fn from(error: ReadError) -> Self {
        match error.kind() {
            ErrorKind::Dropped => Self::Gone,
            _ => Self::Failed(with_source(error)),
        }
    }
}

impl OpenQueues {
    pub(crate) fn new(store: Store, open_with: OpenWith) -> Self {
        let (list, queues) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { store, open_with, list, queues, reads: Semaphore::new(READS) }
    }

    /// Returns the queues of the store. The list is up to a second old.
    pub(crate) async fn list(&self) -> Result<List, Problem> {
        let mut list = self.list.lock().await;
        if list.tried.is_none_or(|tried| tried.elapsed() >= FRESH) {
            match timeout(PATIENCE_FOR_LIST, self.store.queues()).await {
                Ok(Ok(queues)) => {
                    let names: HashSet<&str> = queues.iter().map(|info| &*info.name).collect();
                    self.close_if(|open| !names.contains(&*open.name));
                    (list.queues, list.at) = (queues.into(), Some(Instant::now()));
                    list.error = None;
                }
                Ok(Err(error)) => list.error = Some(with_source(error)),
                Err(_) => list.error = Some("the store does not answer".to_owned()),
            }
            list.tried = Some(Instant::now());
        }
        match &list.error {
            Some(error) if list.at.is_none() => Err(unavailable(error)),
            _ => Ok(list.clone()),
        }
    }

    /// Reads outdated numbers, and waits at most `patience` for them. Returns the queues of the store. With
    /// `counts_all`, the store also counts the keys of empty queues.
    pub(crate) async fn look(
        self: &Arc<Self>,
        patience: Duration,
        counts_all: bool,
    ) -> Result<List, Problem> {
        let list = self.list().await?;
        let number = u32::try_from(list.queues.len()).unwrap_or(u32::MAX);
        let every = EVERY.max(PER_QUEUE.saturating_mul(number));
        let mut begun = Vec::new();
        for info in &*list.queues {
            let open = self.enter(&info.name);
            if open.begin_read(every) {
                let (this, is_empty) = (Arc::clone(self), info.is_empty && !counts_all);
                begun.push(tokio::spawn(async move { this.read(open, is_empty).await }));
            }
        }
        // The other reads continue, so that the next request finds their numbers.
        let _ = timeout(patience, join_all(begun)).await;
        Ok(list)
    }

    pub(crate) fn numbers_of(&self, name: &str) -> Numbers {
        let queues = self.queues.lock();
        queues.get(name).map(|open| open.numbers.lock().clone()).unwrap_or_default()
    }

    /// Opens a queue for its dashboard.
    pub(crate) async fn find(&self, name: &str) -> Result<Arc<OpenQueue>, Problem> {
        let open = self.enter(name);
        match timeout(PATIENCE, self.open(&open)).await {
            Ok(Ok(_)) => {
                *open.used.lock() = Instant::now();
                Ok(open)
            }
            Ok(Err(Unread::Gone)) => {
                self.close(&open);
                let error = format!("the store has no queue {name:?}; / lists the queues");
                Err(Problem::new(StatusCode::NOT_FOUND, error))
            }
            Ok(Err(Unread::Failed(error))) => Err(unavailable(&error)),
            Err(_) => Err(unavailable("the store does not answer")),
        }
    }

    /// Closes queues that no client reads any longer, and dropped queues.
    pub(crate) async fn close_unused(&self) {
        self.close_if(|open| !open.is_in_use());
        if self.queues.lock().is_empty() || self.list().await.is_err() {
            return;
        }
        // A dropped queue may have been created again, so that the list still contains its name.
        let shown = |open: &&Arc<OpenQueue>| open.site.get().is_some();
        let shown: Vec<_> = self.queues.lock().values().filter(shown).cloned().collect();
        for open in shown {
            let Some(queue) = open.queue.get() else { continue };
            let asked = timeout(PATIENCE_FOR_LIST, queue.is_paused()).await;
            if asked.is_ok_and(|asked| asked.is_err_and(|error| error.kind() == ErrorKind::Dropped))
            {
                self.close(&open);
            }
        }
    }

    pub(crate) fn close_all(&self) {
        self.close_if(|_| true);
    }

    fn close(&self, open: &OpenQueue) {
        self.close_if(|other| std::ptr::eq(other, open));
    }

    fn close_if(&self, is_closed: impl Fn(&OpenQueue) -> bool) {
        let mut queues = self.queues.lock();
        let all = std::mem::take(&mut *queues).into_iter();
        let (closed, kept): (BTreeMap<_, _>, _) = all.partition(|(_, open)| is_closed(open));
        *queues = kept;
        // The shutdown of a site calls user code, which must not run under the lock.
        drop(queues);
        closed.values().for_each(|open| open.end_site());
    }

    fn enter(&self, name: &str) -> Arc<OpenQueue> {
        let mut queues = self.queues.lock();
        if let Some(open) = queues.get(name) {
            return Arc::clone(open);
        }
        let open = Arc::new(OpenQueue::new(name.to_owned()));
        queues.insert(name.to_owned(), Arc::clone(&open));
        open
    }

    async fn open<'a>(&self, open: &'a OpenQueue) -> Result<&'a Queue, Unread> {
        let options = || {
            let options = self.store.queue(&open.name);
            // Adds carry the trace contexts of their requests.
            #[cfg(feature = "opentelemetry")]
            let options = options.traces();
            (self.open_with)(options).must_exist()
        };
        Ok(open.queue.get_or_try_init(async || options().open().await).await?)
    }

    async fn read(&self, open: Arc<OpenQueue>, is_empty: bool) {
        // The semaphore is never closed.
        let _turn = self.reads.acquire().await;
        match timeout(PATIENCE, self.read_numbers(&open, is_empty)).await {
            Ok(Ok(read)) => open.end_read(Ok(read)),
            Ok(Err(Unread::Failed(error))) => open.end_read(Err(error)),
            Err(_) => open.end_read(Err("the store does not answer in time".to_owned())),
            Ok(Err(Unread::Gone)) => self.close(&open),
        }
    }

    async fn read_numbers(
        &self,
        open: &OpenQueue,
        is_empty: bool,
    ) -> Result<(StateCounts, Duration, Work), Unread> {
        let queue = self.open(open).await?;
        let (mut counts, mut age) = (StateCounts::default(), Duration::ZERO);
        if !is_empty {
            counts = queue.recent_counts().await?;
            age = queue.sample().and_then(|sample| sample.counts_age).unwrap_or_default();
        }
        let activity = queue.recent_activity().await?;
        Ok((counts, age, Work::new(&activity)))
    }
}

fn unavailable(error: &str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queues_are_open_only_while_a_client_looks() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("queues.db").display());
        let store = Store::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        for name in ["a", "b"] {
            store.queue(name).open().await.unwrap();
        }
        let all = Arc::new(OpenQueues::new(store, Box::new(|opening| opening)));
        let open = || all.queues.lock().keys().cloned().collect::<Vec<_>>();
        assert_eq!(open(), [""; 0]);
        all.look(Duration::ZERO, false).await.unwrap();
        all.close_unused().await;
        assert_eq!(open(), ["a", "b"]);
        let Some(long_ago) = Instant::now().checked_sub(KEPT) else { return };
        *all.queues.lock()["a"].used.lock() = long_ago;
        all.close_unused().await;
        assert_eq!(open(), ["b"]);
        // A name without a queue is not kept.
        assert!(all.find("none").await.is_err());
        assert_eq!(open(), ["b"]);
    }

    #[test]
    fn reads_are_shared_and_have_a_pause() {
        let open = OpenQueue::new("a".to_owned());
        assert!(open.begin_read(EVERY) && !open.begin_read(Duration::ZERO), "one read at a time");
        open.end_read(Err("away".to_owned()));
        assert!(open.begin_read(Duration::ZERO), "the last read has ended");
        open.end_read(Err("away".to_owned()));
        assert!(!open.begin_read(Duration::MAX), "too soon");
    }
}
