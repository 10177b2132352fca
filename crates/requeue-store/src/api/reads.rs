//! Reads of a queue: counts, single keys and pages of keys.

use crate::api::queue::{Queue, Shared};
use crate::types::error::ReadError;
use crate::types::inspect::{Counts, Entry, State};
use crate::types::key::Key;

impl Queue {
    /// Counts the keys in each state. The engine reads all keys for that.
    /// [`recent_counts`](Self::recent_counts) limits how often it does so.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn counts(&self) -> Result<Counts, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let counted = engine.counts(place).await;
        counted.map_err(|fault| ReadError::of("the keys were not counted", fault))
    }

    /// Returns the entry of a key, or `None` if the key has no state: it was never added, for example, or
    /// its last run succeeded.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn look_up(&self, key: impl Into<Key>) -> Result<Option<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let mut found = match engine.look_up(place, &key.into()).await {
            Ok(found) => Vec::from_iter(found),
            Err(fault) => return Err(ReadError::of("the key was not looked up", fault)),
        };
        self.note_pause(&mut found).await?;
        Ok(found.pop())
    }

    /// Returns true if the queue is [paused](Self::pause).
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn is_paused(&self) -> Result<bool, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let is_paused = engine.is_paused(place).await;
        is_paused.map_err(|fault| ReadError::of("the state of the queue was not read", fault))
    }

    async fn note_pause(&self, entries: &mut [Entry]) -> Result<(), ReadError> {
        let is_ready = |entry: &Entry| entry.state == State::Ready;
        if entries.iter().any(is_ready) && self.is_paused().await? {
            entries.iter_mut().for_each(|entry| entry.paused = is_ready(entry));
        }
        Ok(())
    }

    /// Returns a page of up to `limit` keys in this state, or in any state with `None`. The keys are
    /// sorted, and begin after the key `after`.
    ///
    /// To walk over all pages, pass the last key of each page as `after` for the next page. The walk returns
    /// a key exactly once if the key is in the state throughout the walk.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
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
    /// use requeue_store::State;
    ///
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_all(["alice", "bob", "carol"]).await?;
    /// let page = queue.snapshot(Some(State::Ready), None, 2).await?;
    /// let rest = queue.snapshot(Some(State::Ready), page.last().map(|entry| &entry.key), 2).await?;
    /// assert_eq!((page.len(), rest[0].key.as_str()), (2, Some("carol")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn snapshot(
        &self,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let page = engine.page(place, state, after, limit).await;
        let mut page = page.map_err(|fault| ReadError::of("the keys were not listed", fault))?;
        self.note_pause(&mut page).await?;
        Ok(page)
    }

    /// Returns a page of up to `limit` parked keys, as [`snapshot`](Self::snapshot) does.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn parked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>, ReadError> {
        self.snapshot(Some(State::Parked), after, limit).await
    }

    /// Returns one line of text that explains the state of a key: see [`Entry::explain`].
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    pub async fn explain(&self, key: impl Into<Key>) -> Result<String, ReadError> {
        let key = key.into();
        let found = self.look_up(&key).await?;
        Ok(found.map_or_else(|| format!("{key}: not in the queue"), |entry| entry.explain()))
    }
}
