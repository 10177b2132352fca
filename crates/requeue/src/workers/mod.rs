//! Workers: a handler per key, run by as many tasks as asked for.

mod attempt;
mod net;
mod outcome;
mod source;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::attempt::Worker;
pub use self::outcome::{Action, Error};
pub use self::source::{Outcome, WorkItem, WorkQueue};
use crate::Drained;
use crate::clock::sleep_until;

type GiveUp<K> = Arc<dyn Fn(K, Error) + Send + Sync>;
type Finished<K> = Arc<dyn Fn(K) + Send + Sync>;
type SpanOf<K> = Arc<dyn Fn(&K, &Context) -> tracing::Span + Send + Sync>;

/// Runs a handler for each key of a queue.
///
/// Each of `concurrency` tasks takes a key, runs the handler for it, and ends the hand-out by what
/// the handler says: an [`Action`] is a success, an [`Error`] a failure that is retried with the
/// queue's backoff. A handler that panics has failed, and its worker lives on.
///
/// ```
/// use requeue::workers::{Action, Context, Error, Workers};
/// use requeue::Queue;
///
/// async fn reconcile(key: &'static str, context: Context) -> Result<Action, Error> {
///     if key == "flaky" && context.attempt() == 1 {
///         return Err("the first time fails".into());
///     }
///     Ok(Action::done())
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let queue = Queue::new();
/// queue.add_all(["steady", "flaky"]);
/// queue.close();
/// Workers::new(queue.clone(), reconcile).concurrency(4).max_retries(5).run().await;
/// assert_eq!((queue.counts().hand_outs, queue.counts().failures), (3, 1));
/// # });
/// ```
#[must_use = "workers do nothing before `run`"]
pub struct Workers<Q: WorkQueue, H> {
    queue: Q,
    handler: Arc<H>,
    options: Options<Q::Key>,
    concurrency: usize,
    drain_timeout: Option<Duration>,
}

/// What every worker needs to know.
struct Options<K> {
    max_retries: Option<u32>,
    timeout: Option<Duration>,
    grace: Duration,
    on_give_up: Option<GiveUp<K>>,
    on_finish: Option<Finished<K>>,
    span: Option<SpanOf<K>>,
}

impl<K> Clone for Options<K> {
    fn clone(&self) -> Self {
        Self {
            on_give_up: self.on_give_up.clone(),
            on_finish: self.on_finish.clone(),
            span: self.span.clone(),
            ..*self
        }
    }
}

impl<Q, H, F> Workers<Q, H>
where
    Q: WorkQueue,
    H: Fn(Q::Key, Context) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, Error>> + Send + 'static,
{
    /// One worker, no limit to retries, no time-out.
    pub fn new(queue: Q, handler: H) -> Self {
        let options = Options {
            max_retries: None,
            timeout: None,
            grace: Duration::from_secs(10),
            on_give_up: None,
            on_finish: None,
            span: None,
        };
        let handler = Arc::new(handler);
        Self { queue, handler, options, concurrency: 1, drain_timeout: None }
    }

    /// How many keys are worked on at once: 1 unless said, and 1 if 0 is said. To hand out nothing,
    /// [`pause`](crate::Queue::pause) the queue.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers.max(1);
        self
    }

    /// Gives a key up that fails `retries` times after its first run: its failures are forgotten,
    /// and [`on_give_up`](Self::on_give_up) is told. A key that was added again meanwhile is given
    /// a fresh start at once.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.options.max_retries = Some(retries);
        self
    }

    /// Fails an attempt that takes longer than `timeout`, by the queue's clock. Its
    /// [cancellation token](Context::cancelled) is cancelled first; when the
    /// [grace period](Self::grace) has passed, too, its future is dropped.
    ///
    /// An attempt that ends by itself within the grace period is believed: if it succeeds, it has
    /// succeeded. If it fails, the error says `timed out after 3s`, and its `source` is the
    /// handler's own; what comes next is as the handler said, whether a retry with backoff, one
    /// [after a delay](Error::retry_after), or [none](Error::terminal).
    ///
    /// Code that the handler has put into `spawn_blocking` can't be stopped: it goes on while the
    /// key may be with another worker.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// How long a cancelled attempt may take to end by itself; 10 s unless said.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// After the shutdown that [`run_until`](Self::run_until) waits for, cancels what is still
    /// running when `timeout` has passed, and begins nothing new. Without, all is waited for.
    ///
    /// What is cancelled has the [grace period](Self::grace) to end, so that **a shutdown takes up
    /// to both together**. Keep the sum below what kills the program: Kubernetes'
    /// `terminationGracePeriodSeconds` is 30 s by default, and the grace period is 10 s.
    ///
    /// Only code that blocks its thread is waited for longer, since nothing can stop it; and a store that
    /// has not heard yet of what has ended, for as long as the leases of that last.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = Some(timeout);
        self
    }

    /// Is told of each key that is given up: past [`max_retries`](Self::max_retries), or with an
    /// error that is [terminal](Error::terminal).
    ///
    /// It is called on the worker's task, before the hand-out ends: what takes long in it, or
    /// blocks, keeps the worker from its next key, and the runtime's thread from its other tasks.
    /// Send the key elsewhere for that. A panic in it is ignored.
    pub fn on_give_up(mut self, f: impl Fn(Q::Key, Error) + Send + Sync + 'static) -> Self {
        self.options.on_give_up = Some(Arc::new(f));
        self
    }

    /// Is told of each key whose attempt has ended, after the queue has been: a key that has failed
    /// is backing off by then. This is the moment to look whether what has failed is what there is
    /// to do still: if not, [`forget`](crate::Queue::forget) and [`add`](crate::Queue::add) the key. Before it, a
    /// key that is added again is with its worker, and the add becomes part of the retry.
    ///
    /// It is called on the worker's task, as [`on_give_up`](Self::on_give_up) is. By then the key
    /// may be with another worker. A panic in it is ignored.
    ///
    /// ```
    /// use requeue::limiter::ExponentialFailure;
    /// use requeue::workers::{Action, Context, Error, Workers};
    /// use requeue::Queue;
    /// use std::time::Duration;
    ///
    /// async fn reconcile(_key: &'static str, context: Context) -> Result<Action, Error> {
    ///     // What is wanted is something else with each run.
    ///     if context.adds() < 3 { Err("not that any more".into()) } else { Ok(Action::done()) }
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let hour = Duration::from_secs(3600);
    /// let queue = Queue::builder()
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
    /// // At once, and not after two hours.
    /// workers.run().await;
    /// # });
    /// ```
    pub fn on_finish(mut self, f: impl Fn(Q::Key) + Send + Sync + 'static) -> Self {
        self.options.on_finish = Some(Arc::new(f));
        self
    }

    /// The span that an attempt runs in. Unless said, it is called `attempt` and has the fields
    /// `key`, by its `Debug`, and `attempt`. A panic in it fails the attempt.
    pub fn span(
        mut self,
        f: impl Fn(&Q::Key, &Context) -> tracing::Span + Send + Sync + 'static,
    ) -> Self {
        self.options.span = Some(Arc::new(f));
        self
    }

    /// Works until the queue has ended and will hand out nothing any more.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped aborts its workers. The keys they had come back with backoff; what
    /// the report would have said of others, [`take_dropped`](crate::Queue::take_dropped) does.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn run(self) -> Drained<Q::Key> {
        self.run_until(std::future::pending()).await
    }

    /// Works until `shutdown` is ready, then shuts the queue down: what waits is dropped, what is
    /// ready and running is finished, for no longer than the
    /// [drain timeout](Self::drain_timeout). The report says what was left.
    ///
    /// With a queue in a store it also waits until that has heard of what has ended, as long as the
    /// leases last.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Drained<Q::Key> {
        let stop = CancellationToken::new();
        let mut workers = JoinSet::new();
        for _ in 0..self.concurrency {
            let worker = Worker {
                queue: self.queue.clone(),
                clock: self.queue.clock(),
                handler: Arc::clone(&self.handler),
                options: self.options.clone(),
                stop: stop.clone(),
            };
            workers.spawn(worker.work());
        }
        tokio::select! {
            () = all(&mut workers) => {}
            () = shutdown => {
                self.queue.shut_down();
                self.drain(&mut workers, &stop).await;
            }
        }
        self.queue.settled().await;
        self.queue.left()
    }

    /// Lets the workers finish, then makes them.
    async fn drain(&self, workers: &mut JoinSet<()>, stop: &CancellationToken) {
        let Some(timeout) = self.drain_timeout else { return all(workers).await };
        let clock = self.queue.clock();
        tokio::select! {
            () = all(workers) => return,
            () = sleep_until(&clock, clock.now() + timeout) => stop.cancel(),
        }
        // Each ends within the grace period: a worker that waits for a key does at once, and the
        // future of one that has a key is dropped then.
        all(workers).await;
    }
}

async fn all(workers: &mut JoinSet<()>) {
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

impl<K> Options<K> {
    /// Whether a key is given up if this attempt fails.
    fn is_last(&self, attempt: u32) -> bool {
        self.max_retries.is_some_and(|retries| attempt > retries)
    }
}

/// What a handler is told of its attempt.
#[derive(Clone, Debug)]
pub struct Context {
    attempt: u32,
    is_last: bool,
    adds: u32,
    reasons: u32,
    priority: i32,
    epoch: u64,
    token: CancellationToken,
}

impl Context {
    /// Which attempt this is: 1, and one more for each failure in a row before.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the key is given up if this attempt fails, by
    /// [`max_retries`](Workers::max_retries): the time to clean up, or to tell somebody.
    ///
    /// ```
    /// use requeue::workers::{Action, Context, Error, Workers};
    /// use requeue::Queue;
    ///
    /// async fn reconcile(_key: u32, context: Context) -> Result<Action, Error> {
    ///     assert_eq!(context.is_last_attempt(), context.attempt() == 3);
    ///     Err("never works".into())
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add(7);
    /// queue.close();
    /// Workers::new(queue.clone(), reconcile).max_retries(2).run().await;
    /// assert_eq!((queue.given_up(), queue.panics()), (1, 0));
    /// # });
    /// ```
    #[must_use]
    pub const fn is_last_attempt(&self) -> bool {
        self.is_last
    }

    /// How many adds this run stands for; at least 1.
    #[must_use]
    pub const fn adds(&self) -> u32 {
        self.adds
    }

    /// The reasons of those adds, or-ed.
    #[must_use]
    pub const fn reasons(&self) -> u32 {
        self.reasons
    }

    /// The highest priority of those adds.
    #[must_use]
    pub const fn priority(&self) -> i32 {
        self.priority
    }

    /// The fencing token: a number that is greater for each later delivery of the key.
    ///
    /// In memory it starts at 1 in each process. Only a queue in a store has numbers that outlive the
    /// process, so that other systems can refuse late writes by them.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Is ready when the attempt is to stop: it has timed out, its key is lost to it, or the workers
    /// are shut down and their drain timeout has passed. Who does not stop within the grace period is dropped.
    pub async fn cancelled(&self) {
        self.token.cancelled().await;
    }

    /// Whether the attempt is to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// The token itself, to be handed on.
    #[must_use]
    pub const fn token(&self) -> &CancellationToken {
        &self.token
    }
}
