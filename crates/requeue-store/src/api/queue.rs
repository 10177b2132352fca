//! An open queue. All its handles share a task that claims keys, and a task that renews leases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use requeue::CancelledRun;
use tokio::sync::{mpsc, oneshot};

use crate::client::ahead::Unstarted;
use crate::client::claim_loop::{self, Waiter};
use crate::client::item::Item;
use crate::client::options::Options;
use crate::client::shared::{Shared, Shutdown};
use crate::engine::defaults::MAX_BATCH;
use crate::engine::{Engine, Place};
use crate::types::add::{Add, Added};
use crate::types::error::{AddError, EngineError, UpdateError};
use crate::types::group::Grouping;
use crate::types::key::Key;

/// A queue in a store. Other processes on any machine may have the same queue open.
///
/// Handles are cheap to clone. All handles of one [`open`](crate::OpenOptions::open) share two tasks: one claims keys
/// for all getters, and one renews leases.
#[derive(Clone)]
pub struct Queue {
    pub(crate) shared: Arc<Shared>,
    getters: mpsc::UnboundedSender<Waiter>,
}

impl Queue {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        place: Place,
        options: Options,
        grouping: Option<Grouping>,
    ) -> Self {
        let shared = Shared::new(engine, place, options, grouping);
        let (getters, come) = mpsc::unbounded_channel();
        // The task has a weak handle, so it stops after the last handle of the queue is dropped.
        tokio::spawn(claim_loop::serve_getters(Arc::downgrade(&shared), come));
        Self { shared, getters }
    }

    /// Returns the queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.place.name
    }

    /// Adds a key that is ready immediately. When this call returns, the add is as durable as the engine promises.
    ///
    /// Concurrent adds of one process are sent in batches.
    ///
    /// # Errors
    ///
    /// - The key is longer than 2,048 bytes.
    /// - The [pattern](crate::OpenOptions::group_by) of the queue extracts a group whose name has more than 100 bytes.
    /// - The [timeout](crate::OpenOptions::add_timeout) of the add has passed. Until then, the store could not be
    ///   reached, or other transactions of PostgreSQL kept the key locked.
    /// - The store refuses the add, or the queue was [dropped](crate::ErrorKind::Dropped).
    ///
    /// [`AddError::may_have_happened`] returns true if the key may have been added nevertheless.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the key may have been added. Adding it again is harmless.
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
    /// use requeue_store::Added;
    ///
    /// let queue = store.queue("mail").open().await?;
    /// assert_eq!(queue.add("alice").await?, Added::New);
    /// assert_eq!(queue.add("alice").await?, Added::Coalesced);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn add(&self, key: impl Into<Key>) -> Result<Added, AddError> {
        self.add_with(key, Add::now()).await
    }

    /// Adds a key that is ready after `delay`, rounded up to a microsecond.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`add`](Self::add).
    pub async fn add_after(&self, key: impl Into<Key>, delay: Duration) -> Result<Added, AddError> {
        self.add_with(key, Add::after(delay)).await
    }

    /// Adds a key with options, for example a delay, a merge rule, a priority or flags.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`add`](Self::add).
    pub async fn add_with(&self, key: impl Into<Key>, add: Add) -> Result<Added, AddError> {
        self.add_to_group(None, key.into(), add).await
    }

    /// Checks a key, and the group that its add names, as an add does. The check does not access the store.
    ///
    /// # Errors
    ///
    /// Returns the error of the add if the key or the group is invalid, or if the add must not name this group.
    #[doc(hidden)] // Only `requeue-cli` refuses single records.
    pub fn check_add(&self, key: impl Into<Key>, group: Option<&str>) -> Result<(), AddError> {
        self.shared.check_key(key.into(), group).map(drop).map_err(AddError)
    }

    pub(crate) async fn add_to_group(
        &self,
        group: Option<&str>,
        key: Key,
        add: Add,
    ) -> Result<Added, AddError> {
        let key = self.shared.check_key(key, group).map_err(AddError)?;
        let added = self.shared.add_keys(vec![key], add).await;
        let added = added.and_then(|mut added| added.pop().ok_or_else(EngineError::late));
        added.map_err(|fault| AddError::from_engine("the key was not added", fault))
    }

    /// Adds keys that are ready immediately. Returns the answers in the order of the keys. One request to the store
    /// adds up to 256 keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add). Some of the keys may have been added. Adding all of them again is
    /// harmless. If a key is too long, no key of the same request is added.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some of the keys may have been added. Adding all of them again is harmless.
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
    /// use requeue_store::Added::{Coalesced, New};
    ///
    /// queue.add("alice").await?;
    /// assert_eq!(queue.add_all(["alice", "bob", "bob"]).await?, [Coalesced, New, Coalesced]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn add_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Added>, AddError> {
        self.add_all_with(keys, Add::now()).await
    }

    /// Adds keys with the same options. Returns the answers in the order of the keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add_all`](Self::add_all).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`add_all`](Self::add_all).
    pub async fn add_all_with<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        add: Add,
    ) -> Result<Vec<Added>, AddError> {
        self.add_all_to_group(None, keys, add).await
    }

    pub(crate) async fn add_all_to_group<K: Into<Key>>(
        &self,
        group: Option<&str>,
        keys: impl IntoIterator<Item = K>,
        add: Add,
    ) -> Result<Vec<Added>, AddError> {
        let (mut keys, mut answers) = (keys.into_iter(), Vec::new());
        loop {
            let part = keys.by_ref().take(MAX_BATCH);
            let part = part.map(|key| self.shared.check_key(key.into(), group));
            let part = part.collect::<Result<Vec<_>, _>>().map_err(AddError)?;
            if part.is_empty() {
                return Ok(answers);
            }
            let added = self.shared.add_keys(part, add).await;
            answers.extend(added.map_err(|fault| {
                // The keys of earlier batches were added, so this failure concerns only a part of the keys.
                let fault = if answers.is_empty() { fault } else { fault.after_a_part() };
                AddError::from_engine("not all keys were added", fault)
            })?);
        }
    }

    /// Waits for the next ready key. Returns `None` when the queue is [shut down](Self::shut_down) in this process, or
    /// was [dropped](Self::is_dropped).
    ///
    /// If the store cannot be reached, the call waits until it can be reached again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a key that was claimed for this call becomes ready again at its place in the order. No
    /// failure is counted.
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
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!((item.as_str(), item.attempt()), (Some("alice"), 1));
    /// item.succeed().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn get(&self) -> Option<Item> {
        self.get_many(1).await.pop()
    }

    /// Waits until a key is ready, and returns up to `max` keys. Returns no keys if the queue is shut down in this
    /// process, or `max` is 0.
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`get`](Self::get).
    pub async fn get_many(&self, max: usize) -> Vec<Item> {
        // All leases may expire before the getter receives the keys. In this case, it receives no keys, and asks again.
        while max > 0 && !self.shutting_down() {
            let (reply, passed) = oneshot::channel();
            if !self.wait_for_keys(Waiter { max, holder: None, until: None, reply }) {
                break;
            }
            let items = passed.await.map(Unstarted::begin).unwrap_or_default();
            if !items.is_empty() {
                self.shared.place.meters.count_deliveries(items.iter().map(Item::queued));
                return items;
            }
        }
        Vec::new()
    }

    /// Passes a getter to the task that claims keys. Returns false if the task has stopped.
    pub(crate) fn wait_for_keys(&self, waiter: Waiter) -> bool {
        self.getters.send(waiter).is_ok()
    }

    /// Cancels the run of a key in flight, in any process. The key runs again only if it was added again.
    ///
    /// The worker learns of the cancellation within a second. If PostgreSQL cannot send notifications to the worker,
    /// the worker learns of it at the next renewal of its lease. In the worker's process, [`Item::cancelled`] becomes
    /// ready, `Workers` cancel the handler's context, and `requeue work` terminates the command. The run counts neither
    /// as a success nor as a failure. If the worker has died, the delivery ends when its lease expires.
    ///
    /// The call does not remove a pending run of the key: see [`cancel`](Self::cancel). The run of a later delivery is
    /// never cancelled. If a run completes before its worker learns of the cancellation, the store records the
    /// completion as usual.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the run may have been cancelled. Repeating the call may cancel a later run.
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
    /// use requeue_store::{CancelledRun, Completion};
    ///
    /// let queue = store.queue("builds").open().await?;
    /// queue.add("main").await?;
    /// assert_eq!(queue.cancel_running("main").await?, CancelledRun::NotInFlight);
    ///
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!(queue.cancel_running("main").await?, CancelledRun::Cancelled);
    /// item.cancelled().await;
    /// item.complete(Completion::Cancelled).await?;
    /// assert_eq!(queue.look_up("main").await?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn cancel_running(&self, key: impl Into<Key>) -> Result<CancelledRun, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let key = key.into();
        let cancelled = engine.cancel_running(place, &key).await;
        cancelled.map_err(|fault| {
            UpdateError::from_engine("the run was not cancelled", fault.of_a_key())
        })
    }

    /// Pauses the queue in the store: no process claims a key of the queue until [`resume`](Self::resume). Runs in
    /// flight, adds, delays, and the expiry of leases continue.
    ///
    /// The store keeps the pause, even if this process stops. Keys that a process claimed before the pause may still be
    /// delivered to its workers. Keys that are [claimed ahead](crate::OpenOptions::claim_ahead) return to the store at
    /// the next claim of their process, and after a second at the latest.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped. On Redis, a call that fails may have
    /// paused only some shards of the queue. Repeat the call in this case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the queue may have been paused. Repeating the call is harmless.
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
    /// queue.pause().await?;
    /// queue.add("alice").await?;
    /// assert!(queue.is_paused().await?);
    /// assert!(queue.explain("alice").await?.contains("the queue is paused"));
    ///
    /// queue.resume().await?;
    /// assert_eq!(queue.get().await.expect("the queue is open").as_str(), Some("alice"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn pause(&self) -> Result<(), UpdateError> {
        self.set_paused(true, "the queue was not paused").await
    }

    /// Ends a [pause](Self::pause). The store notifies waiting workers of the resume as quickly as of an add.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the queue may have been resumed. Repeating the call is harmless.
    pub async fn resume(&self) -> Result<(), UpdateError> {
        self.set_paused(false, "the queue was not resumed").await
    }

    async fn set_paused(&self, paused: bool, what: &'static str) -> Result<(), UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        engine
            .set_paused(place, paused)
            .await
            .map_err(|fault| UpdateError::from_engine(what, fault))
    }

    /// Stops deliveries in this process: getters return `None`. Other processes continue, and no key is lost.
    ///
    /// Items that this process holds can still be completed. Adds also succeed, because other processes run the keys.
    pub fn shut_down(&self) {
        self.shared.stop_deliveries(Shutdown::Now);
    }

    /// [Shuts down](Self::shut_down) the queue in this process when no work is left: no key is ready, waiting or in
    /// flight in any process. Parked keys are not work.
    ///
    /// Only a getter that waits for keys detects that no work is left. Without getters, the queue is never shut down.
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
    /// queue.shut_down_when_idle();
    ///
    /// while let Some(item) = queue.get().await {
    ///     item.succeed().await?;
    /// }
    /// assert!(queue.shutting_down());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shut_down_when_idle(&self) {
        self.shared.shutdown.send_if_modified(|shutdown| {
            let is_open = *shutdown == Shutdown::No;
            if is_open {
                *shutdown = Shutdown::WhenIdle;
            }
            is_open
        });
    }

    /// Returns true if the queue is shut down in this process.
    #[must_use]
    pub fn shutting_down(&self) -> bool {
        self.shared.shutdown.borrow().is_final()
    }

    /// Returns true if this process has found that the queue was [dropped](crate::Store::drop_queue).
    ///
    /// A getter that waits for keys detects the drop within the [poll interval](crate::OpenOptions::poll). Then the
    /// queue is shut down in this process, each `get` returns `None`, and `Workers` stop.
    ///
    /// A queue that is created again with the same name is another queue. This handle never changes the new queue. To
    /// use the new queue, open it.
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
    /// store.drop_queue("mail").await?;
    /// assert!(queue.get().await.is_none());
    /// assert!(queue.is_dropped());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        *self.shared.shutdown.borrow() == Shutdown::Dropped
    }

    /// Waits until the queue is [shut down](Self::shut_down) in this process, and the store has answered all requests
    /// of this process.
    ///
    /// When the call returns, no claim is under way. The store has recorded each completion whose lease was not lost.
    /// If the store cannot be reached, the call waits until the leases expire.
    ///
    /// Await this call before the process exits. Otherwise, other processes receive some keys only after their leases
    /// expire, for example a key that was claimed for a dropped [`get`](Self::get). This call waits until the store has
    /// released that key. The call does not wait for an [`Item`] that still exists.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the call can be repeated.
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
    /// # let done = async {};
    /// let queue = store.queue("mail").open().await?;
    /// tokio::select! {
    ///     item = queue.get() => drop(item),
    ///     () = done => {}
    /// }
    /// queue.shut_down();
    /// queue.settled().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn settled(&self) {
        // Waits until the task that claims keys has stopped.
        self.getters.closed().await;
        self.shared.leases.settled().await;
        self.shared.recorder.record().await;
    }

    /// Returns the number of keys that this process holds, including keys that are [claimed
    /// ahead](crate::OpenOptions::claim_ahead).
    pub(crate) fn leased(&self) -> usize {
        self.shared.leases.len()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}
