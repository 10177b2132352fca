//! Operations on the groups of a queue: adds, pauses and settings.

use std::fmt;
use std::sync::Arc;

use crate::api::bulk::Bulk;
use crate::api::queue::Queue;
use crate::client::shared::Shared;
use crate::engine::GroupChange;
use crate::types::add::{Add, Added};
use crate::types::error::{AddError, Failed, ReadError, UpdateError};
use crate::types::group::preceding;
use crate::types::inspect::{GroupInfo, State};
use crate::types::key::Key;
use crate::types::rate::Rate;

impl Queue {
    /// Returns the operations on one group: adds, a pause, cancels, and the settings of the group.
    ///
    /// The call succeeds even if the group has no keys. In a queue without [groups](crate::OpenOptions::group_by), or
    /// with a name that is not valid, each operation fails with [`ErrorKind::Invalid`](crate::ErrorKind::Invalid). A
    /// valid name has up to 100 bytes and no control characters.
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
    /// use requeue_store::GroupBy;
    ///
    /// let queue = store.queue("mail").group_by(GroupBy::Add).open().await?;
    /// queue.group("acme").add_all(["alice", "bob"]).await?;
    /// queue.group("zeta").add("carol").await?;
    ///
    /// queue.group("acme").pause().await?;
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!((item.as_str(), item.group()), (Some("carol"), Some("zeta")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(&self, name: impl Into<Arc<str>>) -> GroupHandle<'_> {
        GroupHandle { queue: self, name: name.into() }
    }

    /// Returns true if the keys of the queue have [groups](crate::OpenOptions::group_by).
    #[doc(hidden)] // Only `requeue-http` needs this item.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.shared.grouping.is_some()
    }

    /// Sets how many keys of a group can be in flight at the same time, for all groups without a [separate
    /// limit](GroupHandle::set_limit). With `None`, these groups have no limit.
    ///
    /// The store keeps the limit, which applies to later claims of all processes. Runs in flight continue, even if
    /// their number exceeds the new limit.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`GroupHandle::pause`], and an error if the limit is 0. To stop a group, pause it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the limit may have been set. Repeating the call is harmless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.add_all(["acme/1", "acme/2", "acme/3"]).await?;
    /// queue.set_group_limit(Some(1)).await?;
    /// assert_eq!(queue.get_many(10).await.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn set_group_limit(&self, limit: Option<u32>) -> Result<(), UpdateError> {
        const WHAT: &str = "the limit of the groups was not set";
        check_limit(limit)?;
        self.shared.check_groups().map_err(UpdateError)?;
        let Shared { engine, place, .. } = &*self.shared;
        let set = engine.set_group_limit(place, limit).await;
        set.map_err(|fault| UpdateError::from_engine(WHAT, fault))
    }

    /// Sets the rate at which all processes together can start runs of the queue's keys. `None` removes the rate.
    ///
    /// The store keeps the rate, which applies to later claims. If the queue already had a rate, earlier starts also
    /// count towards the new rate. The rate does not restrict keys that a process had claimed ahead before the change.
    /// In Redis, only a queue with one [shard](crate::Store::connect) can have a rate.
    ///
    /// [`rate`](Self::rate) returns the rate, and [`explain`](Self::explain) shows whether the rate holds a key back.
    ///
    /// # Errors
    ///
    /// Returns an error if the rate is [invalid](Rate::new), the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the rate may have been set. Repeating the call is harmless.
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
    /// use requeue_store::Rate;
    ///
    /// let queue = store.queue("mail").open().await?;
    /// let rate: Rate = "100/h".parse()?;
    /// queue.set_rate(Some(rate.burst(2))).await?;
    /// queue.add_all(["alice", "bob", "carol"]).await?;
    /// assert_eq!(queue.get_many(10).await.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn set_rate(&self, rate: Option<Rate>) -> Result<(), UpdateError> {
        check_rate(rate)?;
        let Shared { engine, place, .. } = &*self.shared;
        let set = engine.set_rate(place, rate).await;
        set.map_err(|fault| UpdateError::from_engine("the rate was not set", fault))
    }

    /// Returns a page of up to `limit` groups that have keys or settings, sorted by the bytes of their names. The page
    /// begins after the group `after`.
    ///
    /// To count the keys, the engine reads all keys of these groups. Therefore, the call suits people and dashboards,
    /// but not workers.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue has no groups, the store cannot be reached, or the queue was dropped.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.add_all(["acme/1", "acme/2", "zeta/1"]).await?;
    /// let groups = queue.groups(None, 100).await?;
    /// let ready: Vec<_> = groups.iter().map(|group| (&*group.name, group.counts.ready)).collect();
    /// assert_eq!(ready, [("acme", 2), ("zeta", 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn groups(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<GroupInfo>, ReadError> {
        self.shared.check_groups().map_err(ReadError)?;
        let Shared { engine, place, .. } = &*self.shared;
        let groups = engine.list_groups(place, after, limit).await;
        groups.map_err(|fault| ReadError::from_engine("the groups were not listed", fault))
    }
}

/// The operations on one group: see [`Queue::group`].
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
/// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
/// let acme = queue.group("acme");
/// acme.set_limit(Some(1)).await?;
/// queue.add_all(["acme/1", "acme/2"]).await?;
/// let item = queue.get().await.expect("the queue is open");
/// let info = acme.info().await?.expect("the group has keys");
/// assert_eq!((info.limit, info.counts.in_flight, info.counts.ready), (Some(1), 1, 1));
/// item.succeed().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a handle does nothing until one of its methods is called"]
pub struct GroupHandle<'q> {
    queue: &'q Queue,
    name: Arc<str>,
}

impl GroupHandle<'_> {
    /// Adds a key of this group that is ready immediately.
    ///
    /// While a key has a state, its group does not change. An add to another group during this time does not move the
    /// key.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Queue::add`]. Also returns an error if the queue has no groups, the group's name is
    /// longer than 100 bytes or contains control characters, or the queue's pattern extracts another group from the
    /// key.
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`Queue::add`].
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
    /// use requeue_store::GroupBy;
    ///
    /// let queue = store.queue("mail").group_by(GroupBy::Add).open().await?;
    /// queue.group("acme").add("alice").await?;
    /// let entry = queue.look_up("alice").await?.expect("it was added");
    /// assert_eq!(entry.group.as_deref(), Some("acme"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn add(&self, key: impl Into<Key>) -> Result<Added, AddError> {
        self.add_with(key, Add::now()).await
    }

    /// Adds a key of this group with options.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`Queue::add`].
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
    /// use requeue_store::GroupBy;
    ///
    /// let queue = store.queue("mail").group_by(GroupBy::Add).open().await?;
    /// use requeue_store::{Add, Priority};
    ///
    /// let add = Add::now().priority(Priority::High);
    /// queue.group("acme").add_with("alice", add).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn add_with(&self, key: impl Into<Key>, add: Add) -> Result<Added, AddError> {
        self.queue.add_to_group(Some(&self.name), key.into(), add).await
    }

    /// Adds keys of this group, which are ready immediately. Returns the answers in the order of the keys. One request
    /// to the store adds up to 256 keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add`](Self::add). Some of the keys may have been added. Adding all of them again is
    /// harmless.
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`Queue::add_all`].
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
    /// use requeue_store::GroupBy;
    ///
    /// let queue = store.queue("mail").group_by(GroupBy::Add).open().await?;
    /// use requeue_store::Added::{Coalesced, New};
    ///
    /// let acme = queue.group("acme");
    /// assert_eq!(acme.add_all(["alice", "bob", "bob"]).await?, [New, New, Coalesced]);
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

    /// Adds keys of this group with the same options. Returns the answers in the order of the keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`add_all`](Self::add_all).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`Queue::add_all`].
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
    /// use requeue_store::GroupBy;
    ///
    /// let queue = store.queue("mail").group_by(GroupBy::Add).open().await?;
    /// use requeue_store::Add;
    ///
    /// queue.group("acme").add_all_with(["alice", "bob"], Add::now().flags(1)).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn add_all_with<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        add: Add,
    ) -> Result<Vec<Added>, AddError> {
        self.queue.add_all_to_group(Some(&self.name), keys, add).await
    }

    /// Stops the deliveries of the group in all processes. Keys of the group can still be added, coalesce, become ready
    /// and be completed.
    ///
    /// The store keeps the pause, even if this process stops or the group has no keys. After this call, two kinds of
    /// keys may still be delivered: keys of a claim that has already begun, and keys that a process has [claimed
    /// ahead](crate::OpenOptions::claim_ahead).
    ///
    /// # Errors
    ///
    /// Returns an error if the queue has no groups, the name is not valid, the store cannot be reached, or the queue
    /// was dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the group may have been paused. Repeating the call is harmless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.add("acme/1").await?;
    /// queue.group("acme").pause().await?;
    /// assert!(queue.explain("acme/1").await?.contains("group \"acme\", which is paused"));
    /// queue.group("acme").resume().await?;
    /// assert_eq!(queue.get().await.expect("the queue is open").as_str(), Some("acme/1"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn pause(&self) -> Result<(), UpdateError> {
        self.change(GroupChange::Paused(true), "paused").await
    }

    /// Ends a [pause](Self::pause). The store notifies waiting workers of the resume as quickly as of an add.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the group may have been resumed. Repeating the call is harmless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.group("acme").pause().await?;
    /// queue.group("acme").resume().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn resume(&self) -> Result<(), UpdateError> {
        self.change(GroupChange::Paused(false), "resumed").await
    }

    /// Sets how many keys of this group can be in flight at the same time, over all processes. With `None`, the limit
    /// of the [queue](Queue::set_group_limit) applies.
    ///
    /// Claims never exceed the limit. A key whose lease has expired counts as in flight until a claim finds it. A lower
    /// limit applies to later claims, and runs in flight continue.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](Self::pause), and an error if the limit is 0. To stop the group, pause it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the limit may have been set. Repeating the call is harmless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// queue.group("acme").set_limit(Some(3)).await?;
    /// queue.add_all(["acme/1", "acme/2", "acme/3", "acme/4"]).await?;
    /// assert_eq!(queue.get_many(10).await.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn set_limit(&self, limit: Option<u32>) -> Result<(), UpdateError> {
        check_limit(limit)?;
        self.change(GroupChange::Limit(limit), "changed").await
    }

    /// Sets the weight: the number of keys of the group that are delivered in one turn. The default is 1.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](Self::pause), and an error if the weight is 0. To stop the group, pause it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the weight may have been set. Repeating the call is harmless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").open().await?;
    /// queue.group("acme").set_weight(2).await?;
    /// queue.add_all(["acme/1", "acme/2", "acme/3", "zeta/1", "zeta/2"]).await?;
    /// let items = queue.get_many(4).await;
    /// let keys: Vec<_> = items.iter().map(|item| item.to_string()).collect();
    /// assert_eq!(keys, ["acme/1", "acme/2", "zeta/1", "acme/3"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn set_weight(&self, weight: u32) -> Result<(), UpdateError> {
        if weight == 0 {
            return Err(UpdateError(Failed::invalid(
                "invalid weight 0 of a group: use at least 1, or pause the group",
            )));
        }
        self.change(GroupChange::Weight(weight), "changed").await
    }

    /// Sets the rate at which all processes together can start runs of this group's keys. With `None`, only the rate of
    /// the [queue](Queue::set_rate) applies.
    ///
    /// The store keeps the rate, which applies to later claims. If the group already had a rate, earlier starts also
    /// count towards the new rate. [`info`](Self::info) returns the rate, and [`Queue::explain`] shows whether the rate
    /// holds a key back.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](Self::pause), and an error if the rate is [invalid](Rate::new).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the rate may have been set. Repeating the call is harmless.
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
    /// use requeue_store::Rate;
    ///
    /// let queue = store.queue("orders").group_by("^[^/]*").open().await?;
    /// let rate: Rate = "1/h".parse()?;
    /// queue.group("acme").set_rate(Some(rate.burst(2))).await?;
    /// queue.add_all(["acme/1", "acme/2", "acme/3", "zeta/1"]).await?;
    /// assert_eq!(queue.get_many(10).await.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn set_rate(&self, rate: Option<Rate>) -> Result<(), UpdateError> {
        check_rate(rate)?;
        self.change(GroupChange::Rate(rate), "changed").await
    }

    /// Returns the settings of the group and the number of its keys in each state. Returns `None` if the group has
    /// neither settings nor keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue has no groups, the name is not valid, the store cannot be reached, or the queue
    /// was dropped.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// assert_eq!(queue.group("acme").info().await?, None);
    /// queue.add("acme/1").await?;
    /// let info = queue.group("acme").info().await?.expect("the group has a key");
    /// assert_eq!((info.counts.ready, info.limit, info.weight, info.is_paused), (1, Some(2), 1, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn info(&self) -> Result<Option<GroupInfo>, ReadError> {
        self.queue.shared.check_group(&self.name).map_err(ReadError)?;
        let page = self.queue.groups(preceding(&self.name).as_deref(), 1).await?;
        Ok(page.into_iter().find(|group| *group.name == *self.name))
    }

    /// Cancels all keys of the group in `state`, as [`Queue::cancel_all`] does. With `None`, the keys can be in any
    /// state.
    ///
    /// Runs in flight continue, and only the next run of their keys is cancelled. The call reads all keys of the queue
    /// that are in `state`. If a key moves to another group during the call, the call may cancel it nevertheless.
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
    /// let queue = store.queue("orders").group_by("^[^/]*").group_limit(2).open().await?;
    /// use requeue_store::State;
    ///
    /// queue.add_all(["acme/1", "acme/2", "zeta/1"]).await?;
    /// assert_eq!(queue.group("acme").cancel_all(State::Ready).await?, 2);
    /// assert_eq!(queue.counts().await?.ready, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_all(&self, state: impl Into<Option<State>>) -> Bulk {
        self.queue.cancel_all_of_group(state.into(), &self.name)
    }

    async fn change(&self, change: GroupChange, done: &str) -> Result<(), UpdateError> {
        self.queue.shared.check_group(&self.name).map_err(UpdateError)?;
        let Shared { engine, place, .. } = &*self.queue.shared;
        let changed = engine.change_group(place, &self.name, change).await;
        let said = || format!("the group {:?} was not {done}", self.name);
        changed.map_err(|fault| UpdateError::from_engine(said(), fault))
    }
}

fn check_rate(rate: Option<Rate>) -> Result<(), UpdateError> {
    let checked = rate.map_or(Ok(()), Rate::check);
    checked.map_err(|why| UpdateError(Failed::invalid(why)))
}

fn check_limit(limit: Option<u32>) -> Result<(), UpdateError> {
    match limit {
        Some(0) => Err(UpdateError(Failed::invalid(
            "invalid limit 0 of a group: use at least 1, or pause the group",
        ))),
        _ => Ok(()),
    }
}

impl fmt::Debug for GroupHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupHandle").field("name", &self.name).finish_non_exhaustive()
    }
}
