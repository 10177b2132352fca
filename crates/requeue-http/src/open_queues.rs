//! The queues of a store that are open because clients read them, and their last numbers.

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

/// The minimum time between two reads of the numbers of a queue. Also the time between two
/// searches for queues that can be closed.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// The minimum time between two reads of the same queue, for each queue of the store. If there
/// are many queues, 100 of them are read each second.
const PER_QUEUE: Duration = Duration::from_millis(10);
/// The maximum number of queues whose numbers are read at the same time.
const READS: usize = 4;
/// The age after which the list of queues is read again.
const FRESH: Duration = Duration::from_secs(1);
/// The time limit of short requests to the store, such as that for the list of queues.
const PATIENCE_FOR_LIST: Duration = Duration::from_secs(5);
/// The time limit of other requests to the store.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time for which a queue stays open after the last request for it. The time is longer than
/// the interval at which Prometheus reads the metrics.
const KEPT: Duration = Duration::from_secs(300);
/// The period over which runs and failures per second are averaged.
const RATED: Duration = Duration::from_secs(300);

pub(crate) type OpenWith = Box<dyn Fn(OpenOptions) -> OpenOptions + Send + Sync>;

pub(crate) struct OpenQueues {
    store: Store,
    open_with: OpenWith,
    /// The caller that reads the list from the store holds the lock. The other callers wait for
    /// it, and then use the same list.
    list: tokio::sync::Mutex<List>,
    queues: Mutex<BTreeMap<String, Arc<OpenQueue>>>,
    reads: Semaphore,
}

/// The last list of queues that was read, and the result of the last read.
#[derive(Clone, Default)]
pub(crate) struct List {
    pub(crate) queues: Arc<[QueueInfo]>,
    /// The time of the last successful read, or `None` before it.
    at: Option<Instant>,
    tried: Option<Instant>,
    /// The reason why the last read failed, or `None` if it succeeded.
    pub(crate) error: Option<String>,
}

impl List {
    pub(crate) fn age(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

/// A queue that is open, or is being opened, because a client has requested it.
pub(crate) struct OpenQueue {
    name: String,
    queue: OnceCell<Queue>,
    numbers: Mutex<Numbers>,
    used: Mutex<Instant>,
    /// The site of the queue, which is created at the first request for it.
    site: OnceLock<(Arc<SiteState>, Router)>,
}

/// The last numbers of a queue that were read, and the result of the last read.
#[derive(Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) counts: Option<(StateCounts, Instant)>,
    pub(crate) work: Option<Work>,
    /// The reason why the last read failed, or `None` if it succeeded.
    pub(crate) error: Option<String>,
    is_reading: bool,
    /// The time at which the last read began.
    began: Option<Instant>,
}

/// The recent work of all processes on a queue.
#[derive(Clone)]
pub(crate) struct Work {
    /// The number of runs per second, and of failures per second, averaged over [`RATED`].
    pub(crate) runs: f64,
    pub(crate) failures: f64,
    /// The work of all processes in the last hour.
    pub(crate) hour: Tally,
    /// The number of workers that are alive.
    pub(crate) workers: usize,
}

impl Work {
    fn new(activity: &Activity) -> Self {
        let recent = || activity.minutes.iter().filter(|minute| minute.ago < RATED);
        // The last minute is not complete, so its length must be computed. Minutes without work
        // are missing from the list, but the ages of all minutes differ by whole minutes. The
        // age of any of them is therefore sufficient.
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

    /// Returns the router of the queue's site. `make` creates the site if there is none.
    pub(crate) fn site(&self, make: impl FnOnce(Queue) -> (Arc<SiteState>, Router)) -> Router {
        let make = || self.queue.get().map(|queue| make(queue.clone()));
        let made = self.site.get().or_else(|| {
            let made = make()?;
            // If two requests create a site at the same time, only the first one is kept.
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

    /// Returns true if the numbers are outdated and no other caller reads them. The caller must
    /// then read them.
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

/// The reason why the numbers of a queue cannot be read.
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

    /// Returns the queues of the store. The list is at most about a second old.
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

    /// Starts to read the numbers of all queues that are outdated, and waits at most `patience`
    /// for them. Returns the queues of the store. If `counts_all` is true, the store also counts
    /// the keys of empty queues.
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
        // The reads that are not complete continue, so that the next request finds their
        // numbers.
        let _ = timeout(patience, join_all(begun)).await;
        Ok(list)
    }

    pub(crate) fn numbers_of(&self, name: &str) -> Numbers {
        let queues = self.queues.lock();
        queues.get(name).map(|open| open.numbers.lock().clone()).unwrap_or_default()
    }

    /// Opens a queue, because a client has requested its dashboard.
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

    /// Closes the queues that no client has requested recently, and the queues that were
    /// dropped.
    pub(crate) async fn close_unused(&self) {
        self.close_if(|open| !open.is_in_use());
        if self.queues.lock().is_empty() || self.list().await.is_err() {
            return;
        }
        // A queue may have been dropped and then created again with the same name. The list
        // contains this name, but the open handle is invalid. Each handle is therefore also
        // checked.
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
        // The lock is released first, because the shutdown of a site calls functions of the
        // user.
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
            // Adds through this site store the trace contexts of their requests.
            #[cfg(feature = "opentelemetry")]
            let options = options.traces();
            (self.open_with)(options).must_exist()
        };
        Ok(open.queue.get_or_try_init(async || options().open().await).await?)
    }

    async fn read(&self, open: Arc<OpenQueue>, is_empty: bool) {
        // `acquire` fails only if the semaphore is closed, and it is never closed.
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
        // A name is not stored if the store has no queue with this name.
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
