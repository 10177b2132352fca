//! The guard of a delivery. An item completes the delivery once: by a method that consumes the item, or when it is
//! dropped.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use requeue::{CancelReason, Completion};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::finishing::{Finishing, Reply};
use crate::client::leases::{Ending, Renewer, Signals};
use crate::client::shared::Shared;
use crate::engine::{Asked, Delivery, End, Failure, Finish};
use crate::types::add::Priority;
use crate::types::error::CompleteError;
use crate::types::inspect::Entry;
use crate::types::key::Key;
use crate::types::text::{prefix, suffix};

/// The maximum length of an error, in bytes. A longer error is truncated.
const MAX_ERROR: usize = 4096;
/// The maximum length of an output, in bytes. A longer output loses its beginning.
const MAX_OUTPUT: usize = 4096;

/// The effect that a completion had on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct Completed {
    /// True if the completion parked the key. The key was given up, or reached the limit of failures, and was not added
    /// during the run.
    pub parked: bool,
}

/// A key in flight. No other worker on any machine receives the key until its completion, or until its lease expires.
///
/// The process renews the lease while the item exists. If the lease is lost, [`lost`](Self::lost) becomes ready, and no
/// completion of this item has an effect. Other systems can compare the [`fencing_token`](Self::fencing_token) to
/// reject late writes of a worker that has lost its lease.
///
/// A worker completes the delivery with [`complete`](Self::complete), or with a shorthand for one [`Completion`]:
/// [`succeed`](Self::succeed), [`retry`](Self::retry), [`give_up`](Self::give_up) and [`release`](Self::release). **If
/// an item is dropped before its completion, its run has failed**, and the key is retried with backoff. If the run was
/// [cancelled](crate::Queue::cancel_running), the drop completes it with [`Completion::Cancelled`].
#[must_use = "an item that is dropped unfinished counts as failed"]
pub struct Item {
    /// The queue that the item belongs to. It is `None` after the completion.
    shared: Option<Arc<Shared>>,
    out: Delivery,
    /// The time for which the key had been ready when it was claimed. A key that returns to the store keeps this age.
    place: Duration,
    signals: Signals,
    since: Instant,
    /// The error that the store records if the run fails.
    error: Option<String>,
    exit_status: Option<i32>,
    /// The last part of the run's output.
    output: String,
}

impl Item {
    /// Creates the item of a key whose lease lasts until `deadline`. Returns `None` if this process already holds the
    /// delivery.
    pub(crate) fn hold(
        shared: Arc<Shared>,
        out: Delivery,
        deadline: Instant,
        renewer: Renewer,
    ) -> Option<Self> {
        // The lease is registered before the item exists, because the drop of an item ends a registered lease.
        let signals = shared.leases.hold_key(out.key.clone(), out.epoch, deadline, renewer)?;
        let (place, since) = (out.queued, Instant::now());
        Some(Self {
            shared: Some(shared),
            out,
            place,
            signals,
            since,
            error: None,
            exit_status: None,
            output: String::new(),
        })
    }

    /// Creates the item of a delivery that another program holds, from the entry of its key. Returns `None` if this
    /// process holds the delivery.
    pub(crate) fn resume(
        shared: Arc<Shared>,
        entry: Entry,
        epoch: i64,
        deadline: Instant,
    ) -> Option<Self> {
        let Entry { key, failures, group, since, cancelled, .. } = entry;
        // With these default parameters, the engine uses the parameters that it has stored with the delivery.
        let asked = Asked { adds: 0, ..Asked::default() };
        let (queued, group) = (Duration::ZERO, group.map(Arc::from));
        let out =
            Delivery { key, epoch, asked, failures, queued, group, trace: None, failed: None };
        let mut item = Self::hold(shared, out, deadline, Renewer::Client)?;
        item.since = item.since.checked_sub(since.unwrap_or_default()).unwrap_or(item.since);
        if cancelled.is_some() {
            item.signals.cancelled.cancel();
        }
        Some(item)
    }

    /// Leaves the delivery to another program, which renews and completes it.
    pub(crate) fn hand_over(mut self) {
        if let Some(shared) = self.shared.take() {
            shared.leases.hand_over(self.out.epoch);
        }
    }

    /// Delivers the key to a worker. Returns false if the lease is lost.
    pub(crate) fn begin_run(&mut self) -> bool {
        let now = Instant::now();
        // The wait also includes the time in this process, between the claim and the delivery.
        self.out.queued += now - self.since;
        self.since = now;
        self.shared().leases.begin_run(self.out.epoch, now)
    }

    /// Returns the time of the delivery to the worker or, before the delivery, the time at which the claim was
    /// answered.
    pub(crate) const fn delivered_at(&self) -> Instant {
        self.since
    }

    /// Returns the key to its place in the order, because no worker received it. Does nothing if the lease is lost.
    pub(crate) fn return_unclaimed(mut self) {
        let Some(shared) = self.shared.take() else { return };
        if let Some(lease) = shared.leases.begin_completion(self.out.epoch) {
            let how = Finish::Unclaim(self.out.asked, self.place);
            self.submit_completion(&shared, how, lease, None);
        }
    }

    /// Returns the key. The item also dereferences to the key.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.out.key
    }

    /// Returns the name of the group, or `None` if the queue has no [groups](crate::OpenOptions::group_by).
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
    /// queue.add("acme/1").await?;
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!(item.group(), Some("acme"));
    /// item.succeed().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.out.group.as_deref()
    }

    /// Returns the number of this attempt: 1 plus the number of consecutive failures before this run.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.out.failures.saturating_add(1)
    }

    /// Returns the number of adds that this run serves, at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.out.asked.adds
    }

    /// Returns the bitwise or of the flags of all adds that this run serves.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.out.asked.flags
    }

    /// Returns the highest priority of all adds that this run serves.
    #[must_use]
    pub const fn priority(&self) -> Priority {
        self.out.asked.priority
    }

    /// Sets the priority of the key's next run, if the completion of this delivery causes a further run. The default is
    /// the priority of this run.
    pub const fn set_priority(&mut self, priority: Priority) {
        self.out.asked.priority = priority;
    }

    /// Returns the fencing token: a number that grows with each delivery of the key. It also grows after a failover to
    /// a replica that lags, and after a restore from a backup.
    ///
    /// No two deliveries of a queue have the same token. The token is approximately the time of the delivery, in
    /// microseconds since 1970. Until the year 2255 the token is below 2⁵³, so JavaScript and JSON represent it
    /// exactly. It fits a `bigint` column. [`Context::fencing_token`] has the same type.
    ///
    /// [`Context::fencing_token`]: requeue::workers::Context::fencing_token
    #[must_use]
    pub const fn fencing_token(&self) -> u64 {
        // The token is never negative, because engines increase it from 0 or from the current time.
        self.out.epoch.unsigned_abs()
    }

    /// Returns the time for which the key was ready before this delivery. If the key was added again while it was in
    /// flight, this time begins with that add.
    pub(crate) const fn queued(&self) -> Duration {
        self.out.queued
    }

    /// Waits until the lease is lost.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the call can be repeated.
    pub async fn lost(&self) {
        self.signals.lost.cancelled().await;
    }

    /// Returns true if the lease is lost. If the result is false, no other worker received the key before this call.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.shared().leases.is_held(self.out.epoch)
    }

    /// Returns the reason why the run was [cancelled](crate::Queue::cancel_running), or `None` if it was not.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.signals.cancelled.is_cancelled().then_some(CancelReason::Cancelled)
    }

    /// Waits until the run is [cancelled](crate::Queue::cancel_running), and returns the reason.
    ///
    /// The worker should then stop, and complete the delivery with
    /// [`Completion::Cancelled`](requeue::Completion::Cancelled). Until the completion, the process renews the lease.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the call can be repeated.
    pub async fn cancelled(&self) -> CancelReason {
        self.signals.cancelled.cancelled().await;
        CancelReason::Cancelled
    }

    /// Begins the span of the run, and creates the spans of the wait before the run. Returns `None` if the queue was
    /// opened without [traces](crate::OpenOptions::traces).
    ///
    /// Each call creates the spans again. `Workers` call this method before they call a handler, so handlers must not
    /// call it.
    #[cfg(feature = "opentelemetry")]
    #[must_use]
    pub fn start_span(&self) -> Option<requeue::trace::RunSpan> {
        let shared = self.shared();
        if !shared.options.traces {
            return None;
        }
        let delivered = requeue::trace::Delivered {
            queue: Some(&shared.place.name),
            attempt: self.attempt(),
            adds: self.adds(),
            queued: Some(self.queued()),
        };
        // The engine's duration is the time until the claim. The wait in this process is added to it.
        let failed = self.out.failed.map(|ago| ago + self.queued().saturating_sub(self.place));
        let trace = self.out.trace.as_deref();
        Some(requeue::trace::RunSpan::start_stored(delivered, trace, failed))
    }

    pub(crate) const fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Sets the error of a failure. The store keeps the first 4 KiB of the error. If the completion is not a failure,
    /// the error has no effect.
    pub fn set_error(&mut self, error: impl fmt::Display) {
        let mut error = error.to_string();
        error.truncate(prefix(&error, MAX_ERROR).len());
        self.error = Some(error);
    }

    /// Sets the exit status of the command that the run has started. If the run fails, the store keeps the exit status:
    /// see [`Queue::attempts`](crate::Queue::attempts).
    pub const fn set_exit_status(&mut self, status: i32) {
        self.exit_status = Some(status);
    }

    /// Sets the output of the run. If the run fails, the store keeps the last 4 KiB of the output: see
    /// [`Queue::attempts`](crate::Queue::attempts). Invalid UTF-8 is replaced.
    pub fn set_output(&mut self, output: impl AsRef<[u8]>) {
        let output = output.as_ref();
        // Lossy decoding never shortens the text: a replacement character has three bytes, and replaces at most three.
        // Therefore, the last bytes suffice.
        let end = &output[output.len().saturating_sub(MAX_OUTPUT)..];
        // The cut may be inside a character. The remaining bytes of this character are removed.
        let rest = end.iter().take_while(|&&byte| byte & 0xc0 == 0x80).count();
        let end = if end.len() < output.len() { &end[rest.min(3)..] } else { end };
        self.output = suffix(&String::from_utf8_lossy(end), MAX_OUTPUT).to_owned();
    }

    /// Completes the delivery. Returns true if the completion has parked the key.
    ///
    /// A completion that parks the key is also reported as a [`tracing`] event with the target `requeue_store::parked`
    /// and the level `WARN`.
    ///
    /// # Errors
    ///
    /// - [`CompleteError::Lost`]: the lease expired before the completion.
    /// - [`CompleteError::Unsure`]: the completion was sent in time, but its answer was lost.
    /// - [`CompleteError::Dropped`]: the queue was dropped.
    /// - [`CompleteError::Unreachable`]: the store could not be reached before the lease expired.
    ///
    /// # Cancel safety
    ///
    /// The completion is sent when the future is first polled. If the future is dropped after that, the completion
    /// still takes effect. If the future is dropped before the first poll, the run has failed.
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
    pub async fn complete(mut self, completion: Completion) -> Result<Completed, CompleteError> {
        // The request is sent at the first poll. If the future is dropped later, the run is completed nevertheless.
        let how = self.resolve_completion(completion, "the run failed");
        let (reply, answered) = oneshot::channel();
        if let Some(shared) = self.shared.take() {
            self.send_completion(&shared, how, Some(reply));
        }
        let parked = answered.await.unwrap_or_else(|_| {
            Err(CompleteError::Unreachable("the runtime of the queue has stopped".into()))
        })?;
        Ok(Completed { parked })
    }

    /// Completes the delivery with [`Completion::Succeed`]: the run succeeded. The store forgets the key's failures.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`complete`](Self::complete).
    pub async fn succeed(self) -> Result<(), CompleteError> {
        self.complete(Completion::Succeed).await.map(drop)
    }

    /// Completes the delivery with [`Completion::Retry`]: the run failed with `error`. The key is retried after its
    /// backoff, or parked if it has reached the limit of failures.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`complete`](Self::complete).
    pub async fn retry(mut self, error: impl fmt::Display) -> Result<(), CompleteError> {
        self.set_error(error);
        self.complete(Completion::Retry).await.map(drop)
    }

    /// Completes the delivery with [`Completion::GiveUp`]: the run failed with `error`, and the key is parked until it
    /// is revived. If the key was added during the run, it runs again instead, and its failures are reset.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`complete`](Self::complete).
    pub async fn give_up(mut self, error: impl fmt::Display) -> Result<(), CompleteError> {
        self.set_error(error);
        self.complete(Completion::GiveUp).await.map(drop)
    }

    /// Completes the delivery with [`Completion::Release`]: the delivery is undone, and no failure is counted. The key
    /// is ready again, after all other ready keys.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`complete`](Self::complete).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`complete`](Self::complete).
    pub async fn release(self) -> Result<(), CompleteError> {
        self.complete(Completion::Release).await.map(drop)
    }

    fn shared(&self) -> &Arc<Shared> {
        match &self.shared {
            Some(shared) => shared,
            // Only the drop, and methods that consume the item, take the handle out of the item.
            None => unreachable!("a completed item cannot be used"),
        }
    }

    /// Returns the request to the engine for a completion. `error` is the error of a failure for which the worker has
    /// set none.
    fn resolve_completion(&mut self, completion: Completion, error: &str) -> Finish {
        let asked = self.out.asked;
        match completion {
            Completion::Succeed => Finish::Succeed,
            Completion::RequeueAfter(delay) => Finish::RequeueAfter(delay, asked.priority),
            Completion::RetryAfter(delay) => {
                let most = self.shared().options.max_failures;
                Finish::RetryAfter(delay, most, self.take_failure(error))
            }
            Completion::GiveUp => Finish::GiveUp(self.take_failure(error)),
            Completion::Release | Completion::ReleaseAfter(_) => Finish::Release(asked),
            Completion::Cancelled => Finish::Cancelled,
            // `Retry`, and completions that later versions may add.
            _ => Finish::Retry(self.shared().options.failing_rules(), self.take_failure(error)),
        }
    }

    fn take_failure(&mut self, error: &str) -> Failure {
        let error = self.error.take().unwrap_or_else(|| error.to_owned());
        Failure {
            took: Some(self.since.elapsed()),
            exit_status: self.exit_status,
            output: std::mem::take(&mut self.output),
            ..Failure::new(self.out.asked, error)
        }
    }

    fn send_completion(&self, shared: &Shared, how: Finish, reply: Option<Reply>) {
        let (out, meters, worked) = (&self.out, &shared.place.meters, self.since.elapsed());
        let Some(lease) = shared.leases.begin_completion(out.epoch) else {
            // The store counts the expiry as a failure, so the worker's completion has no effect.
            meters.lost(worked, out, self.cancel_reason().is_some());
            if let Some(reply) = reply {
                // The caller may have been dropped.
                let _ = reply.send(Err(CompleteError::Lost));
            }
            return;
        };
        meters.count_completion(worked, &how, out);
        self.submit_completion(shared, how, lease, reply);
    }

    fn submit_completion(&self, shared: &Shared, how: Finish, lease: Ending, reply: Option<Reply>) {
        let out = &self.out;
        let end = End { key: out.key.clone(), epoch: out.epoch, how };
        // Each shard has separate batches, because a shard that does not answer must not delay the others.
        let shard = shared.engine.shard_of(&shared.place, &out.key);
        let failures = out.failures.saturating_add(1);
        shared.finishing.put_wish(shard, Finishing::new(end, failures, lease, reply));
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // The completion of an item takes its handle.
        if self.shared.is_some() {
            let completion = match self.cancel_reason() {
                Some(_) => Completion::Cancelled,
                None => Completion::Retry,
            };
            let how =
                self.resolve_completion(completion, "the item was dropped before its completion");
            if let Some(shared) = self.shared.take() {
                self.send_completion(&shared, how, None);
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
