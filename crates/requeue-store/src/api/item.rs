//! A key that was handed out.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use requeue::Completion;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::queue::Shared;
use crate::client::finishing::{Finishing, Reply};
use crate::client::leases::Ending;
use crate::engine::{End, Failure, Finish, HandOut};
use crate::types::add::Priority;
use crate::types::error::FinishError;
use crate::types::key::Key;
use crate::types::text::prefix;

/// How much of an error is kept, in bytes.
const LONGEST_ERROR: usize = 4096;

/// The effect of a completion on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct Completed {
    /// Whether the completion parked the key: it gave the key up, or was the last failure within the
    /// limit, and the key was not added during the run.
    pub parked: bool,
}

/// A key in flight: no other worker on any machine has it until its completion, or until its lease
/// expires.
///
/// The lease is renewed as long as the item exists. If it cannot be renewed, or was lost,
/// [`lost`](Self::lost) becomes ready and no completion of this item has an effect. Other systems can
/// reject late writes of such a worker by its [`epoch`](Self::epoch).
///
/// A worker completes the delivery with [`complete`](Self::complete), or with a shorthand for one
/// [`Completion`]: [`succeed`](Self::succeed), [`requeue_after`](Self::requeue_after),
/// [`retry`](Self::retry), [`retry_after`](Self::retry_after), [`give_up`](Self::give_up) and
/// [`release`](Self::release). **An item that is dropped before its completion has failed** and is
/// retried with backoff.
#[must_use = "an item that is dropped unfinished counts as failed"]
pub struct Item {
    /// `None` once it has ended.
    shared: Option<Arc<Shared>>,
    out: HandOut,
    /// How long it had been ready when it was claimed.
    place: Duration,
    lost: CancellationToken,
    since: Instant,
    /// The reason, if the run fails.
    error: Option<String>,
}

impl Item {
    /// The engine was asked for it at `since`.
    pub(crate) fn new(shared: Arc<Shared>, out: HandOut, since: Instant) -> Self {
        let lost = shared.leases.hold(out.key.clone(), out.epoch, since);
        let (place, since) = (out.queued, Instant::now());
        Self { shared: Some(shared), out, place, lost, since, error: None }
    }

    /// A worker gets it now. Whether it is still this process's.
    pub(crate) fn begin(&mut self) -> bool {
        let now = Instant::now();
        self.out.queued += now - self.since;
        self.since = now;
        self.shared().leases.begin(self.out.epoch, now)
    }

    /// Since when the worker has it; before that, since when it is here.
    pub(crate) const fn since(&self) -> Instant {
        self.since
    }

    /// Returns the key, which no worker has got, to its place in the store, unless the lease is lost.
    pub(crate) fn unclaim(mut self) {
        let Some(shared) = self.shared.take() else { return };
        if let Some(lease) = shared.leases.release(self.out.epoch) {
            let how = Finish::Unclaim(self.out.asked, self.place);
            self.submit(&shared, how, lease, None);
        }
    }

    /// The key. The item derefs to it, too.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.out.key
    }

    /// Which attempt this is: 1, and one more for each failure in a row before.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.out.failures.saturating_add(1)
    }

    /// How many adds this run stands for; at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.out.asked.adds
    }

    /// The reasons of those adds, or-ed.
    #[must_use]
    pub const fn reasons(&self) -> u32 {
        self.out.asked.reasons
    }

    /// The highest priority of those adds.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.out.asked.priority
    }

    /// Sets the priority of the key's next run, if the completion of this delivery causes one. The
    /// default is the priority of this run.
    pub const fn set_priority(&mut self, priority: Priority) {
        self.out.asked.priority = priority;
    }

    /// The fencing token: a number that is greater for each later delivery of the key, also after the
    /// store has failed over to a replica that lags or a backup was restored.
    ///
    /// No two deliveries of a queue have the same. It is about the time of the delivery in microseconds
    /// since 1970, so until the year 2255 it is below 2⁵³, up to which JavaScript and JSON keep integers
    /// exact; and it fits a `bigint`, as a column for it is. [`Context::epoch`] has the same type.
    ///
    /// [`Context::epoch`]: requeue::workers::Context::epoch
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        // Engines count upwards from 0, or from the time.
        self.out.epoch.unsigned_abs()
    }

    /// How long the key was ready; if it was added while with a worker, from that add.
    #[must_use]
    pub const fn queued(&self) -> Duration {
        self.out.queued
    }

    /// Until the lease is lost. Cancel safe.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Whether the lease is lost. If not, no other has been handed the key before this was called.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.shared().leases.is_held(self.out.epoch)
    }

    /// A token that is cancelled when the lease is lost.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.lost
    }

    /// Sets the reason of a failure, of which the first 4 KiB are kept. A completion that is no failure
    /// ignores it.
    pub fn set_error(&mut self, error: impl fmt::Display) {
        let mut error = error.to_string();
        error.truncate(prefix(&error, LONGEST_ERROR).len());
        self.error = Some(error);
    }

    /// Completes the delivery, and returns whether that parked the key.
    ///
    /// A completion that parks the key is also reported as an event of [`tracing`] with the target
    /// `requeue_store::parked` and the level `WARN`.
    ///
    /// # Errors
    ///
    /// If the lease was lost, or expired before the store could be reached.
    ///
    /// # Cancel safety
    ///
    /// The completion is sent when the future is first polled. If the future is dropped after that, the
    /// completion takes place all the same. If it is dropped before, the run has failed.
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// use requeue_store::Completion;
    ///
    /// let queue = store.queue("mail").max_failures(1).open().await?;
    /// queue.add("alice").await?;
    /// let mut item = queue.get().await.expect("the queue is open");
    /// item.set_error("no answer");
    /// assert!(item.complete(Completion::Retry).await?.parked);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn complete(mut self, completion: Completion) -> Result<Completed, FinishError> {
        let how = self.resolve(completion, "it failed");
        let (reply, answered) = oneshot::channel();
        if let Some(shared) = self.shared.take() {
            self.send(&shared, how, Some(reply));
        }
        let parked = answered.await.unwrap_or_else(|_| {
            Err(FinishError::Unreachable("the runtime of the queue has ended".into()))
        })?;
        Ok(Completed { parked })
    }

    /// Completes the delivery with [`Completion::Succeed`]: the run succeeded, and the key's failures are
    /// forgotten.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn succeed(self) -> Result<(), FinishError> {
        self.complete(Completion::Succeed).await.map(drop)
    }

    /// Completes the delivery with [`Completion::RequeueAfter`]: the run succeeded, and the key is added
    /// again after `delay`.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn requeue_after(self, delay: Duration) -> Result<(), FinishError> {
        self.complete(Completion::RequeueAfter(delay)).await.map(drop)
    }

    /// Completes the delivery with [`Completion::Retry`]: the run failed for this reason, and is retried
    /// after the backoff. The key is parked instead if it has reached the limit of failures.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn retry(mut self, error: impl fmt::Display) -> Result<(), FinishError> {
        self.set_error(error);
        self.complete(Completion::Retry).await.map(drop)
    }

    /// Completes the delivery with [`Completion::RetryAfter`]: the run failed for this reason, and is
    /// retried after `delay`. The key is parked instead if it has reached the limit of failures.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn retry_after(
        mut self,
        delay: Duration,
        error: impl fmt::Display,
    ) -> Result<(), FinishError> {
        self.set_error(error);
        self.complete(Completion::RetryAfter(delay)).await.map(drop)
    }

    /// Completes the delivery with [`Completion::GiveUp`]: the run failed for this reason, and the key is
    /// parked until it is revived. If it was added during the run, it runs again instead, with its
    /// failures reset.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn give_up(mut self, error: impl fmt::Display) -> Result<(), FinishError> {
        self.set_error(error);
        self.complete(Completion::GiveUp).await.map(drop)
    }

    /// Completes the delivery with [`Completion::Release`]: the delivery is undone.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), whose cancel safety it has, too.
    pub async fn release(self) -> Result<(), FinishError> {
        self.complete(Completion::Release).await.map(drop)
    }

    fn shared(&self) -> &Arc<Shared> {
        match &self.shared {
            Some(shared) => shared,
            // Only the methods that take the item by value, and its drop, take it.
            None => unreachable!("an item that has ended is gone"),
        }
    }

    /// The request to the engine that `completion` stands for. `error` is the reason of a failure without
    /// one.
    fn resolve(&mut self, completion: Completion, error: &str) -> Finish {
        let asked = self.out.asked;
        match completion {
            Completion::Succeed => Finish::Succeed,
            Completion::RequeueAfter(delay) => Finish::RequeueAfter(delay, asked.priority),
            Completion::RetryAfter(delay) => {
                let most = self.shared().options.max_failures;
                Finish::RetryAfter(delay, most, self.failure(error))
            }
            Completion::GiveUp => Finish::GiveUp(self.failure(error)),
            Completion::Release => Finish::Release(asked),
            // `Retry`, and completions that this crate does not know yet.
            _ => Finish::Retry(self.shared().options.failing(), self.failure(error)),
        }
    }

    fn failure(&mut self, error: &str) -> Failure {
        let error = self.error.take().unwrap_or_else(|| error.to_owned());
        Failure { asked: self.out.asked, error }
    }

    fn send(&self, shared: &Shared, how: Finish, reply: Option<Reply>) {
        let (out, meters, worked) = (&self.out, &shared.place.meters, self.since.elapsed());
        let Some(lease) = shared.leases.release(out.epoch) else {
            meters.ended(worked, None);
            if let Some(reply) = reply {
                // Who asked may have gone.
                let _ = reply.send(Err(FinishError::Lost));
            }
            return;
        };
        meters.ended(worked, Some((&how, out)));
        self.submit(shared, how, lease, reply);
    }

    fn submit(&self, shared: &Shared, how: Finish, lease: Ending, reply: Option<Reply>) {
        let out = &self.out;
        let end = End { key: out.key.clone(), epoch: out.epoch, how };
        let shard = shared.engine.shard(&shared.place, &out.key);
        let failures = out.failures.saturating_add(1);
        shared.finishing.put(shard, Finishing::new(end, failures, lease, reply));
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if self.shared.is_some() {
            let how = self.resolve(Completion::Retry, "the worker ended without a word");
            if let Some(shared) = self.shared.take() {
                self.send(&shared, how, None);
            }
        }
    }
}

impl Deref for Item {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.out.key
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.out.key)
            .field("attempt", &self.attempt())
            .field("epoch", &self.out.epoch)
            .finish_non_exhaustive()
    }
}
