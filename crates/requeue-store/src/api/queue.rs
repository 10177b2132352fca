//! A queue in a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::api::cache::Cache;
use crate::api::item::Item;
use crate::api::options::Options;
use crate::client::adding::{self, Adding};
use crate::client::ahead::Unstarted;
use crate::client::batcher::{Lanes, MOST};
use crate::client::claim_loop::{self, Waiter};
use crate::client::finishing::Finishing;
use crate::client::leases::Leases;
use crate::engine::{Ask, Engine, Place};
use crate::types::add::{Add, AddCounts, Added, Cancelled, ParkedAdd, ReAdd};
use crate::types::error::{AddError, EngineError, UpdateError};
use crate::types::inspect::{Counts, Entry};
use crate::types::key::Key;

/// A queue that other processes, on this machine or others, have open, too.
///
/// Handles are cheap to clone; all of one [`open`](crate::OpenOptions::open) share their tasks: one that
/// claims keys for all who wait, and one that renews leases.
#[derive(Clone)]
pub struct Queue {
    pub(crate) shared: Arc<Shared>,
    getters: mpsc::UnboundedSender<Waiter>,
}

pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) place: Arc<Place>,
    pub(crate) options: Options,
    pub(crate) leases: Arc<Leases>,
    pub(crate) adding: Lanes<Adding>,
    pub(crate) finishing: Lanes<Finishing>,
    pub(crate) ending: watch::Sender<Ending>,
    pub(crate) counts: Arc<Cache<Counts>>,
    pub(crate) longest: Arc<Cache<Vec<Entry>>>,
}

/// Whether no more is handed out here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    No,
    WhenIdle,
    Now,
    /// The queue was dropped.
    Dropped,
}

impl Ending {
    /// Returns true if no key is delivered any more.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Now | Self::Dropped)
    }
}

impl Queue {
    pub(crate) fn new(engine: Arc<dyn Engine>, place: Place, options: Options) -> Self {
        let place = Arc::new(place);
        let (adding, finishing) = (Lanes::new(&engine, &place), Lanes::new(&engine, &place));
        let leases = Leases::start(Arc::clone(&engine), Arc::clone(&place), options.lease);
        let ending = watch::Sender::new(Ending::No);
        let (counts, longest) = (Cache::new(), Cache::new());
        let shared = Arc::new(Shared {
            engine,
            place,
            options,
            leases,
            adding,
            finishing,
            ending,
            counts,
            longest,
        });
        let (getters, come) = mpsc::unbounded_channel();
        tokio::spawn(claim_loop::serve(Arc::downgrade(&shared), come));
        Self { shared, getters }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.place.name
    }

    /// The re-add policy.
    #[must_use]
    pub fn re_add(&self) -> ReAdd {
        self.shared.place.re_add
    }

    /// The effect of adds on a parked key.
    #[must_use]
    pub fn parked_add(&self) -> ParkedAdd {
        self.shared.place.parked_add
    }

    /// Adds a key, to be ready at once. When this returns, the add survives whatever the engine
    /// promises to survive.
    ///
    /// Adds of one process that come together travel together. Dropped before it returns, the add
    /// may have happened.
    ///
    /// # Errors
    ///
    /// If the key is longer than 2,048 bytes; or if, all the time that an add has, the store could not
    /// be reached or, in PostgreSQL, others had the key locked. The error says whether the key may have
    /// been added.
    pub async fn add(&self, key: impl Into<Key>) -> Result<Added, AddError> {
        self.add_with(key, Add::now()).await
    }

    /// Adds a key, to be ready after `delay`.
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add).
    pub async fn add_after(&self, key: impl Into<Key>, delay: Duration) -> Result<Added, AddError> {
        self.add_with(key, Add::after(delay)).await
    }

    /// Adds a key with all that can be asked of it.
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add).
    pub async fn add_with(&self, key: impl Into<Key>, add: Add) -> Result<Added, AddError> {
        let key = checked(key.into())?;
        let deadline = Instant::now() + self.shared.options.add_timeout;
        let (reply, answered) = oneshot::channel();
        let Shared { engine, place, adding, .. } = &*self.shared;
        adding.put(engine.shard(place, &key), Adding::new(key, add, deadline, reply));
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(late("the runtime of the queue has ended")),
            Err(_) => Err(late("there was no answer in time")),
        }
    }

    /// Adds all of them, to be ready at once. Counts the answers.
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
    /// let added = queue.add_all(["alice", "bob", "bob"]).await?;
    /// assert_eq!((added.total(), added.new, added.coalesced), (3, 1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`add`](Self::add); then some of the keys have been added, and to add all of them again
    /// is harmless. With a key that is too long, none of its part of 256 are.
    pub async fn add_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<AddCounts, AddError> {
        self.add_all_with(keys, Add::now()).await
    }

    /// Adds all of them with all that can be asked of them. Counts the answers.
    ///
    /// # Errors
    ///
    /// As of [`add_all`](Self::add_all).
    pub async fn add_all_with<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        add: Add,
    ) -> Result<AddCounts, AddError> {
        let mut keys = keys.into_iter();
        let mut all = AddCounts::default();
        loop {
            let mut part: Vec<Key> = keys
                .by_ref()
                .take(MOST)
                .map(|key| checked(key.into()))
                .collect::<Result<_, _>>()?;
            if part.is_empty() {
                return Ok(all);
            }
            part.sort_unstable();
            let asks = part.chunk_by(|a, b| a == b).map(|same| Ask {
                key: same[0].clone(),
                add,
                adds: same.len().try_into().unwrap_or(u32::MAX),
            });
            let deadline = Instant::now() + self.shared.options.add_timeout;
            let Shared { engine, place, .. } = &*self.shared;
            let asks = asks.collect();
            let added = adding::add_all(engine, place, asks, deadline).await;
            all += added.map_err(|(unsure, fault)| {
                AddError::of("not all keys were added", unsure, fault)
            })?;
        }
    }

    /// The next key, as soon as there is one; `None` once the queue is
    /// [shut down](Self::shut_down) here. While the store can't be reached, it waits for that.
    ///
    /// Cancel safe: a key that was claimed for one who has gone is put back.
    pub async fn get(&self) -> Option<Item> {
        self.get_many(1).await.pop()
    }

    /// Up to `max` keys, as soon as there is one; none once the queue is shut down here, or with
    /// a `max` of 0.
    ///
    /// Cancel safe, as [`get`](Self::get).
    pub async fn get_many(&self, max: usize) -> Vec<Item> {
        while max > 0 && !self.is_shut_down() {
            let (reply, passed) = oneshot::channel();
            if self.getters.send(Waiter { max, reply }).is_err() {
                break;
            }
            let items = passed.await.map(Unstarted::begin).unwrap_or_default();
            if !items.is_empty() {
                self.shared.place.meters.delivered(items.iter().map(Item::queued));
                return items;
            }
        }
        Vec::new()
    }

    /// Takes the key out of ready, waiting, dirty and parked, never out of a run, and forgets its
    /// failures. Says what it took.
    ///
    /// # Errors
    ///
    /// If the store can't be reached, or, in PostgreSQL, others have the key locked for 5 s.
    pub async fn cancel(&self, key: impl Into<Key>) -> Result<Cancelled, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let cancelled = engine.cancel(place, vec![key.into()], None).await.and_then(only);
        cancelled.map_err(|fault| UpdateError::of("the key was not cancelled", fault.of_a_key()))
    }

    /// Makes a parked key ready, with its failures forgotten. Whether it was parked.
    ///
    /// # Errors
    ///
    /// As of [`cancel`](Self::cancel).
    pub async fn revive(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let revived = engine.revive(place, vec![key.into()]).await.and_then(only);
        revived.map_err(|fault| UpdateError::of("the key was not revived", fault.of_a_key()))
    }

    /// Hands out no more here: those who wait get `None`. What is held here can still be ended, and
    /// adds are taken: the queue is other processes', too.
    pub fn shut_down(&self) {
        self.shared.end(Ending::Now);
    }

    /// [Shuts down](Self::shut_down) here once nothing is left to do: no key is ready, waiting or
    /// with a worker, be it of this process or another. Parked keys don't count. That is found out
    /// by those who wait for keys: without any it does not come to that.
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
    /// assert!(queue.is_shut_down());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shut_down_when_idle(&self) {
        self.shared.ending.send_if_modified(|ending| {
            let is_open = *ending == Ending::No;
            if is_open {
                *ending = Ending::WhenIdle;
            }
            is_open
        });
    }

    /// Whether it is shut down here.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shared.ending.borrow().is_final()
    }

    /// Whether this process has found that the queue was [dropped](crate::Store::drop_queue). Those who wait
    /// for keys find it, within the [poll](crate::OpenOptions::poll) at the latest: then the queue is shut
    /// down here, each `get` returns `None`, and `Workers` end.
    ///
    /// A queue that is created again with the same name is another one, which this handle never
    /// changes: open it again.
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
        *self.shared.ending.borrow() == Ending::Dropped
    }

    /// Until it is [shut down](Self::shut_down) here and nothing is on its way: no key is being
    /// claimed, and the store has heard how each hand-out has ended, unless its lease was lost first.
    /// With a store that can't be reached that takes as long as the leases last.
    ///
    /// A process that waits for this before it exits leaves no key that others get only when a lease
    /// has ended: one that was claimed for a [`get`](Self::get) that was dropped is put back by then.
    /// An [`Item`] that is still there is not waited for. Cancel safe.
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
        // The task that claims has ended.
        self.getters.closed().await;
        self.shared.leases.settled().await;
    }

    /// How many keys this process holds, those included that are [claimed
    /// ahead](crate::OpenOptions::claim_ahead).
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.leases.len()
    }
}

impl Shared {
    /// Hands out no more, unless that is so already.
    pub(crate) fn end(&self, why: Ending) {
        self.ending.send_if_modified(|ending| {
            let is_open = !ending.is_final();
            if is_open {
                *ending = why;
            }
            is_open
        });
    }
}

/// The answer to a verb on a single key.
fn only<T>(mut answers: Vec<Option<T>>) -> Result<T, EngineError> {
    answers.pop().flatten().ok_or_else(EngineError::locked)
}

fn checked(key: Key) -> Result<Key, AddError> {
    if key.is_too_long() {
        let (length, start) = (key.len(), Key::from(&key[..64]));
        let said =
            format!("\"{start}...\": a key of {length} bytes; {} are the most", Key::LONGEST);
        return Err(AddError::new(said));
    }
    Ok(key)
}

fn late(why: &str) -> AddError {
    AddError::of("the key was not added", true, EngineError::unsure(why))
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("place", &self.place).finish_non_exhaustive()
    }
}
