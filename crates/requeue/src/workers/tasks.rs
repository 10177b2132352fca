//! Workers on tasks of a tokio runtime.
//!
//! A shutdown takes at most the sum of the drain timeout and the grace period, unless a handler
//! blocks its thread.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::attempt::Worker;
use super::options::Options;
use super::outcome::{Action, Error};
use super::source::WorkQueue;
use super::{Context, SpanOf};
use crate::Drained;
use crate::clock::sleep_until;

/// Runs a handler for each key of a queue, on tasks of a tokio runtime.
///
/// Each of `concurrency` tasks takes a key, runs the handler, and completes the delivery with the
/// result. An [`Action`] is a success. An [`Error`] is a failure, and the key is retried with the
/// backoff of the queue. A panic of the handler is a failure, and its worker continues. For code
/// without a runtime, there are [`ThreadWorkers`](super::ThreadWorkers).
///
/// # Examples
///
/// ```
/// use requeue::workers::{Action, Context, Error, Workers};
/// use requeue::Queue;
/// use std::time::Duration;
///
/// async fn reconcile(key: &'static str, context: Context) -> Result<Action, Error> {
///     if key == "flaky" && context.attempt() == 1 {
///         return Err("the first time fails".into());
///     }
///     Ok(Action::succeed())
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (base, max) = (Duration::from_millis(10), Duration::from_secs(300));
/// let queue = Queue::builder().backoff(base, max).build()?;
/// queue.add_all(["steady", "flaky"]);
/// queue.close();
/// Workers::new(queue.clone(), reconcile).concurrency(4).max_retries(20).run().await;
/// assert_eq!((queue.totals().deliveries, queue.totals().failures), (3, 1));
/// # Ok::<(), requeue::BuildError>(())
/// # }).unwrap();
/// ```
#[must_use = "workers do nothing until they are run"]
pub struct Workers<Q: WorkQueue, H> {
    pub(super) queue: Q,
    pub(super) handler: H,
    pub(super) options: Options<Q::Key>,
    pub(super) timeout: Option<Duration>,
    pub(super) span: Option<SpanOf<Q::Key>>,
    concurrency: usize,
    drain_timeout: Option<Duration>,
}

impl<Q, H, F> Workers<Q, H>
where
    Q: WorkQueue,
    H: Fn(Q::Key, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    /// Creates workers with one task, with an unlimited number of retries and without a timeout.
    pub fn new(queue: Q, handler: H) -> Self {
        Self {
            queue,
            handler,
            options: Options::new(),
            timeout: None,
            span: None,
            concurrency: 1,
            drain_timeout: None,
        }
    }

    /// Sets the number of tasks, which is the maximum number of keys that they have in flight.
    ///
    /// The default is 1, and 0 is treated as 1. To stop the deliveries,
    /// [`pause`](crate::Queue::pause) the queue.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers.max(1);
        self
    }

    /// Gives up a key when it has failed `retries` times after its first run, and then calls
    /// [`on_give_up`](Self::on_give_up).
    ///
    /// If the key was added during its last run, it runs again immediately, and its failures are
    /// forgotten.
    ///
    /// By default, the number of retries is unlimited. Choose a number whose backoffs together are
    /// longer than the outages that a key must survive. With the [default
    /// backoff](crate::Builder::backoff), 5 retries take 16 to 31 s, 7 retries 1 to 2 min, and 10
    /// retries 7 to 14 min.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.options.max_retries = Some(retries);
        self
    }

    /// Makes an attempt fail if it takes longer than `timeout`, measured by the clock of the queue.
    ///
    /// At that time, the [cancellation token](Context::cancelled) of the attempt is cancelled. If
    /// the attempt does not return within the [grace period](Self::grace), its future is dropped.
    /// By default, there is no timeout.
    ///
    /// If the attempt returns within the grace period, its result is used. If the result is an
    /// error, its text becomes, for example, `timed out after 3s`, and its `source` is the error of
    /// the handler. Its completion does not change.
    ///
    /// Code in `spawn_blocking` cannot be stopped. It continues, even if another worker already has
    /// the key.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the time within which a cancelled attempt must return. The default is 10 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// Limits the time for which [`run_until`](Self::run_until) waits after the shutdown.
    ///
    /// When `timeout` has passed, no more runs start, and the runs in flight are cancelled. By
    /// default, the time is unlimited.
    ///
    /// A cancelled run has the [grace period](Self::grace) to stop, so **a shutdown can take the
    /// sum of both times**. The sum must be shorter than the time after which the program is
    /// killed. In Kubernetes, this is `terminationGracePeriodSeconds`, which is 30 s by default.
    /// The grace period of a run is 10 s by default.
    ///
    /// A shutdown can take longer for two reasons. A handler that blocks its thread cannot be
    /// stopped. And if a store has not recorded all completions, the workers wait for the store as
    /// long as the leases last.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = Some(timeout);
        self
    }

    /// Calls `f` for each key that is given up: after [`max_retries`](Self::max_retries), or
    /// because of a [terminal](Error::terminal) error.
    ///
    /// The task of the worker calls the hook before it completes the delivery. If the hook blocks,
    /// the worker takes no further key, and the thread of the runtime runs no other task. Move long
    /// work to another task or thread. A panic of the hook is ignored.
    pub fn on_give_up(mut self, f: impl Fn(Q::Key, Error) + Send + Sync + 'static) -> Self {
        self.options.on_give_up = Some(Arc::new(f));
        self
    }

    /// Calls `f` with the key of each run, after the delivery is completed.
    ///
    /// At that time, a key that has failed is already backing off. If the failed run was for an
    /// outdated state, `f` can [`forget`](crate::Queue::forget) and [`add`](crate::Queue::add) the
    /// key, which ends the backoff. An add before the completion would become part of the retry.
    ///
    /// The task of the worker calls the hook, as with [`on_give_up`](Self::on_give_up). At that
    /// time, another worker may already have the key. A panic of the hook is ignored.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::limiter::ExponentialFailure;
    /// use requeue::workers::{Action, Context, Error, Workers};
    /// use requeue::{ReaddPolicy, Queue};
    /// use std::time::Duration;
    ///
    /// async fn reconcile(_key: &'static str, context: Context) -> Result<Action, Error> {
    ///     // Each run finds that the desired state has changed.
    ///     if context.adds() < 3 { Err("not that any more".into()) } else { Ok(Action::succeed()) }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let hour = Duration::from_secs(3600);
    /// let queue = Queue::builder()
    ///     .readd_policy(ReaddPolicy::Hold)
    ///     .limiter(ExponentialFailure::new(hour, hour))
    ///     .build()
    ///     .unwrap();
    /// queue.add("a");
    /// queue.close();
    /// let released = queue.clone();
    /// let workers = Workers::new(queue, reconcile).on_finish(move |key| {
    ///     if released.failures(key) > 0 {
    ///         released.forget(&key);
    ///         released.add(key);
    ///     }
    /// });
    /// // The runs follow each other immediately. Without the hook, they would take two hours.
    /// workers.run().await;
    /// # });
    /// ```
    pub fn on_finish(mut self, f: impl Fn(Q::Key) + Send + Sync + 'static) -> Self {
        self.options.on_finish = Some(Arc::new(f));
        self
    }

    /// Sets the function that creates the `tracing` span of an attempt.
    ///
    /// The default span is called `attempt`, and has the fields `key`, formatted with `Debug`, and
    /// `attempt`. If `f` panics, the attempt fails.
    pub fn span(
        mut self,
        f: impl Fn(&Q::Key, &Context) -> tracing::Span + Send + Sync + 'static,
    ) -> Self {
        self.span = Some(Arc::new(f));
        self
    }

    /// Runs the workers until the queue is closed or shut down, and delivers no more keys.
    ///
    /// Returns the numbers of remaining keys, and the dropped keys.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future aborts its workers. The keys that they have in flight are retried with a
    /// backoff. [`take_dropped`](crate::Queue::take_dropped) returns the keys that the result would
    /// have contained.
    pub async fn run(self) -> Drained<Q::Key> {
        self.run_until(std::future::pending()).await
    }

    /// Runs the workers until `shutdown` is ready, and then shuts the queue down. Returns the
    /// numbers of remaining keys, and the dropped keys.
    ///
    /// Waiting keys are dropped. Within the [drain timeout](Self::drain_timeout), ready keys are
    /// still delivered, and runs in flight complete. If the queue is in a store, the method also
    /// waits until the store has recorded the completions, as long as the leases last.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// As for [`run`](Self::run).
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Drained<Q::Key> {
        let this = Arc::new(self);
        let stop = CancellationToken::new();
        let mut workers = JoinSet::new();
        for _ in 0..this.concurrency {
            let (clock, stop) = (this.queue.clock(), stop.clone());
            let worker = Worker { workers: Arc::clone(&this), clock, stop };
            workers.spawn(worker.run_worker());
        }
        tokio::select! {
            biased;
            () = join_all(&mut workers) => {}
            () = shutdown => {
                this.queue.shut_down();
                this.drain_workers(&mut workers, &stop).await;
            }
        }
        // The last completions must be recorded first, so that the numbers of remaining keys are
        // right.
        this.queue.wait_settled().await;
        this.queue.take_left()
    }

    /// Waits for the workers. When the drain timeout has passed, cancels their runs.
    async fn drain_workers(&self, workers: &mut JoinSet<()>, stop: &CancellationToken) {
        let Some(timeout) = self.drain_timeout else { return join_all(workers).await };
        let clock = self.queue.clock();
        tokio::select! {
            biased;
            () = join_all(workers) => return,
            () = sleep_until(&clock, clock.now() + timeout) => stop.cancel(),
        }
        // Each worker stops within the grace period. A worker that waits for a key stops
        // immediately. If a worker has a key, the future of its run is dropped at the end of the
        // grace period at the latest.
        join_all(workers).await;
    }
}

async fn join_all(workers: &mut JoinSet<()>) {
    while workers.join_next().await.is_some() {}
}

impl<Q: WorkQueue + fmt::Debug, H> fmt::Debug for Workers<Q, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers")
            .field("queue", &self.queue)
            .field("concurrency", &self.concurrency)
            .field("max_retries", &self.options.max_retries)
            .finish_non_exhaustive()
    }
}
