//! Reads of a queue: counts, single keys and pages of keys.

use crate::api::queue::{Queue, Shared};
use crate::types::error::ReadError;
use crate::types::inspect::{Counts, Entry, State};
use crate::types::key::Key;

impl Queue {
    /// How many keys there are in each state. Goes through all of them.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn counts(&self) -> Result<Counts, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let counted = engine.counts(place).await;
        counted.map_err(|fault| ReadError::of("the keys were not counted", fault))
    }

    /// The key as it stands, if it has a state.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn look_up(&self, key: impl Into<Key>) -> Result<Option<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let found = engine.look_up(place, &key.into()).await;
        found.map_err(|fault| ReadError::of("the key was not looked up", fault))
    }

    /// Up to `limit` keys in this state, or in any, in order: those after `after`. A key that is in
    /// it throughout a walk over all pages is met once.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn snapshot(
        &self,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let page = engine.page(place, state, after, limit).await;
        page.map_err(|fault| ReadError::of("the keys were not looked at", fault))
    }

    /// Up to `limit` parked keys, in order: those after `after`.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn parked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>, ReadError> {
        self.snapshot(Some(State::Parked), after, limit).await
    }

    /// Where the key stands, in a sentence.
    ///
    /// # Errors
    ///
    /// If the store can't be reached.
    pub async fn explain(&self, key: impl Into<Key>) -> Result<String, ReadError> {
        let key = key.into();
        let found = self.look_up(&key).await?;
        Ok(found.map_or_else(|| format!("{key}: nothing is to be done"), |entry| entry.explain()))
    }
}
