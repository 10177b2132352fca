//! A store, and how its queues are opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::options::Options;
use crate::api::queue::Queue;
use crate::engine::address::Address;
use crate::engine::parked::OnParked;
use crate::engine::{Dropped, Engine, Settings};
use crate::types::add::{ParkedAdd, ReAdd};
use crate::types::error::{
    ConnectError, DropError, EngineError, MigrateError, OpenError, ReadError,
};
use crate::types::inspect::{Counts, ParkedKey, QueueInfo};
use crate::types::worker::{invalid_worker, this_process};

/// What is longer is as good as for ever, and no clock runs over by it.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Where queues are kept: a file, or servers.
///
/// ```
/// use requeue_store::{Added, Store};
///
/// # let dir = tempfile::tempdir()?;
/// # let file = dir.path().join("queues.db");
/// # let url = format!("sqlite:{}", file.display());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = Store::connect(&url).await?;
/// store.migrate().await?;
/// let queue = store.queue("mail").open().await?;
///
/// assert_eq!(queue.add("alice").await?, Added::New);
/// let item = queue.get().await.expect("the queue is open");
/// assert_eq!(item.as_str(), Some("alice"));
/// item.succeed().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    engine: Arc<dyn Engine>,
}

impl Store {
    /// Connects to the store at `url`: `sqlite:FILE`, a path as it is, made if it is not there, with
    /// `?synchronous=full` so that what was acknowledged survives also when the power goes, and in
    /// tests `sqlite::memory:`, which is gone with the last handle; or `postgres://USER@HOST/DATABASE`, with the feature `postgres`; or `redis://HOST` or
    /// `rediss://HOST`, with the feature `redis`, one node or any of a cluster, with
    /// `?wait=N` so that what was acknowledged is on N replicas, `shards=N` for queues to be made, and
    /// `eviction=accept` for a server that may remove keys when its memory is full.
    ///
    /// # Errors
    ///
    /// If the address is not valid, or no connection is made: the error's
    /// [kind](ConnectError::kind) says why. No password is in the message.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let engine: Arc<dyn Engine> = match Address::parse(url)? {
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path, synchronous) => {
                let said = "the store can't be opened";
                // It waits for the disk.
                let opened = tokio::task::spawn_blocking(move || {
                    crate::engine::sqlite::Sqlite::open(&path, synchronous)
                });
                match opened.await {
                    Ok(Ok(engine)) => Arc::new(engine),
                    Ok(Err(fault)) => return Err(ConnectError::of(said, fault)),
                    Err(error) => return Err(ConnectError::of(said, EngineError::absent(error))),
                }
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(address) => {
                Arc::new(crate::engine::postgres::Postgres::connect(*address).await?)
            }
            #[cfg(feature = "redis")]
            Address::Redis(options) => {
                let said = options.shown();
                let connected = crate::engine::redis::Redis::connect(options).await;
                Arc::new(connected.map_err(|fault| ConnectError::of(said, fault))?)
            }
        };
        Ok(Self { engine })
    }

    /// Checks an address, with its options, without connecting to it.
    ///
    /// A file with certificates that the address names is read.
    ///
    /// # Errors
    ///
    /// If the address is not valid, or a feature for it is missing. No password is in the message.
    ///
    /// ```
    /// use requeue_store::Store;
    ///
    /// assert!(Store::check("sqlite:jobs.db?synchronous=full").is_ok());
    /// let error = Store::check("sqlite:jobs.db?sync=full").expect_err("a typing error");
    /// assert_eq!(error.to_string(), "sqlite: there is no option \"sync\"; there are synchronous");
    /// ```
    pub fn check(url: &str) -> Result<(), ConnectError> {
        Address::parse(url).map(drop)
    }

    /// Makes the schema, or brings it up to this version; harmless if there is nothing to do. It
    /// takes more rights than the queues do.
    ///
    /// # Errors
    ///
    /// If the schema is of a later version, or what is there is not ours, or the engine can't be
    /// reached.
    pub async fn migrate(&self) -> Result<(), MigrateError> {
        let migrated = self.engine.migrate().await;
        migrated.map_err(|fault| MigrateError::of("the schema was not brought up to date", fault))
    }

    /// All queues of the store, by name, with their settings and whether they have keys. It takes as
    /// long however many keys there are.
    ///
    /// # Errors
    ///
    /// If the store can't be reached, or has no schema of this version.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// store.queue("mail").open().await?.add("alice").await?;
    /// store.queue("invoices").open().await?;
    /// let found = store.queues().await?;
    /// let found: Vec<_> = found.iter().map(|queue| (&*queue.name, queue.is_empty)).collect();
    /// assert_eq!(found, [("invoices", true), ("mail", false)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, ReadError> {
        let queues = self.engine.queues().await;
        let mut queues =
            queues.map_err(|fault| ReadError::of("the queues can't be listed", fault))?;
        queues.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(queues)
    }

    /// Drops a queue that has no keys: it is gone with its settings, for all processes.
    ///
    /// Processes that still have it open get errors: an add fails with
    /// [`AddError::is_dropped`](crate::AddError::is_dropped), and those who wait for keys end; see
    /// [`Queue::is_dropped`]. No add is acknowledged and lost: of an add and a drop at the same time, either
    /// the add fails or the drop does, because the queue has a key. If a queue of this name is created
    /// again, it is another queue, and its [fencing tokens](crate::Item::epoch) are greater.
    ///
    /// # Errors
    ///
    /// If a key is ready, waiting, in flight, parked or damaged: the error has their
    /// [numbers](crate::DropError::counts), and the queue is as it was. If there is
    /// [no such queue](crate::DropError::is_missing). If the store can't be reached, or, in PostgreSQL, a
    /// transaction that has added keys to the queue stays open for 5 s.
    ///
    /// If the store fails in the middle, or this is dropped, the queue may be gone or not. To drop it
    /// again is harmless.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add("alice").await?;
    /// let error = store.drop_queue("mail").await.expect_err("it has a key");
    /// assert_eq!(error.counts().map(|counts| counts.ready), Some(1));
    ///
    /// assert_eq!(store.force_drop_queue("mail").await?.ready, 1);
    /// let error = queue.add("bob").await.expect_err("there is no such queue any more");
    /// assert!(error.is_dropped());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn drop_queue(&self, name: &str) -> Result<(), DropError> {
        self.dropped(name, false).await.map(drop)
    }

    /// Drops a queue with all its keys, in whatever state they are, and returns how many there were.
    ///
    /// Runs in flight go on until their processes find that the leases are lost, at their next renewal. The
    /// completion of such a run changes nothing, and fails with
    /// [`FinishError::Dropped`](crate::FinishError::Dropped).
    ///
    /// Otherwise as [`drop_queue`](Self::drop_queue).
    ///
    /// # Errors
    ///
    /// As of [`drop_queue`](Self::drop_queue), but not because of keys.
    pub async fn force_drop_queue(&self, name: &str) -> Result<Counts, DropError> {
        self.dropped(name, true).await
    }

    async fn dropped(&self, name: &str, keys_too: bool) -> Result<Counts, DropError> {
        match self.engine.drop_queue(name, keys_too).await {
            Ok(Dropped::Yes(counts)) => Ok(counts),
            Ok(Dropped::HasKeys(counts)) => Err(DropError::has_keys(name, counts)),
            Ok(Dropped::Missing) => Err(DropError::missing(name, self.similar(name).await)),
            Err(fault) => Err(DropError::of(format!("queue {name:?} was not dropped"), fault)),
        }
    }

    /// The names of queues that are nearly the same.
    async fn similar(&self, name: &str) -> Vec<String> {
        // Without names the error is as true, and says less.
        let queues = self.engine.queues().await.unwrap_or_default();
        similar(name, queues.into_iter().map(|queue| queue.name).collect())
    }

    /// Closes the store, for all handles of it and of its queues. Call it before the process exits.
    ///
    /// With a file, this completes what was asked for before, and closes the file. If no other process
    /// has it open, `FILE` alone then holds all queues, and can be copied. If a process exits without
    /// this, or others have the file open, `FILE-wal` holds the last changes: it belongs to the file.
    /// The connections to servers need no closing, and stay open.
    ///
    /// Whatever is called on a queue of a file afterwards fails, and keys that are held by this
    /// process are lost when their leases end. So [shut down](Queue::shut_down) the queues first, and
    /// wait until they are [settled](Queue::settled).
    ///
    /// Cancel safe, but then `FILE-wal` may stay.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let (file, copy) = (dir.path().join("queues.db"), dir.path().join("copy.db"));
    /// # let url = format!("sqlite:{}", file.display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let store = Store::connect(&url).await?;
    /// store.migrate().await?;
    /// store.queue("mail").open().await?.add("alice").await?;
    ///
    /// store.close().await;
    /// std::fs::copy(&file, &copy)?;
    /// # let store = Store::connect(&format!("sqlite:{}", copy.display())).await?;
    /// # assert_eq!(store.queue("mail").open().await?.counts().await?.ready, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn close(&self) {
        self.engine.close().await;
    }

    /// The queue with this name, to be [opened](OpenOptions::open).
    pub fn queue(&self, name: impl Into<String>) -> OpenOptions {
        OpenOptions { store: self.clone(), name: name.into(), options: Options::default() }
    }
}

/// How a queue is opened. What is said here is this process's alone, but for
/// [`re_add`](Self::re_add) and [`parked_add`](Self::parked_add): give all workers of a queue the same
/// [`max_failures`](Self::max_failures) and [`backoff`](Self::backoff).
#[must_use = "a queue is opened by `open`"]
pub struct OpenOptions {
    store: Store,
    name: String,
    options: Options,
}

impl OpenOptions {
    /// Sets the re-add policy: the effect of an add on a key that waits or backs off. The default is
    /// [`ReAdd::Hold`]. It is a setting of the queue, the same for all processes: its first opener chooses
    /// it permanently.
    ///
    /// [`ReAdd::Replace`] is the other choice. [`open`](Self::open) refuses [`ReAdd::KeepBoth`]: a key in a
    /// store has at most one pending run.
    pub fn re_add(mut self, re_add: ReAdd) -> Self {
        self.options.re_add = Some(re_add);
        self
    }

    /// The effect of an add on a parked key; by default [`ParkedAdd::Revive`]. It is the queue's, for all
    /// processes: its first opener chooses it, for as long as the queue exists.
    pub fn parked_add(mut self, parked_add: ParkedAdd) -> Self {
        self.options.parked_add = Some(parked_add);
        self
    }

    /// Opens the queue only if it exists, and creates none. The error names queues whose names differ
    /// by a typing error.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// store.queue("mail").open().await?;
    /// let error = store.queue("mial").existing().open().await.expect_err("it is called mail");
    /// assert!(error.is_missing());
    /// assert_eq!(error.to_string(), "no such queue: \"mial\" (did you mean \"mail\"?)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn existing(mut self) -> Self {
        self.options.existing = true;
        self
    }

    /// For how long a key is its holder's unless renewed, which happens by itself as long as the
    /// process lives and reaches the store; 30 s unless said, at least 1 ms and at
    /// most a year.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// How long the first failure of a key waits at most, and any: 5 ms to 5 min unless said. Each
    /// doubles the wait, of which at least a half is kept and the rest is drawn.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.options.backoff = (base, cap);
        self
    }

    /// After so many failures in a row a key is parked, by the process that ends the last of these
    /// runs, or finds its lease over; at least 1, and without this never.
    ///
    /// [`Context::is_last_attempt`](requeue::workers::Context::is_last_attempt) knows nothing of it,
    /// but of [`Workers::max_retries`](requeue::workers::Workers::max_retries), which parks as well.
    pub fn max_failures(mut self, most: u32) -> Self {
        self.options.max_failures = Some(most.max(1));
        self
    }

    /// Of how many keys this process takes at least one is the key that has been ready longest,
    /// whatever its priority; 10 unless said, at least 1, which is first in first out.
    pub fn oldest_every(mut self, hand_outs: u32) -> Self {
        self.options.oldest_every = hand_outs.max(1);
        self
    }

    /// How often a queue that seems empty is looked at, since a message that a key is there may be
    /// lost; 1 s unless said, an hour at most, and a little less or more each time. Once in a
    /// [lease](Self::lease) it is at any rate: nobody says that a worker has died.
    pub fn poll(mut self, every: Duration) -> Self {
        self.options.poll = every.clamp(Duration::from_millis(1), Duration::from_secs(3600));
        self
    }

    /// How many keys this process claims at most before its workers ask for them, so that a run need
    /// not wait until the claim of its key is committed; 256 by default, and 0 switches it off.
    ///
    /// So many are claimed only where runs are short: as many as workers, by how quickly they took
    /// keys just before, take within 10 ms, or within two claims' time where that is longer, up to
    /// 100 ms. Only [`Queue::get`] takes such keys, also for
    /// [`Workers`](requeue::workers::Workers), and not [`Queue::get_many`] of several. A key that
    /// nobody takes within ten times as long goes back to its place in the order, and so do all at
    /// the end: that is no failure. Until then other processes do not get it, and a key of a higher
    /// priority that is added meanwhile starts after it. If the process is killed, a key that was
    /// claimed ahead comes back when its lease is over, with one failure more, as one whose run has
    /// begun.
    pub fn claim_ahead(mut self, most: usize) -> Self {
        self.options.claim_ahead = most;
        self
    }

    /// How long an add waits for a store that can't be reached, or a key that others have locked; 30 s
    /// unless said.
    pub fn add_timeout(mut self, timeout: Duration) -> Self {
        self.options.add_timeout = timeout.min(LONGEST);
        self
    }

    /// The name of this worker, which is stored with each key that this process has in flight and shown to
    /// whoever [looks](crate::Entry::worker): 1 to 100 bytes without control characters. By default it is the
    /// name of the machine and the number of the process, `web-1:4242`.
    ///
    /// It decides nothing: two processes may have the same name.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").worker("eu-west/7").open().await?;
    /// queue.add("alice").await?;
    /// let item = queue.get().await.expect("the queue is open");
    /// let entry = queue.look_up("alice").await?.expect("it is in flight");
    /// assert_eq!(entry.worker.as_deref(), Some("eu-west/7"));
    /// item.succeed().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.options.worker = Some(name.into());
        self
    }

    /// Calls `report` for each key that this process parks.
    ///
    /// There are two cases. A run of this process was the last failure of its key. Or a claim of this
    /// process finds that the lease of a key has expired, because its worker died, and that was the last
    /// failure; then [`ParkedKey::lease_expired`] is true. The same keys are events of [`tracing`] with the
    /// target `requeue_store::parked`. If the answer to a claim is lost, so are its reports.
    ///
    /// `report` is called on a task of the runtime and must not block. A panic of it is caught and logged.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let report = |parked: &requeue_store::ParkedKey| eprintln!("{}: {}", parked.key, parked.error);
    /// let queue = store.queue("mail").max_failures(5).on_parked(report).open().await?;
    /// # drop(queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`ParkedKey::lease_expired`]: crate::ParkedKey::lease_expired
    pub fn on_parked(mut self, report: impl Fn(&ParkedKey) + Send + Sync + 'static) -> Self {
        self.options.on_parked = OnParked::new(report);
        self
    }

    /// Shows the queue under its name: how many keys it has, by all processes, counted every ten
    /// seconds, or less often where that takes long; and what this process does, from now on. While the
    /// store can't be reached, the numbers of keys stay as they were.
    ///
    /// Each process that asks for it shows the same keys: of `workqueue_depth` and the like dashboards
    /// want the greatest, and the sum of the rest.
    ///
    /// ```
    /// use prometheus_client::encoding::text;
    /// use prometheus_client::registry::Registry;
    /// use requeue::metrics::Metrics;
    /// # use requeue_store::Store;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let mut registry = Registry::default();
    /// let metrics = Metrics::register(&mut registry);
    /// let queue = store.queue("mail").metrics(&metrics).open().await?;
    /// queue.add("alice").await?;
    ///
    /// // Who can't wait for the next count:
    /// queue.recent_counts().await?;
    /// let mut body = String::new();
    /// text::encode(&mut body, &registry)?;
    /// assert!(body.contains("\nworkqueue_adds_total{name=\"mail\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "prometheus")]
    pub fn metrics(mut self, metrics: &requeue::metrics::Metrics) -> Self {
        self.options.metrics = Some(metrics.clone());
        self
    }

    /// Opens the queue, and makes it if there is none, unless it is to be an
    /// [existing](Self::existing) one.
    ///
    /// # Errors
    ///
    /// If there is no such queue and none is to be made, which is [told apart](OpenError::is_missing);
    /// if there is no schema of this version, the name is empty, longer than 200 bytes or has a NUL
    /// in it, the [`worker`](Self::worker)'s name is not valid, no store has the [`re_add`](Self::re_add) policy, the
    /// queue has another [`re_add`](Self::re_add) or [`parked_add`](Self::parked_add)
    /// than was asked for, its name is shown by the metrics
    /// already, or the store can't be reached.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn open(self) -> Result<Queue, OpenError> {
        let Self { store, name, options } = self;
        let bad = |why: &str| OpenError::invalid(format!("the queue {name:?}: {why}"));
        if name.is_empty() || name.len() > 200 || name.contains('\0') {
            return Err(bad("a name has 1 to 200 bytes, and no NUL"));
        }
        if let Some(re_add) = options.re_add.filter(|re_add| !is_supported(*re_add)) {
            let why = format!("a store has the re-add policies Hold and Replace, not {re_add:?}");
            return Err(bad(&why));
        }
        if let Some(why) = options.worker.as_deref().and_then(invalid_worker) {
            return Err(bad(&why));
        }
        let opened = match options.existing {
            true => store.engine.find(&name).await,
            false => {
                let re_add = options.re_add.unwrap_or_default();
                let parked_add = options.parked_add.unwrap_or_default();
                store.engine.open(&name, Settings { re_add, parked_add }).await.map(Some)
            }
        };
        let opened = opened.map_err(|fault| {
            let retry = if fault.kind.is_final() { "" } else { ", for now" };
            OpenError::of(format!("the queue {name:?} can't be opened{retry}"), fault)
        })?;
        let Some(mut place) = opened else {
            return Err(OpenError::missing(&name, store.similar(&name).await));
        };
        if let Some(wanted) = options.re_add.filter(|&wanted| wanted != place.re_add) {
            let why = format!("its re-add policy is {:?}, not {wanted:?}", place.re_add);
            return Err(bad(&why));
        }
        if let Some(wanted) = options.parked_add.filter(|&wanted| wanted != place.parked_add) {
            let why = format!("its parked adds are {:?}, not {wanted:?}", place.parked_add);
            return Err(bad(&why));
        }
        place.worker = options.worker.clone().unwrap_or_else(this_process).into();
        place.on_parked = options.on_parked.clone();
        #[cfg(feature = "prometheus")]
        let metrics = options.metrics.clone();
        let queue = Queue::new(store.engine, place, options);
        #[cfg(feature = "prometheus")]
        if let Some(metrics) = metrics {
            metrics.add(&name, &queue.shared).map_err(|error| bad(&error.to_string()))?;
            tokio::spawn(crate::api::cache::keep_counting(Arc::downgrade(&queue.shared)));
        }
        Ok(queue)
    }
}

/// Whether a queue in a store can have this re-add policy.
const fn is_supported(re_add: ReAdd) -> bool {
    matches!(re_add, ReAdd::Hold | ReAdd::Replace)
}

/// Of these names up to three that somebody may have meant who typed this one.
fn similar(typed: &str, names: Vec<String>) -> Vec<String> {
    // Of a name of one or two letters each other one is as near.
    let most = typed.chars().count() / 3;
    let differences = |name: String| (strsim::osa_distance(typed, &name), name);
    let mut near: Vec<_> =
        names.into_iter().map(differences).filter(|(many, _)| *many <= most).collect();
    near.sort();
    near.into_iter().map(|(_, name)| name).take(3).collect()
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions").field("name", &self.name).finish_non_exhaustive()
    }
}
