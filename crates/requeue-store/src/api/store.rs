//! A store, and the options with which its queues are opened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::queue::Queue;
use crate::client::options::{Opening, Options};
use crate::engine::address::Address;
use crate::engine::parked::OnParked;
#[cfg(all(feature = "sqlite", any(test, feature = "test-util")))]
use crate::engine::sqlite::simulated::{Database, Link};
use crate::engine::{Dropped, Engine, Settings};
use crate::types::add::{ParkedAdd, ReaddPolicy};
use crate::types::error::{
    ConnectError, EngineError, Failed, MigrateError, OpenError, ReadError, UpdateError,
};
use crate::types::group::GroupBy;
use crate::types::inspect::{ParkedKey, QueueInfo, StateCounts};
use crate::types::rate::Rate;
use crate::types::worker::this_process;

/// The maximum duration of an option: one year. The sum of this duration and a time of any clock does not overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A store of queues: a SQLite file, a PostgreSQL database, or one or more Redis servers.
///
/// Clones share their connections.
///
/// # Examples
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
    /// Connects to the store at `url`.
    ///
    /// - `sqlite:FILE`: a file, which is created if it does not exist. The path is not expanded. With
    ///   `?synchronous=full`, acknowledged changes also survive a power failure.
    /// - `sqlite::memory:`, for tests: the store disappears with its last handle.
    /// - `postgres://USER@HOST/DATABASE`, with the feature `postgres`: a PostgreSQL database.
    /// - `redis://HOST` or `rediss://HOST`, with the feature `redis`: a Redis node, or any node of a cluster. With
    ///   `?wait=N`, the engine acknowledges an add only if N replicas have it. `shards=N` is the number of shards of
    ///   new queues. `eviction=accept` allows a server that may evict keys when its memory is full.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid, or no connection can be made. The [kind](ConnectError::kind) of the
    /// error names the cause. The message contains no password.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connections that the call has opened are closed.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let engine: Arc<dyn Engine> = match Address::parse(url)? {
            #[cfg(feature = "sqlite")]
            Address::Sqlite(path, synchronous) => {
                let opened = tokio::task::spawn_blocking(move || {
                    crate::engine::sqlite::Sqlite::open(&path, synchronous)
                });
                let opened = opened.await.unwrap_or_else(|error| Err(EngineError::absent(error)));
                Arc::new(opened.map_err(|fault| {
                    ConnectError::from_engine("the store cannot be opened", fault)
                })?)
            }
            #[cfg(feature = "postgres")]
            Address::Postgres(address) => {
                Arc::new(crate::engine::postgres::Postgres::connect(*address).await?)
            }
            #[cfg(feature = "redis")]
            Address::Redis(options) => {
                let said = options.without_secrets();
                let connected = crate::engine::redis::Redis::connect(options).await;
                Arc::new(connected.map_err(|fault| ConnectError::from_engine(said, fault))?)
            }
        };
        Ok(Self { engine })
    }

    /// Returns the store of a simulated process. Other processes learn of its adds when they poll, as with a SQLite
    /// file.
    #[cfg(all(feature = "sqlite", any(test, feature = "test-util")))]
    #[doc(hidden)]
    #[must_use]
    pub fn simulated(database: &Database, link: Arc<dyn Link>) -> Self {
        Self { engine: Arc::new(database.engine(link)) }
    }

    /// Checks an address and its options, without connecting to the store.
    ///
    /// If the address names a file with certificates, the call reads this file.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid, or the cargo feature that it needs is not enabled. The message
    /// contains no password.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_store::Store;
    ///
    /// assert!(Store::check("sqlite:jobs.db?synchronous=full").is_ok());
    /// let error = Store::check("sqlite:jobs.db?sync=full").expect_err("a typing error");
    /// assert_eq!(error.to_string(), "sqlite: unknown option \"sync\"; the options are synchronous");
    /// ```
    #[doc(hidden)] // Only `requeue-cli` checks an address before it looks for the file.
    pub fn check(url: &str) -> Result<(), ConnectError> {
        Address::parse(url).map(drop)
    }

    /// Creates the schema, or upgrades it to this version. Repeating the call is harmless.
    ///
    /// A migration needs more privileges than the operations on queues need. If the client has these privileges,
    /// [opening](OpenOptions::open) a queue also upgrades the schema. A failed upgrade leaves the store unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if the schema has a later version or belongs to another program, or the store cannot be
    /// reached.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may have been created or upgraded. Repeating the call is harmless.
    pub async fn migrate(&self) -> Result<(), MigrateError> {
        let migrated = self.engine.migrate_schema().await;
        migrated.map_err(|fault| {
            MigrateError::from_engine("the schema was not created or updated", fault)
        })
    }

    /// Returns all queues of the store, sorted by name, with their settings. The result also states whether a queue has
    /// keys.
    ///
    /// The duration of the call does not depend on the number of keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or has no schema of this version.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
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
        let queues = self.engine.list_queues().await;
        let mut queues =
            queues.map_err(|fault| ReadError::from_engine("the queues cannot be listed", fault))?;
        queues.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(queues)
    }

    /// Drops a queue that has neither keys nor schedules. The queue and its settings are removed for all processes.
    ///
    /// Processes that still have the queue open receive errors. Their adds fail with
    /// [`ErrorKind::Dropped`](crate::ErrorKind::Dropped), and their getters return `None`: see [`Queue::is_dropped`].
    ///
    /// No acknowledged add is lost. If an add and a drop happen at the same time, either the add fails, or the drop
    /// fails because the queue has a key. A queue that is created again with this name is another queue, and its
    /// [fencing tokens](crate::Item::fencing_token) are greater.
    ///
    /// # Errors
    ///
    /// - If the queue [has keys](crate::ErrorKind::HasKeys) in any state, or schedules, it is unchanged. The message
    ///   contains the numbers of keys and schedules.
    /// - If there is [no such queue](crate::ErrorKind::Missing), the message names similar queues.
    /// - If the store cannot be reached, the queue may or may not have been dropped. Repeating the call is harmless.
    /// - In PostgreSQL, the drop fails if a transaction that has added keys to the queue stays open for 5 s.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the queue may or may not have been dropped. Repeating the call also drops a queue of
    /// this name that was created after the first call.
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
    /// queue.add("alice").await?;
    /// use requeue_store::ErrorKind;
    ///
    /// let error = store.drop_queue("mail").await.expect_err("it has a key");
    /// assert_eq!(error.kind(), ErrorKind::HasKeys);
    ///
    /// assert_eq!(store.force_drop_queue("mail").await?.ready, 1);
    /// let error = queue.add("bob").await.expect_err("the queue was dropped");
    /// assert_eq!(error.kind(), ErrorKind::Dropped);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn drop_queue(&self, name: &str) -> Result<(), UpdateError> {
        self.drop_checked(name, false).await.map(drop)
    }

    /// Drops a queue with its schedules and all its keys, in any state, and returns the numbers of keys.
    ///
    /// Runs in flight continue until their processes detect the loss of their leases at the next renewal. The
    /// completion of such a run changes nothing, and fails with
    /// [`CompleteError::Dropped`](crate::CompleteError::Dropped).
    ///
    /// Otherwise, the call behaves as [`drop_queue`](Self::drop_queue).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`drop_queue`](Self::drop_queue), but no error if the queue has keys or schedules.
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`drop_queue`](Self::drop_queue).
    pub async fn force_drop_queue(&self, name: &str) -> Result<StateCounts, UpdateError> {
        self.drop_checked(name, true).await
    }

    async fn drop_checked(&self, name: &str, keys_too: bool) -> Result<StateCounts, UpdateError> {
        let dropped = self.engine.drop_queue(name, keys_too).await.map_err(|fault| {
            UpdateError::from_engine(format!("queue {name:?} was not dropped"), fault)
        })?;
        Err(UpdateError(match dropped {
            Dropped::Yes(counts) => return Ok(counts),
            Dropped::Kept(counts, schedules) => Failed::has_keys(name, counts, schedules),
            Dropped::Missing => Failed::missing(name, &self.similar_queues(name).await),
        }))
    }

    /// Returns the names of queues that are similar to `name`.
    async fn similar_queues(&self, name: &str) -> Vec<String> {
        // The error is also correct without the names of similar queues.
        let queues = self.engine.list_queues().await.unwrap_or_default();
        similar_names(name, queues.into_iter().map(|queue| queue.name).collect())
    }

    /// Closes the store for all its handles, and for the handles of its queues. Call this method before the process
    /// exits.
    ///
    /// If the store is a file, the method completes earlier requests and closes the file. If no other process has the
    /// file open, `FILE` alone then contains all queues, and can be copied. If a process exits without this call, or
    /// other processes have the file open, the last changes are in `FILE-wal`. In this case, `FILE-wal` is a part of
    /// the store. Connections to servers stay open, because they need not be closed.
    ///
    /// After this call, all calls on a queue of a file fail, and this process loses its keys when their leases expire.
    /// Before this call, [shut down](Queue::shut_down) the queues, and wait until they are [settled](Queue::settled).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `FILE-wal` may remain.
    ///
    /// # Examples
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
        self.engine.close_files().await;
    }

    /// Returns the options for [opening](OpenOptions::open) the queue with this name. The name has 1 to 200 bytes, and
    /// contains no NUL.
    pub fn queue(&self, name: impl Into<String>) -> OpenOptions {
        let (opening, options) = (Opening::default(), Options::default());
        OpenOptions { store: self.clone(), name: name.into(), opening, options }
    }
}

/// The options of a queue. [`open`](Self::open) opens the queue with them.
///
/// [`readd_policy`](Self::readd_policy), [`parked_add`](Self::parked_add), [`group_by`](Self::group_by),
/// [`group_limit`](Self::group_limit) and [`rate`](Self::rate) are settings of the queue. The other options apply to
/// this process only: give all workers of a queue the same [`max_failures`](Self::max_failures) and
/// [`backoff`](Self::backoff).
#[must_use = "a queue is opened by `open`"]
pub struct OpenOptions {
    store: Store,
    name: String,
    opening: Opening,
    options: Options,
}

impl OpenOptions {
    /// Sets the re-add policy: the effect of an add on a key that waits or backs off. The default is
    /// [`ReaddPolicy::Hold`].
    ///
    /// This option is a setting of the queue for all processes. The first process that opens the queue chooses it
    /// permanently. The alternative is [`ReaddPolicy::Replace`]. [`open`](Self::open) refuses
    /// [`ReaddPolicy::KeepBoth`], because a key in a store has at most one pending run.
    pub fn readd_policy(mut self, readd_policy: ReaddPolicy) -> Self {
        self.opening.readd_policy = Some(readd_policy);
        self
    }

    /// Sets the effect of an add on a parked key. The default is [`ParkedAdd::Revive`].
    ///
    /// This option is a setting of the queue for all processes. The first process that opens the queue chooses it
    /// permanently.
    pub fn parked_add(mut self, parked_add: ParkedAdd) -> Self {
        self.opening.parked_add = Some(parked_add);
        self
    }

    /// Assigns each key to a group. The groups take turns, and can have [limits](Self::group_limit). Without this
    /// option, a new queue has no groups.
    ///
    /// Within a priority, the groups that have ready keys take turns in the claims of each process. The
    /// [weight](crate::GroupHandle::set_weight) of a group is the number of its keys that are delivered in one turn.
    /// [`Queue::group`] returns the operations on one group.
    ///
    /// This option is a setting of the queue for all processes. The first process that opens the queue chooses it
    /// permanently. [`open`](Self::open) refuses another setting, and a pattern that is empty or not a regular
    /// expression.
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
    /// // The group of a key is the part before the first slash. At most two keys of a group are in flight.
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.add_all(["acme/1", "acme/2", "acme/3", "zeta/1"]).await?;
    /// let items = queue.get_many(10).await;
    /// let keys: Vec<_> = items.iter().map(|item| item.to_string()).collect();
    /// assert_eq!(keys, ["acme/1", "zeta/1", "acme/2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group_by(mut self, by: impl Into<GroupBy>) -> Self {
        self.opening.group_by = Some(by.into());
        self
    }

    /// Sets how many keys of each group can be in flight at the same time, over all processes. The option applies only
    /// if [`open`](Self::open) creates the queue. By default, there is no limit. For a new queue, the option requires
    /// [`group_by`](Self::group_by).
    ///
    /// The store keeps the limit. If the queue exists and has another limit, [`open`](Self::open) fails.
    /// [`Queue::set_group_limit`] changes the limit, and [`GroupHandle::set_limit`] sets a separate limit for a group.
    /// If your limits change, use these methods and omit the option.
    ///
    /// [`GroupHandle::set_limit`]: crate::GroupHandle::set_limit
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
    /// let open = |limit| store.queue("orders").group_by("^[^/]*").group_limit(limit).open();
    /// let queue = open(2).await?;
    /// let error = open(3).await.expect_err("the stored limit is another one");
    /// assert!(error.to_string().contains("the limit of its groups is 2, not 3"), "{error}");
    ///
    /// queue.set_group_limit(Some(3)).await?;
    /// open(3).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn group_limit(mut self, limit: u32) -> Self {
        self.opening.group_limit = Some(limit);
        self
    }

    /// Sets the rate at which all processes together can start runs of the queue's keys, if the queue has no rate yet.
    /// By default, there is no rate.
    ///
    /// The first process that opens the queue with a rate chooses it, and the store keeps the rate. If a later process
    /// asks for another rate, [`open`](Self::open) fails. The same rule applies if two processes open the queue at the
    /// same time. A process without this option uses the stored rate. [`Queue::set_rate`] changes or removes the rate.
    /// After a removal, the next process with this option sets the rate again.
    /// [`GroupHandle::set_rate`](crate::GroupHandle::set_rate) sets a further rate for a group.
    ///
    /// [`Rate`] defines the guarantee. While the queue has a rate, no process [claims ahead](Self::claim_ahead).
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
    /// use std::time::Duration;
    ///
    /// use requeue_store::Rate;
    ///
    /// let rate = Rate::new(100, Duration::from_secs(3600)).burst(2);
    /// let queue = store.queue("mail").rate(rate).open().await?;
    /// queue.add_all(["alice", "bob", "carol"]).await?;
    /// assert_eq!(queue.get_many(10).await.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.opening.rate = Some(rate);
        self
    }

    /// Makes [`open`](Self::open) fail if the queue does not exist. By default, `open` creates the queue.
    ///
    /// The error names up to three queues with similar names.
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
    /// store.queue("mail").open().await?;
    /// let error = store.queue("mial").must_exist().open().await.expect_err("it is called mail");
    /// assert_eq!(error.kind(), requeue_store::ErrorKind::Missing);
    /// assert_eq!(error.to_string(), "no such queue: \"mial\" (did you mean \"mail\"?)");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn must_exist(mut self) -> Self {
        self.opening.must_exist = true;
        self
    }

    /// Sets the duration of leases, from 1 ms to one year. The default is 30 s.
    ///
    /// A key belongs to its worker until the lease expires. A process that runs and can reach the store renews a lease
    /// when a third of its duration has passed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(Duration::from_millis(1), MAX_DURATION);
        self
    }

    /// Sets the maximum backoff after a key's first failure, `base`, and the maximum backoff after any failure, `cap`.
    /// The defaults are 1 s and 5 min.
    ///
    /// Each consecutive failure doubles the backoff, up to `cap`. The second half of a backoff is random: a backoff of
    /// 8 s lasts between 4 s and 8 s. If a key runs and fails before its backoff has passed, the backoff is not
    /// doubled. If a key has not failed for twice `cap` after its backoff, the next backoff begins at `base` again.
    pub fn backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.options.backoff = (base, cap);
        self
    }

    /// Sets the number of consecutive failures after which a key is parked, at least 1. By default, failures alone
    /// never park a key.
    ///
    /// If processes have different limits, one process decides: the process that completes the last failed run, or that
    /// finds the lease of that run expired.
    ///
    /// [`Context::is_last_attempt`](requeue::workers::Context::is_last_attempt) ignores this limit. That method
    /// respects [`Workers::max_retries`](requeue::workers::Workers::max_retries), which also parks keys.
    pub fn max_failures(mut self, most: u32) -> Self {
        self.options.max_failures = Some(most.max(1));
        self
    }

    /// Limits how often keys with a high priority can overtake other keys. Among each `deliveries` consecutive keys
    /// that the process claims, at least one is the key that has been ready longest, regardless of its priority.
    ///
    /// The default is 10. The minimum is 1: keys are then delivered first in, first out.
    pub fn oldest_every(mut self, deliveries: u32) -> Self {
        self.options.oldest_every = deliveries.max(1);
        self
    }

    /// Sets the interval at which an idle process polls the queue, from 1 ms to 1 h. The default is 1 s.
    ///
    /// A process polls because a notification of a ready key may be lost. Each interval is up to 10 % shorter or
    /// longer. The process polls at least once in the duration of a [lease](Self::lease), because nothing notifies it
    /// of the death of another worker.
    pub fn poll(mut self, every: Duration) -> Self {
        self.options.poll = every.clamp(Duration::from_millis(1), Duration::from_secs(3600));
        self
    }

    /// Sets the maximum number of keys that this process claims before its workers ask for them. A run then does not
    /// wait for the commit of its claim. The default is 256. With 0, the process does not claim ahead.
    ///
    /// The process claims ahead as many keys as its workers would take within 10 ms at their recent rate. If two claims
    /// take longer than 10 ms, the period is the duration of two claims. The period is at most 100 ms, and at most a
    /// thirtieth of the lease. If runs are long, workers take less than one key in the period, and no key is claimed
    /// ahead. The rate includes only keys that [`Queue::get`] and [`Workers`](requeue::workers::Workers) take. A call
    /// of [`Queue::get_many`] for several keys is not included.
    ///
    /// If no worker takes a key within ten times that period, the key returns to its place in the order, and no failure
    /// is counted. A shutdown returns all keys that were claimed ahead. Until the key returns, other processes do not
    /// receive it. A key with a higher priority that is added during this time starts later than the key claimed ahead.
    ///
    /// If the process is killed, keys that it had claimed ahead become ready again when their leases expire. The store
    /// counts one failure for each of them, as for keys whose runs had begun.
    pub fn claim_ahead(mut self, most: usize) -> Self {
        self.options.claim_ahead = most;
        self
    }

    /// Sets the timeout of an add: the maximum time for which it waits, because the store cannot be reached or a
    /// transaction has locked the key. The default is 30 s, and the maximum is one year.
    pub fn add_timeout(mut self, timeout: Duration) -> Self {
        self.options.add_timeout = timeout.min(MAX_DURATION);
        self
    }

    /// Sets the name of this worker: 1 to 100 bytes without control characters. The default is the name of the machine
    /// and the id of the process: `web-1:4242`.
    ///
    /// While a key of this process is in flight, the store keeps the name with the key, and
    /// [`Entry::worker`](crate::Entry::worker) returns it. The name has no other effect, so two processes may have the
    /// same name.
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
        self.opening.worker = Some(name.into());
        self
    }

    /// Sets the function `report`, which is called for each key that this process parks.
    ///
    /// There are two cases:
    ///
    /// - A run of this process fails for the last time.
    /// - A claim of this process finds an expired lease, and this expiry is the last failure of the key. The worker
    ///   that held the lease may be in another process, and has probably died. [`ParkedKey::lease_expired`] is true.
    ///
    /// Each report is also a [`tracing`] event with the target `requeue_store::parked`. If the store's answer to a
    /// claim is lost, the reports of this claim are also lost.
    ///
    /// `report` is called on a task of the runtime and must not block. A panic in `report` is caught and logged.
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
    /// let report = |parked: &requeue_store::ParkedKey| eprintln!("{}: {}", parked.key, parked.error);
    /// let queue = store.queue("mail").max_failures(10).on_parked(report).open().await?;
    /// # drop(queue);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`ParkedKey::lease_expired`]: crate::ParkedKey::lease_expired
    pub fn on_parked(mut self, report: impl Fn(&ParkedKey) + Send + Sync + 'static) -> Self {
        self.opening.on_parked = OnParked::new(report);
        self
    }

    /// Prevents this process from adding completed runs to the [past](crate::Entry::past_runs) of keys. By default, the
    /// store keeps the last runs of a key that fails or is added again, in at most 64 bytes of the key's row. For a key
    /// whose first run succeeds, the store keeps nothing.
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
    /// let queue = store.queue("mail").without_past().open().await?;
    /// queue.add("alice").await?;
    /// queue.get().await.expect("the queue is open").retry("no such host").await?;
    /// let entry = queue.look_up("alice").await?.expect("the key waits");
    /// assert!(entry.past_runs.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_past(mut self) -> Self {
        self.opening.drops_past = true;
        self
    }

    /// Makes this process create spans of OpenTelemetry for the waits and runs of keys: see [`requeue::trace`].
    ///
    /// An add of this process carries the current trace context to the worker, which may be on another machine. The
    /// store keeps the contexts with the key until a run succeeds. By default, the process creates no spans, and adds
    /// carry no context.
    #[cfg(feature = "opentelemetry")]
    pub fn traces(mut self) -> Self {
        self.options.traces = true;
        self
    }

    /// Registers the queue with `metrics` under its name. The metrics show the numbers of keys over all processes. They
    /// also show the activity of this process, beginning with this call.
    ///
    /// The engine counts the keys every 10 s, or less often if a count takes long. While the store cannot be reached,
    /// the numbers of keys do not change.
    ///
    /// All processes show the same numbers of keys. To combine all processes in a dashboard, use the maximum of
    /// `workqueue_depth` and of the other numbers of keys, and the sum of the other metrics.
    ///
    /// # Examples
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
    /// # queue.recent_counts().await?;
    /// let mut body = String::new();
    /// text::encode(&mut body, &registry)?;
    /// assert!(body.contains("\nworkqueue_adds_total{name=\"mail\"} 1\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "prometheus")]
    pub fn metrics(mut self, metrics: &requeue::metrics::Metrics) -> Self {
        self.opening.metrics = Some(metrics.clone());
        self
    }

    /// Opens the queue. If the queue does not exist, the call creates it, unless [`must_exist`](Self::must_exist) is
    /// set.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Missing`]: there is no such queue, and [`must_exist`](Self::must_exist) is set.
    /// - [`ErrorKind::Invalid`]:
    ///   - The name of the queue is empty, longer than 200 bytes, or contains a NUL. A new queue also cannot have the
    ///     name `.` or `..`, which no URL of a page can contain.
    ///   - The name of the [`worker`](Self::worker) is invalid.
    ///   - Stores do not support the [`readd_policy`](Self::readd_policy).
    ///   - The queue has another [`readd_policy`](Self::readd_policy), [`parked_add`](Self::parked_add),
    ///     [`group_by`](Self::group_by), [`group_limit`](Self::group_limit) or [`rate`](Self::rate) setting.
    ///   - The pattern of [`group_by`](Self::group_by) is invalid.
    ///   - The [`group_limit`](Self::group_limit) is 0, or the queue has no groups.
    ///   - The [`rate`](Self::rate) is [invalid](Rate::new).
    ///   - The metrics already have a queue of this name.
    /// - Another kind: the store cannot be reached, or has no schema of this version.
    ///
    /// [`ErrorKind::Missing`]: crate::ErrorKind::Missing
    /// [`ErrorKind::Invalid`]: crate::ErrorKind::Invalid
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the queue may have been created. Repeating the call is harmless.
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
    /// let queue = store.queue("mail").max_failures(10).open().await?;
    /// assert_eq!(queue.name(), "mail");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn open(self) -> Result<Queue, OpenError> {
        let Self { store, name, opening, options } = self;
        let bad = |why: &str| OpenError(Failed::invalid(format!("queue {name:?}: {why}")));
        if name.is_empty() || name.len() > 200 || name.contains('\0') {
            return Err(bad("invalid name: use 1 to 200 bytes without NUL"));
        }
        let grouping = opening.check().map_err(|why| bad(&why))?;
        let is_in_no_url = [".", ".."].contains(&&*name);
        let opened = match opening.must_exist || opening.needs_groups() || is_in_no_url {
            true => store.engine.find_queue(&name).await,
            false => {
                let readd_policy = opening.readd_policy.unwrap_or_default();
                let parked_add = opening.parked_add.unwrap_or_default();
                let group_by = grouping.as_ref().map(|grouping| Arc::from(grouping.as_stored()));
                let group_limit = opening.group_limit;
                let rate = opening.rate;
                let settings = Settings { readd_policy, parked_add, group_by, group_limit, rate };
                store.engine.open_queue(&name, settings).await.map(Some)
            }
        };
        let opened = opened.map_err(|fault| {
            let retry = if fault.kind.is_final() { "" } else { " at the moment" };
            OpenError::from_engine(format!("queue {name:?} cannot be opened{retry}"), fault)
        })?;
        let Some(mut place) = opened else {
            if !opening.must_exist && is_in_no_url {
                return Err(bad("invalid name: no URL can contain it; use another name"));
            }
            if !opening.must_exist {
                return Err(bad(
                    "it does not exist, and a limit of its groups needs `group_by` or `--group-by`",
                ));
            }
            return Err(OpenError(Failed::missing(&name, &store.similar_queues(&name).await)));
        };
        let grouping = opening.check_stored(&place, grouping.as_ref()).map_err(|why| bad(&why))?;
        if let Some(rate) = opening.rate.filter(|_| place.rate.is_none()) {
            // The queue may exist without a rate, for example if a producer that does not know the rate created it.
            let set = store.engine.set_first_rate(&place, rate).await;
            let said = || format!("queue {name:?}: its rate was not set");
            let first = set.map_err(|fault| OpenError::from_engine(said(), fault))?;
            // Another process may have set a different rate since the queue was read.
            opening.check_rate(Some(first)).map_err(|why| bad(&why))?;
        }
        place.worker = opening.worker.unwrap_or_else(this_process).into();
        place.on_parked = opening.on_parked;
        place.keeps_past = !opening.drops_past;
        let queue = Queue::new(store.engine, place, options, grouping);
        #[cfg(feature = "prometheus")]
        if let Some(metrics) = opening.metrics {
            // If another queue has registered this name, `queue` is dropped at the end of this function, and its tasks
            // stop.
            metrics.add(&name, &queue.shared).map_err(|error| bad(&error.to_string()))?;
            tokio::spawn(crate::client::shared::keep_counting(Arc::downgrade(&queue.shared)));
        }
        Ok(queue)
    }
}

/// Returns up to three of `names` that are similar to `typed`.
fn similar_names(typed: &str, names: Vec<String>) -> Vec<String> {
    // A name of one or two letters is equally similar to all other names.
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
