//! Implements traits of [`requeue`], so that its workers run on a queue in a store.

use std::fmt::Display;
use std::sync::Arc;

use requeue::clock::{Clock, TokioClock};
use requeue::workers::{Delivery, Error, WorkItem, WorkQueue};
use requeue::{CancelReason, Completion, Drained};

use crate::api::queue::Queue;
use crate::client::item::Item;
use crate::client::leases::Signals;
use crate::types::error::{CompleteError, chain};
use crate::types::key::Key;

/// Lets [`requeue::workers::Workers`] run on the queue.
///
/// A key that is given up is parked with the error of its run. If the lease of a key is lost, the context of its run is
/// cancelled, and the result of the run has no effect.
///
/// # Examples
///
/// ```
/// use requeue::workers::{Action, Context, Error, Workers};
/// use requeue_store::{Key, Store};
///
/// async fn send(key: Key, context: Context) -> Result<Action, Error> {
///     // Writes to other systems carry `context.fencing_token()`.
///     # let _ = (key, context);
///     Ok(Action::succeed())
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = Store::connect(&url).await?;
/// store.migrate().await?;
/// let queue = store.queue("mail").open().await?;
/// queue.add_all(["alice", "bob"]).await?;
///
/// queue.shut_down_when_idle(); // a service uses `run_until(...)` instead
/// let workers = Workers::new(queue.clone(), send).concurrency(2);
/// assert!(workers.run().await.finished);
/// assert_eq!(queue.counts().await?, Default::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl WorkQueue for Queue {
    type Key = Key;
    type Item = Item;

    fn next_item(&self) -> impl Future<Output = Option<Item>> + Send {
        self.get()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(TokioClock::current())
    }

    fn shut_down(&self) {
        Self::shut_down(self);
    }

    /// Returns the number of keys that this process holds. Ready keys are not included, because other processes may run
    /// them.
    fn take_left(&self) -> Drained<Key> {
        Drained::new(0, self.leased(), Vec::new())
    }

    fn wait_settled(&self) -> impl Future<Output = ()> + Send {
        Self::settled(self)
    }

    fn note_panic(&self) {
        self.shared.place.meters.count_panic();
    }
}

impl WorkItem for Item {
    type Key = Key;

    fn key(&self) -> &Key {
        Self::key(self)
    }

    /// Returns a priority of -1, 0 or 1.
    fn delivery(&self) -> Delivery {
        Delivery {
            attempt: self.attempt(),
            adds: self.adds(),
            flags: self.flags(),
            priority: self.priority().into(),
            queued: None,
            fencing_token: self.fencing_token(),
        }
    }

    /// Sets a low priority for a number below 0, and a high priority for a number above 0.
    fn set_priority(&mut self, priority: i32) {
        Self::set_priority(self, priority.into());
    }

    fn cancelled(&self) -> impl Future<Output = CancelReason> + Send + use<> {
        let Signals { lost, cancelled } = self.signals().clone();
        async move {
            tokio::select! {
                () = lost.cancelled() => CancelReason::Lost,
                () = cancelled.cancelled() => CancelReason::Cancelled,
            }
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn start_span(&self) -> Option<requeue::trace::RunSpan> {
        Self::start_span(self)
    }

    fn note_error(&mut self, error: &Error) {
        self.set_error(chain(error.source()));
    }

    async fn complete(self, completion: Completion) {
        let key = self.key().clone();
        if let Err(error) = Self::complete(self, completion).await {
            report_failure(&key, &error);
        }
    }
}

fn report_failure(key: &dyn Display, error: &CompleteError) {
    let error = chain(error);
    tracing::warn!(%key, error, "a completion had no effect");
}
