//! A key that was handed out.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::queue::Shared;
use crate::client::finishing::{Finishing, Reply};
use crate::client::leases::Ending;
use crate::engine::{Delay, End, HandOut, How};
use crate::types::add::Priority;
use crate::types::error::FinishError;
use crate::types::key::Key;
use crate::types::text::prefix;

/// How much of an error is kept, in bytes.
const LONGEST_ERROR: usize = 4096;

/// The kind of a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Failure {
    /// The key is tried again with backoff, as by [`Item::retry`].
    #[default]
    Backoff,
    /// The key is tried again after this delay, as by [`Item::retry_after`].
    After(Duration),
    /// The key is parked now, as by [`Item::park`].
    Final,
}

/// The effect of a failure on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Failed {
    /// The key runs again: it had fewer failures than the limit, or was added during the run.
    Retried,
    /// The key is parked.
    Parked,
}

/// A key with a worker: nobody else has it, on any machine, until this ends or its lease does.
///
/// The lease is renewed as long as the item is there. If it can't be, or was lost,
/// [`lost`](Self::lost) says so, and nothing that this item does has any effect: what the worker
/// writes elsewhere is to be fenced by [`epoch`](Self::epoch).
///
/// It ends by one of [`succeed`](Self::succeed), [`retry`](Self::retry),
/// [`retry_after`](Self::retry_after), [`requeue_after`](Self::requeue_after),
/// [`put_back`](Self::put_back) and [`park`](Self::park). **An item that is dropped unfinished has
/// failed** and is retried with backoff.
#[must_use = "an item that is dropped unfinished counts as failed"]
pub struct Item {
    /// `None` once it has ended.
    shared: Option<Arc<Shared>>,
    out: HandOut,
    /// How long it had been ready when it was claimed.
    place: Duration,
    lost: CancellationToken,
    since: Instant,
    /// Of a handler, to be passed on.
    pub(crate) error: Option<String>,
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

    /// No worker gets it: it goes back to its place, unless it is lost.
    pub(crate) fn release(mut self) {
        let Some(shared) = self.shared.take() else { return };
        if let Some(lease) = shared.leases.release(self.out.epoch) {
            let how = How::Release(self.out.asked, self.place);
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

    /// The priority with which the key comes back, if this hand-out brings it back.
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

    /// Done, and its failures forgotten.
    ///
    /// As the other ways to end: it is sent off at once when first polled, and dropped after that
    /// it still travels.
    ///
    /// # Errors
    ///
    /// If the lease was lost, or ended before the store could be reached.
    pub async fn succeed(self) -> Result<(), FinishError> {
        self.end(How::Succeed).await.map(drop)
    }

    /// Failed for this reason, of which the first 4 KiB are kept, and tried again with backoff; or
    /// parked, if the queue has a limit and this was the last failure of it.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    pub async fn retry(self, error: impl fmt::Display) -> Result<(), FinishError> {
        self.fail(Failure::Backoff, error).await.map(drop)
    }

    /// Failed for this reason, of which the first 4 KiB are kept. Answers whether that parked the key.
    ///
    /// [`retry`](Self::retry), [`retry_after`](Self::retry_after) and [`park`](Self::park) do the same
    /// and do not answer. In each case a parked key is reported as an event of [`tracing`] with the
    /// target `requeue_store::parked` and the level `WARN`.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// use requeue_store::{Failed, Failure};
    ///
    /// let queue = store.queue("mail").max_failures(1).open().await?;
    /// queue.add("alice").await?;
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!(item.fail(Failure::Backoff, "no answer").await?, Failed::Parked);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn fail(
        self,
        failure: Failure,
        error: impl fmt::Display,
    ) -> Result<Failed, FinishError> {
        let options = &self.shared().options;
        let delay = match failure {
            Failure::Backoff => Delay::Backoff(options.failing()),
            Failure::After(delay) => Delay::Exactly(delay, options.max_failures),
            Failure::Final => Delay::Park,
        };
        let how = self.failure(delay, &error);
        Ok(if self.end(how).await? { Failed::Parked } else { Failed::Retried })
    }

    /// Failed for this reason, and tried again after `delay`: counted as an attempt, but the backoff
    /// grows no longer.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    pub async fn retry_after(
        self,
        delay: Duration,
        error: impl fmt::Display,
    ) -> Result<(), FinishError> {
        self.fail(Failure::After(delay), error).await.map(drop)
    }

    /// Failed permanently: parked with this reason until it is revived. If it was added meanwhile, it
    /// runs again instead, with its failures reset.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    pub async fn park(self, error: impl fmt::Display) -> Result<(), FinishError> {
        self.fail(Failure::Final, error).await.map(drop)
    }

    /// Succeeded, and again after `delay`.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    pub async fn requeue_after(self, delay: Duration) -> Result<(), FinishError> {
        let how = How::Later(delay, self.out.asked.priority);
        self.end(how).await.map(drop)
    }

    /// As if it had not been handed out: no failure, ready at once, behind those that are ready.
    ///
    /// # Errors
    ///
    /// As of [`succeed`](Self::succeed).
    pub async fn put_back(self) -> Result<(), FinishError> {
        let how = How::PutBack(self.out.asked);
        self.end(how).await.map(drop)
    }

    fn shared(&self) -> &Arc<Shared> {
        match &self.shared {
            Some(shared) => shared,
            // Only the methods that take the item by value, and its drop, take it.
            None => unreachable!("an item that has ended is gone"),
        }
    }

    fn failure(&self, delay: Delay, error: &impl fmt::Display) -> How {
        let error = prefix(&error.to_string(), LONGEST_ERROR).to_owned();
        How::Fail { delay, asked: self.out.asked, error }
    }

    /// Whether the key is parked by it.
    async fn end(mut self, how: How) -> Result<bool, FinishError> {
        let (reply, answered) = oneshot::channel();
        if let Some(shared) = self.shared.take() {
            self.send(&shared, how, Some(reply));
        }
        answered.await.unwrap_or_else(|_| {
            Err(FinishError::Unreachable("the runtime of the queue has ended".into()))
        })
    }

    fn send(&self, shared: &Shared, how: How, reply: Option<Reply>) {
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

    fn submit(&self, shared: &Shared, how: How, lease: Ending, reply: Option<Reply>) {
        let out = &self.out;
        let end = End { key: out.key.clone(), epoch: out.epoch, how };
        let shard = shared.engine.shard(&shared.place, &out.key);
        let failures = out.failures.saturating_add(1);
        shared.finishing.put(shard, Finishing::new(end, failures, lease, reply));
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            let delay = Delay::Backoff(shared.options.failing());
            let how = self.failure(delay, &"the worker ended without a word");
            self.send(&shared, how, None);
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
