//! How a controller is to behave.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use requeue::limiter::BackoffLimiter;
use requeue::{Builder, EarlyAdd, Group, Order, Queue, RateLimiter};

use crate::ObjectKey;

type MakeLimiter = Arc<dyn Fn() -> Box<dyn RateLimiter<ObjectKey>> + Send + Sync>;

/// How a [`Controller`](crate::Controller) is to behave.
///
/// ```
/// use requeue::limiter::ExponentialFailure;
/// use requeue_kube::controller::Config;
/// use std::time::Duration;
///
/// let config = Config::default()
///     .concurrency(8)
///     .reconcile_timeout(Duration::from_secs(60))
///     // controller-runtime's.
///     .rate_limiter(|| {
///         ExponentialFailure::new(Duration::from_millis(5), Duration::from_secs(1000))
///     })
///     .fair_namespaces();
/// # drop(config);
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a controller has it"]
pub struct Config {
    pub(super) concurrency: u16,
    pub(super) debounce: Duration,
    pub(super) debounce_max: Option<Duration>,
    pub(super) max_retries: Option<u32>,
    pub(super) reconcile_timeout: Option<Duration>,
    pub(super) cache_sync_timeout: Duration,
    pub(super) shutdown_timeout: Duration,
    pub(super) recover_panic: bool,
    pub(super) clear_on_new_generation: bool,
    pub(super) reconcile_unchanged: bool,
    rate_limiter: Option<MakeLimiter>,
    oldest_every: u32,
    fair_namespaces: bool,
    namespace_limit: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            concurrency: 1,
            debounce: Duration::ZERO,
            debounce_max: None,
            max_retries: None,
            reconcile_timeout: None,
            cache_sync_timeout: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
            recover_panic: true,
            clear_on_new_generation: true,
            reconcile_unchanged: false,
            rate_limiter: None,
            oldest_every: 10,
            fair_namespaces: false,
            namespace_limit: None,
        }
    }
}

impl Config {
    /// How many objects are reconciled at once; 1 unless said, as in controller-runtime. In kube it
    /// is 0, which is no limit there and 256 here.
    pub const fn concurrency(mut self, concurrency: u16) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long a change has to be the last one before its object is reconciled; zero, which is not
    /// at all, unless said. For objects that change several times in a row.
    pub const fn debounce(mut self, debounce: Duration) -> Self {
        self.debounce = debounce;
        self
    }

    /// How long a change waits at most, however many follow it; ten times
    /// [`debounce`](Self::debounce) unless said. (In kube there is no bound, so that an object that
    /// never stops changing is never reconciled.)
    pub const fn debounce_max(mut self, most: Duration) -> Self {
        self.debounce_max = Some(most);
        self
    }

    /// How often an object that fails is tried again before it is given up until it changes; for
    /// ever unless said. It then has as many retries again, and the delays of its failures go on from
    /// where they were, until it succeeds or has a new generation.
    pub const fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// How long a run may take. One that takes longer is dropped, at an `await`, and has failed.
    /// There is no limit unless said.
    pub const fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// How long all watches together may take for their first list; 2 minutes unless said. Nothing
    /// is reconciled before. If one has not listed by then, the controller ends with
    /// [`RunnerError::CacheSync`](super::RunnerError::CacheSync), which names it.
    pub const fn cache_sync_timeout(mut self, timeout: Duration) -> Self {
        self.cache_sync_timeout = timeout;
        self
    }

    /// How long a graceful shutdown waits for what is running; 30 s unless said. What still runs
    /// then is dropped at an `await`, and named by a
    /// [`RunnerError::CutOff`](super::RunnerError::CutOff).
    pub const fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Whether a reconciler or error policy that panics has failed (the default), or takes the
    /// controller with it: the stream then panics with the same.
    pub const fn recover_panic(mut self, recover: bool) -> Self {
        self.recover_panic = recover;
        self
    }

    /// Whether a new generation of an object ends its backoff and clears its failures (the
    /// default), so that it is tried at once: somebody may have mended it. Say no where a reconciler
    /// makes generations of its own objects, and may fail afterwards: it backs off all the same, but
    /// runs [twice for each delay](crate::Controller#what-ends-a-wait).
    pub const fn clear_on_new_generation(mut self, clear: bool) -> Self {
        self.clear_on_new_generation = clear;
        self
    }

    /// Whether an object runs that its watch has seen again unchanged, with
    /// [low priority](crate::watch::LOW_PRIORITY). `false` by default.
    ///
    /// A watch lists all objects again when it can't resume: after a long outage, or when the API
    /// server answers `410 Gone`. The controller compares uid and resource version of each object
    /// with those that it last saw, so it reconciles every change, creation and deletion that it has
    /// missed, and nothing else. kube and controller-runtime reconcile every object instead, once for
    /// each watch that lists again. With `true`, every object of the controller's own kind runs when
    /// that kind is listed again; owned and watched objects that are unchanged start no run of their
    /// own.
    ///
    /// To correct drift that no watch can see, return
    /// [`Action::requeue`](super::Action::requeue) or use
    /// [`reconcile_all_on`](crate::Controller::reconcile_all_on): lists come at no fixed interval.
    pub const fn reconcile_unchanged(mut self, reconcile: bool) -> Self {
        self.reconcile_unchanged = reconcile;
        self
    }

    /// Makes what says how long an object waits after a failure. Unless said, it is
    /// [`BackoffLimiter`](requeue::limiter::BackoffLimiter): 5 ms, twice as long with each failure
    /// in a row, 5 min at most, with jitter.
    pub fn rate_limiter<L>(mut self, make: impl Fn() -> L + Send + Sync + 'static) -> Self
    where
        L: RateLimiter<ObjectKey> + 'static,
    {
        self.rate_limiter = Some(Arc::new(move || Box::new(make())));
        self
    }

    /// Of so many objects handed out in a row, one at least is the one that has been ready longest,
    /// whatever its priority: a bound on how long low priorities wait. 10 unless said;
    /// [`u32::MAX`] is none.
    pub const fn oldest_every(mut self, handed_out: u32) -> Self {
        self.oldest_every = handed_out;
        self
    }

    /// Namespaces take turns within a priority, so that one with many changes does not hold the
    /// others up.
    pub const fn fair_namespaces(mut self) -> Self {
        self.fair_namespaces = true;
        self
    }

    /// How many objects of one namespace are reconciled at once; no limit unless said. Objects
    /// without a namespace count as those of one.
    pub const fn namespace_limit(mut self, limit: u32) -> Self {
        self.namespace_limit = Some(limit);
        self
    }

    pub(super) fn workers(&self) -> usize {
        match self.concurrency {
            0 => 256,
            concurrency => usize::from(concurrency),
        }
    }

    /// What counts failures, and says how long they wait.
    pub(super) fn limiter(&self) -> Box<dyn RateLimiter<ObjectKey>> {
        match &self.rate_limiter {
            Some(make) => make(),
            // Another in each process, so that what fails together in several is spread.
            None => Box::new(BackoffLimiter::new(RandomState::new().hash_one(()))),
        }
    }

    /// The queue that these ask for.
    pub(super) fn queue(&self) -> Builder<ObjectKey> {
        let mut queue = Queue::builder()
            .early_add(EarlyAdd::Hold)
            .order(Order::Priority { oldest_every: self.oldest_every });
        if self.fair_namespaces || self.namespace_limit.is_some() {
            queue = queue.group_by(|key: &ObjectKey| Group::of(&key.namespace()));
        }
        if self.fair_namespaces {
            queue = queue.fair();
        }
        match self.namespace_limit {
            Some(limit) => queue.group_limit(limit),
            None => queue,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("concurrency", &self.concurrency)
            .field("debounce", &self.debounce)
            .field("max_retries", &self.max_retries)
            .field("reconcile_timeout", &self.reconcile_timeout)
            .finish_non_exhaustive()
    }
}
