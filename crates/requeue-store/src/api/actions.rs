//! The actions of operators on a queue.

use crate::api::queue::Queue;
use crate::client::shared::Shared;
use crate::types::action::{ActionRecord, KEPT};
use crate::types::error::{Failed, ReadError, UpdateError};

impl Queue {
    /// Records an action of an operator, with the time of the store. The store keeps the last 100 actions of each
    /// queue.
    ///
    /// The record does not change the behaviour of the queue. The dashboard and `requeue status` show it, for example
    /// to say who paused the queue and why. Record an action after it has taken effect. Methods such as
    /// [`pause`](Self::pause) record nothing, because programs also call them.
    ///
    /// # Errors
    ///
    /// Returns an error if a text of the record is [invalid](crate::ErrorKind::Invalid), the store cannot be reached,
    /// or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may have recorded the action.
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
    /// use requeue_store::ActionRecord;
    ///
    /// queue.pause().await?;
    /// queue.record_action(ActionRecord::new("pause", "ann").note("the provider is down")).await?;
    /// let last = queue.last_actions(20).await?;
    /// assert_eq!((&*last[0].action, &*last[0].by), ("pause", "ann"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn record_action(&self, action: ActionRecord) -> Result<(), UpdateError> {
        if let Some(why) = action.refusal() {
            return Err(UpdateError(Failed::invalid(why)));
        }
        let Shared { engine, place, .. } = &*self.shared;
        let recorded = engine.record_action(place, action).await;
        recorded.map_err(|fault| UpdateError::from_engine("the action was not recorded", fault))
    }

    /// Returns the last `limit` [recorded](Self::record_action) actions, the newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn last_actions(&self, limit: usize) -> Result<Vec<ActionRecord>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let mut actions = engine
            .last_actions(place)
            .await
            .map_err(|fault| ReadError::from_engine("the last actions were not read", fault))?;
        actions.truncate(limit.min(KEPT));
        Ok(actions)
    }
}
