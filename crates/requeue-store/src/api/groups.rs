//! The groups of a queue: adds to a group, and its settings.

use std::fmt;
use std::sync::Arc;

use crate::api::bulk::Bulk;
use crate::api::queue::Queue;
use crate::client::shared::Shared;
use crate::engine::GroupChange;
use crate::types::add::{Add, Added};
use crate::types::error::{AddError, Failed, ReadError, UpdateError};
use crate::types::group::{GroupInfo, invalid_name};
use crate::types::inspect::State;
use crate::types::key::Key;

impl Queue {
    /// Returns the operations on the keys of one group: add, pause, cancel, and the settings of the group.
    ///
    /// The group need not have keys. Other groups are not affected. In a queue without
    /// [groups](crate::OpenOptions::group_by), or with a name that is not valid, each operation fails with
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid).
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
    pub fn group(&self, name: impl Into<String>) -> GroupHandle<'_> {
        GroupHandle { queue: self, name: name.into().into() }
    }

    /// Sets the limit of keys in flight for each group that has no [limit](GroupHandle::set_limit) that was set for it.
    /// `None`: no limit.
    ///
    /// The change applies to the claims of all processes from now on. Runs in flight continue, also if they are more
    /// than the new limit.
    ///
    /// # Errors
    ///
    /// As [`GroupHandle::pause`]. A limit of 0 is refused: pause the group instead.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the limit may have been set. Repeating the call is harmless.
    pub async fn set_group_limit(&self, limit: Option<u32>) -> Result<(), UpdateError> {
        const WHAT: &str = "the limit of the groups was not set";
        check_limit(limit)?;
        self.check_groups().map_err(UpdateError)?;
        let Shared { engine, place, .. } = &*self.shared;
        let set = engine.set_group_limit(place, limit).await;
        set.map_err(|fault| UpdateError::from_engine(WHAT, fault))
    }

    /// Returns up to `limit` groups that have keys or settings, with the numbers of their keys, in the order of their
    /// names. The groups begin after the group `after`.
    ///
    /// The engine reads all keys of these groups.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue has no groups, the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn groups(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<GroupInfo>, ReadError> {
        self.check_groups().map_err(ReadError)?;
        let Shared { engine, place, .. } = &*self.shared;
        let groups = engine.list_groups(place, after, limit).await;
        groups.map_err(|fault| ReadError::from_engine("the groups were not listed", fault))
    }

    fn check_groups(&self) -> Result<(), Failed> {
        match self.shared.grouping {
            Some(_) => Ok(()),
            None => Err(Failed::invalid(format!(
                "the queue {:?} has no groups; create a queue with `group_by`",
                self.name()
            ))),
        }
    }
}

/// The operations on the keys of one group: see [`Queue::group`].
#[must_use = "a handle does nothing until one of its methods is called"]
pub struct GroupHandle<'q> {
    queue: &'q Queue,
    name: Arc<str>,
}

impl GroupHandle<'_> {
    /// Adds a key of this group that is ready immediately.
    ///
    /// The group of a key is fixed while the key has a state. If the key has one already, the add applies to it, and its
    /// group stays.
    ///
    /// # Errors
    ///
    /// As [`Queue::add`]. Also returns an error if the queue has no groups, the name of the group has more than 100
    /// bytes or control characters, or the pattern of the queue extracts another group.
    ///
    /// # Cancel safety
    ///
    /// As [`Queue::add`].
    pub async fn add(&self, key: impl Into<Key>) -> Result<Added, AddError> {
        self.add_with(key, Add::now()).await
    }

    /// Adds a key of this group with options.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    ///
    /// # Cancel safety
    ///
    /// As [`Queue::add`].
    pub async fn add_with(&self, key: impl Into<Key>, add: Add) -> Result<Added, AddError> {
        self.queue.add_to_group(Some(&self.name), key.into(), add).await
    }

    /// Adds keys of this group that are ready immediately. Returns the answers in the order of the keys.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add). Some of the keys may have been added, and adding all of them again is harmless.
    ///
    /// # Cancel safety
    ///
    /// As [`Queue::add_all`].
    pub async fn add_all<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Added>, AddError> {
        self.add_all_with(keys, Add::now()).await
    }

    /// Adds keys of this group with the same options.
    ///
    /// # Errors
    ///
    /// As [`add_all`](Self::add_all).
    ///
    /// # Cancel safety
    ///
    /// As [`Queue::add_all`].
    pub async fn add_all_with<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        add: Add,
    ) -> Result<Vec<Added>, AddError> {
        self.queue.add_all_to_group(Some(&self.name), keys, add).await
    }

    /// Stops the deliveries of the group in all processes. Everything else continues: its keys are added and coalesce,
    /// become ready, and are completed. A claim that has begun may still deliver keys.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue has no groups, the name is not valid, the store cannot be reached, or the queue was
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the group may have been paused. Repeating the call is harmless.
    pub async fn pause(&self) -> Result<(), UpdateError> {
        self.change(GroupChange::Paused(true), "paused").await
    }

    /// Ends a [pause](Self::pause).
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the group may have been resumed. Repeating the call is harmless.
    pub async fn resume(&self) -> Result<(), UpdateError> {
        self.change(GroupChange::Paused(false), "resumed").await
    }

    /// Sets the limit of keys of this group in flight, over all processes. `None`: the limit of the
    /// [queue](Queue::set_group_limit) applies.
    ///
    /// At no time are more keys of the group in flight. A key whose lease has expired counts until a claim takes it back.
    /// A lower limit applies to later claims, and runs in flight continue.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause). A limit of 0 is refused: pause the group instead.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the limit may have been set. Repeating the call is harmless.
    pub async fn set_limit(&self, limit: Option<u32>) -> Result<(), UpdateError> {
        check_limit(limit)?;
        self.change(GroupChange::Limit(limit), "changed").await
    }

    /// Sets the number of keys that the group gets in one turn. The default is 1.
    ///
    /// # Errors
    ///
    /// As [`pause`](Self::pause). A weight of 0 is refused: pause the group instead.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the weight may have been set. Repeating the call is harmless.
    pub async fn set_weight(&self, weight: u32) -> Result<(), UpdateError> {
        if weight == 0 {
            return Err(UpdateError(Failed::invalid(
                "invalid weight 0 of a group: use at least 1, or pause the group",
            )));
        }
        self.change(GroupChange::Weight(weight), "changed").await
    }

    /// Cancels the pending runs of the keys of the group that are in this state, or in any state with `None`. Runs in
    /// flight continue.
    pub fn cancel_all(&self, state: impl Into<Option<State>>) -> Bulk {
        self.queue.cancel_all_of_group(state.into(), &self.name)
    }

    async fn change(&self, change: GroupChange, done: &str) -> Result<(), UpdateError> {
        self.queue.check_groups().map_err(UpdateError)?;
        if let Some(why) = invalid_name(&self.name) {
            return Err(UpdateError(Failed::invalid(why)));
        }
        let Shared { engine, place, .. } = &*self.queue.shared;
        let changed = engine.change_group(place, &self.name, change).await;
        let said = || format!("the group {:?} was not {done}", self.name);
        changed.map_err(|fault| UpdateError::from_engine(said(), fault))
    }
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
