//! The builder of a queue, which checks the settings.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::RandomState;
use requeue_core::limiter::RateLimiter;
use requeue_core::limiter::{BackoffLimiter, DEFAULT_BACKOFF, default_controller};
use requeue_core::{Config, CustomOrder, GroupId, InFlightPolicy, Order, Pace, ReaddPolicy};

use super::Queue;
use super::limiter::LockedLimiter;
use super::shared::Shared;
use crate::Key;
use crate::clock::{Clock, SystemClock};
use crate::metrics::MetricsProvider;
use crate::sync::{Arc, drop_quietly, quietly};

/// The memory for the events of a queue with traces, in bytes, unless the user sets it. The causes
/// of a wait are searched in the last 1,024 places of the recorder, which take half of this memory.
#[cfg(feature = "opentelemetry")]
const TRACED_EVENTS: usize = 64 << 10;

pub(super) type GroupOf<K> = Arc<dyn Fn(&K) -> GroupId + Send + Sync>;

/// Builds a [`Queue`].
///
/// The defaults are: first in, first out; [`ReaddPolicy::Hold`]; a [`backoff`](Self::backoff) from
/// 1 s to 5 min; [`SystemClock`]; and no metrics. No Cargo feature changes a default.
///
/// # Examples
///
/// ```
/// use requeue::limiter::ExponentialFailure;
/// use requeue::{Order, Queue, ReaddPolicy};
/// use std::time::Duration;
///
/// let queue: Queue<String> = Queue::builder()
///     .name("pods")
///     .readd_policy(ReaddPolicy::Replace)
///     .order(Order::Priority { oldest_every: 10 })
///     .limiter(ExponentialFailure::new(Duration::from_millis(5), Duration::from_secs(1000)))
///     .build()?;
/// # Ok::<(), requeue::BuildError>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder<K: Key, S = RandomState> {
    settings: Settings<K>,
    hasher: S,
}

/// The settings that do not depend on the hasher.
struct Settings<K: Key> {
    name: Option<Arc<str>>,
    config: Config<K>,
    /// The memory for events, in bytes, or `None` if the user has not set it.
    recording: Option<usize>,
    group_of: Option<GroupOf<K>>,
    limiter: Option<Box<dyn RateLimiter<K>>>,
    /// The first and the maximum delay of the default limiter.
    backoff: (Duration, Duration),
    /// Creates the default limiter from these two delays.
    default_limiter: fn(Duration, Duration) -> Box<dyn RateLimiter<K>>,
    clock: Option<Arc<dyn Clock>>,
    provider: Option<Arc<dyn MetricsProvider<K>>>,
    #[cfg(feature = "prometheus")]
    metrics: Option<crate::metrics::Metrics>,
    #[cfg(feature = "opentelemetry")]
    traces: bool,
}

/// The reason why a queue could not be built.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The group limit is zero, so the queue could never deliver a key.
    ZeroGroupLimit,
    /// `oldest_every` of [`Order::Priority`] is 0, which has no meaning. For first in, first out,
    /// use 1.
    ZeroOldestEvery,
    /// The pace permits no run, permits more than [`Pace::MAX_RUNS`] runs, or has a window of zero.
    InvalidPace(Pace),
    /// Another live queue with this name reports to the same metrics.
    DuplicateName(String),
    /// The queue has metrics, but no name.
    Unnamed,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroGroupLimit => {
                f.write_str("a group limit of 0 would stop all deliveries; use 1 or more")
            }
            Self::ZeroOldestEvery => f.write_str(
                "`oldest_every` is 0; use 1 for first in, first out, or more for priorities \
                 (u32::MAX sets no bound)",
            ),
            Self::InvalidPace(pace) => write!(
                f,
                "a pace of {} runs per {:?} is not possible; use 1 to {} runs, and a time above zero",
                pace.runs(),
                pace.per(),
                Pace::MAX_RUNS
            ),
            Self::DuplicateName(name) => {
                write!(
                    f,
                    "a queue named {name:?} already reports to these metrics; use another name"
                )
            }
            Self::Unnamed => f.write_str("a queue with metrics needs a name; call `Builder::name`"),
        }
    }
}

impl std::error::Error for BuildError {}

impl<K: Key> Builder<K> {
    pub(super) fn new() -> Self {
        let settings = Settings {
            name: None,
            config: Config::default(),
            recording: None,
            group_of: None,
            limiter: None,
            backoff: DEFAULT_BACKOFF,
            default_limiter: |base, max| Box::new(BackoffLimiter::new(base, max)),
            clock: None,
            provider: None,
            #[cfg(feature = "prometheus")]
            metrics: None,
            #[cfg(feature = "opentelemetry")]
            traces: false,
        };
        Self { settings, hasher: RandomState::default() }
    }

    /// Builds a queue whose settings are the defaults, which are valid.
    pub(super) fn build_valid(self) -> Queue<K> {
        match self.build() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the defaults are valid: {error}"),
        }
    }

    /// Creates a builder for a queue that handles re-adds and failures as client-go does. It has
    /// [`ReaddPolicy::KeepBoth`] and the limiter [`default_controller`].
    ///
    /// All other defaults are those of [`Queue::builder`]. The page "From client-go" lists the
    /// remaining differences.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Builder;
    /// use requeue::clock::FakeClock;
    /// use std::time::Duration;
    ///
    /// let queue = Builder::client_go().name("pods").clock(FakeClock::new()).build()?;
    /// queue.add_after("a", Duration::from_secs(10));
    /// queue.add("a");
    /// queue.try_get().expect("the add runs now").succeed();
    /// assert_eq!(queue.waiting(), 1); // the delayed add still waits
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn client_go() -> Self {
        Self::new().readd_policy(ReaddPolicy::KeepBoth).limiter(default_controller())
    }
}

impl<K: Key, S: BuildHasher> Builder<K, S> {
    /// Sets the name that the queue has in metrics.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Sets the re-add policy. It decides the effect of an add on a key that already waits, or that
    /// backs off after a failure.
    ///
    /// The default is [`ReaddPolicy::Hold`].
    pub fn readd_policy(mut self, policy: ReaddPolicy) -> Self {
        self.settings.config.readd_policy = policy;
        self
    }

    /// Sets the effect of an add on a key in flight.
    ///
    /// The default is [`InFlightPolicy::After`]. With [`InFlightPolicy::Restart`], the queue reads
    /// the clock in each operation. An add cancels the run in flight even if the queue is paused.
    /// The key then runs again when the queue is resumed.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Queue, InFlightPolicy};
    ///
    /// let queue = Queue::builder().in_flight_policy(InFlightPolicy::restart()).build()?;
    /// queue.add("build");
    /// let item = queue.try_get().unwrap();
    /// queue.add("build");
    /// assert!(item.cancel_reason().is_some());
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn in_flight_policy(mut self, policy: InFlightPolicy) -> Self {
        self.settings.config.in_flight_policy = policy;
        self
    }

    /// Limits how often one key runs, even if its runs succeed. By default, there is no limit.
    ///
    /// In every window of the length [`per`](Pace::per), at most [`runs`](Pace::runs) deliveries of
    /// one key start. If an add would exceed the pace, the key waits until the pace permits its
    /// run. Later adds become part of that run, so no add is dropped. Other keys do not wait.
    ///
    /// A [limiter](Self::limiter) delays only a key that fails. A pace also delays a key that
    /// succeeds, for example if the writes of a controller trigger its own key again. A released
    /// delivery is not included. Under [`ReaddPolicy::KeepBoth`], a run that the pace delays and
    /// the run of a delayed add become one run.
    ///
    /// For each key that ran within the last window, the queue stores a copy of the key and the
    /// times of its starts. Every operation reads the clock. Each delivery checks up to four of the
    /// copies, and removes those whose window is over. A queue without deliveries therefore keeps
    /// its copies.
    ///
    /// The start of a run is the time that the delivering call has read from the clock. The call
    /// reads the clock before it acquires the lock of the queue. The interval between two starts
    /// can therefore be too short by the time for which the call waited for the lock.
    /// [`Item::count_start`](crate::Item::count_start) sets a later time.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::clock::FakeClock;
    /// use requeue::{Pace, Queue};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let pace = Pace::new(2, Duration::from_secs(10));
    /// let queue = Queue::builder().clock(clock.clone()).pace(pace).build()?;
    /// for _ in 0..2 {
    ///     queue.add("busy");
    ///     queue.try_get().expect("the pace permits two runs").succeed();
    /// }
    /// queue.add("busy");
    /// assert!(queue.try_get().is_none());
    /// clock.advance(Duration::from_secs(10));
    /// assert_eq!(queue.try_get().as_deref(), Some(&"busy"));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn pace(mut self, pace: Pace) -> Self {
        self.settings.config.pace = Some(pace);
        self
    }

    /// Sets the order in which ready keys are delivered. The default is first in, first out.
    pub fn order(mut self, order: Order<K>) -> Self {
        self.settings.config.order = match order {
            Order::Custom(order) => {
                Order::Custom(Box::new(Fused { order: Some(order), broken: false, held: 0 }))
            }
            order => order,
        };
        self
    }

    /// Sets the function that returns the group of a key, for example its namespace or tenant.
    ///
    /// [`fair`](Self::fair), [`group_limit`](Self::group_limit) and [`Queue::group`] use the group.
    /// The queue calls the function at each add, without its lock. Groups need 40 more bytes for
    /// each key.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{GroupId, Queue};
    ///
    /// let queue: Queue<(&str, &str)> = Queue::builder()
    ///     .group_by(|(namespace, _)| GroupId::of(namespace))
    ///     .fair()
    ///     .build()?;
    /// queue.add_all([("busy", "a"), ("busy", "b"), ("busy", "c"), ("calm", "d")]);
    /// let order: Vec<_> = queue.get_many(4).now().iter().map(|item| item.1).collect();
    /// assert_eq!(order, ["a", "d", "b", "c"]);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn group_by(mut self, group: impl Fn(&K) -> GroupId + Send + Sync + 'static) -> Self {
        self.settings.group_of = Some(Arc::new(group));
        self
    }

    /// Makes the groups with ready keys of the same priority take turns.
    ///
    /// The weight of a group is the number of deliveries that it gets in each turn.
    pub fn fair(mut self) -> Self {
        self.settings.config.fair = true;
        self
    }

    /// Limits the number of keys of one group that are in flight at the same time.
    ///
    /// The minimum is 1. By default, there is no limit.
    pub fn group_limit(mut self, limit: u32) -> Self {
        self.settings.config.group_limit = Some(limit);
        self
    }

    /// Sets the delays of the default limiter. The delay is `base` after the first failure of a
    /// key, and doubles with each further failure, up to `max`. Jitter is applied to each delay.
    ///
    /// The default is 1 s and 5 min. A service on which the handler depends can then restart during
    /// ten retries. Choose a shorter `base` if most failures are conflicts that the next attempt
    /// resolves. Then also permit more [retries](crate::workers::ThreadWorkers::max_retries).
    /// [`BackoffLimiter::new`] describes the ranges.
    ///
    /// If [`limiter`](Self::limiter) is also called, this setting has no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use requeue::clock::FakeClock;
    /// use std::time::Duration;
    ///
    /// let second = Duration::from_secs(1);
    /// let queue = Queue::builder().clock(FakeClock::new()).backoff(second, 60 * second).build()?;
    /// queue.add("flaky");
    /// queue.try_get().unwrap().retry();
    /// assert!(queue.next_due().expect("it backs off") <= queue.now() + second);
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn backoff(mut self, base: Duration, max: Duration) -> Self {
        self.settings.backoff = (base, max);
        self
    }

    /// Sets the limiter, which computes how long a key waits after a failure.
    pub fn limiter(mut self, limiter: impl RateLimiter<K> + 'static) -> Self {
        self.settings.limiter = Some(Box::new(limiter));
        self
    }

    /// Sets the clock. The default is [`SystemClock`], inside and outside a tokio runtime.
    ///
    /// In a test that advances the time, use [`FakeClock`](crate::clock::FakeClock). In a test that
    /// pauses or advances the time of a tokio runtime, use `TokioClock`.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.settings.clock = Some(Arc::new(clock));
        self
    }

    /// Makes the queue track times: when keys became ready and were delivered. The queue then has
    /// histograms of how long keys were ready and in flight.
    ///
    /// Each operation then reads the clock. A queue with metrics always tracks times.
    pub fn track_times(mut self) -> Self {
        self.settings.config.track = true;
        self
    }

    /// Makes the queue record its last events in up to `bytes` bytes of memory, for
    /// [`Queue::history`] and [`Queue::recording`].
    ///
    /// Most events take 32 bytes, and the others take 64 bytes. If `bytes` is below 256, the queue
    /// records nothing. When the memory is full, new events overwrite the oldest ones. Each
    /// operation then reads the clock. By default, the queue records nothing.
    pub fn record_events(mut self, bytes: usize) -> Self {
        self.settings.recording = Some(bytes);
        self
    }

    /// Reports every event to the hooks of a metrics backend. The queue must have a name.
    pub fn metrics_provider(mut self, provider: Arc<dyn MetricsProvider<K>>) -> Self {
        self.settings.provider = Some(provider);
        self
    }

    /// Shows the queue in a Prometheus registry under its name. No other live queue of the registry
    /// may have the same name.
    #[cfg(feature = "prometheus")]
    pub fn metrics(mut self, metrics: &crate::metrics::Metrics) -> Self {
        self.settings.metrics = Some(metrics.clone());
        self
    }

    /// Creates OpenTelemetry spans for the waits and runs of keys: see [`trace`](crate::trace).
    ///
    /// For each pending run, the queue stores the trace contexts of up to nine adds, in addition to
    /// the record of the key. The queue also [tracks times](Self::track_times) and [records
    /// events](Self::record_events), because they show why a ready key waited. The events take 64
    /// KiB unless another size is set. By default, the queue creates no spans.
    #[cfg(feature = "opentelemetry")]
    pub fn traces(mut self) -> Self {
        self.settings.traces = true;
        self.track_times()
    }

    /// Sets the hasher of keys.
    ///
    /// The default is foldhash, which is fast. Each queue has a random seed, so an attacker cannot
    /// prepare keys with equal hashes in advance.
    ///
    /// foldhash does not hide its seed from an attacker who chooses keys and learns something about
    /// their hashes. Timing reveals something about hashes. So do [snapshots](Queue::snapshot) and
    /// their [cursors](crate::Cursor), which are in the order of the hashes. The queue compares a
    /// key with all other keys that have the same hash. Adding 32,000 keys with the same hash takes
    /// seconds, and the time grows with the square of the number of keys.
    ///
    /// If keys come from people or programs that you do not trust, use [`std::hash::RandomState`],
    /// which is SipHash. The default limiter then also uses SipHash. A [`limiter`](Self::limiter)
    /// that you set has a separate hasher: see [`BackoffLimiter::with_hasher`].
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use std::hash::RandomState;
    ///
    /// let queue: Queue<String, RandomState> =
    ///     Queue::builder().hasher(RandomState::new()).build()?;
    /// queue.add("a name that an untrusted user has chosen".to_owned());
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, T> {
        let mut settings = self.settings;
        // The user may have replaced the default hasher because it is not safe enough. The default
        // limiter must then not use it either.
        settings.default_limiter = |base, max| {
            let hasher = std::hash::RandomState::new();
            Box::new(BackoffLimiter::with_hasher(base, max, hasher))
        };
        Builder { settings, hasher }
    }

    /// Builds the queue.
    ///
    /// # Errors
    ///
    /// - [`BuildError::ZeroGroupLimit`]: the [group limit](Self::group_limit) is 0.
    /// - [`BuildError::ZeroOldestEvery`]: `oldest_every` of [`Order::Priority`] is 0.
    /// - [`BuildError::InvalidPace`]: the [pace](Self::pace) permits no run, permits more than
    ///   [`Pace::MAX_RUNS`] runs, or has a window of zero.
    /// - [`BuildError::Unnamed`]: the queue has metrics, but no name or an empty name.
    /// - [`BuildError::DuplicateName`]: another live queue with this name reports to the same
    ///   metrics.
    pub fn build(self) -> Result<Queue<K, S>, BuildError> {
        let settings = self.settings;
        let mut config = settings.config;
        config.groups = settings.group_of.is_some();
        if config.group_limit == Some(0) {
            return Err(BuildError::ZeroGroupLimit);
        }
        if matches!(config.order, Order::Priority { oldest_every: 0 }) {
            return Err(BuildError::ZeroOldestEvery);
        }
        if let Some(pace) = config.pace.filter(|pace| !pace.is_valid()) {
            return Err(BuildError::InvalidPace(pace));
        }
        let mut hooks = None;
        if let Some(provider) = settings.provider {
            let name = settings.name.as_deref().filter(|name| !name.is_empty());
            let name = name.ok_or(BuildError::Unnamed)?;
            config.track = true;
            hooks = Some(provider.queue(name));
        }
        #[cfg(feature = "prometheus")]
        if settings.metrics.is_some() {
            config.track = true;
        }
        let recording = settings.recording;
        #[cfg(feature = "opentelemetry")]
        let recording = recording.or_else(|| settings.traces.then_some(TRACED_EVENTS));
        config.recording = recording.unwrap_or_default();
        let (base, max) = settings.backoff;
        let limiter = settings.limiter.unwrap_or_else(|| (settings.default_limiter)(base, max));
        let clock = settings.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let limiter = LockedLimiter::new(limiter);
        let shared = Shared::new(
            config,
            clock,
            limiter,
            hooks,
            settings.name,
            #[cfg(feature = "opentelemetry")]
            settings.traces.then(|| Box::new(crate::trace::Traces::new())),
        );
        #[cfg(feature = "prometheus")]
        if let Some(metrics) = settings.metrics {
            let name = shared.name.as_ref().ok_or(BuildError::Unnamed)?;
            metrics.add_as(name, &shared)?;
        }
        Ok(Queue { shared, hasher: Arc::new(self.hasher), group_of: settings.group_of })
    }
}

impl<K: Key, S> fmt::Debug for Builder<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.settings.name)
            .field("readd_policy", &self.settings.config.readd_policy)
            .field("order", &self.settings.config.order)
            .finish_non_exhaustive()
    }
}

/// Wraps a custom order. After a panic of the order, it no longer calls the order, and the queue
/// delivers the keys by age.
struct Fused<K> {
    order: Option<Box<dyn CustomOrder<K>>>,
    broken: bool,
    /// The number of keys that were pushed and not popped.
    held: usize,
}

impl<K> Fused<K> {
    fn call_unless_broken<R>(&mut self, f: impl FnOnce(&mut dyn CustomOrder<K>) -> R) -> Option<R> {
        let order = self.order.as_deref_mut().filter(|_| !self.broken)?;
        let result = quietly(|| f(order));
        self.broken = result.is_none();
        result
    }
}

impl<K> CustomOrder<K> for Fused<K> {
    fn push(&mut self, key: K) {
        if self.broken {
            // The queue delivers the key by age. Only this copy of the key is dropped, under the
            // lock.
            return drop_quietly(key);
        }
        self.held += 1;
        self.call_unless_broken(|order| order.push(key));
    }

    fn touch(&mut self, key: &K) {
        self.call_unless_broken(|order| order.touch(key));
    }

    fn pop(&mut self) -> Option<K> {
        self.held = self.held.saturating_sub(1);
        self.call_unless_broken(|order| order.pop()).flatten()
    }

    fn len(&self) -> usize {
        let order = self.order.as_ref().filter(|_| !self.broken);
        order.and_then(|order| quietly(|| order.len())).unwrap_or(0)
    }
}

impl<K> Drop for Fused<K> {
    fn drop(&mut self) {
        // Each remaining key is dropped separately. If two keys panicked while one collection was
        // dropped, the process would abort.
        if std::mem::needs_drop::<K>() {
            while self.held > 0
                && let Some(key) = self.pop()
            {
                drop_quietly(key);
            }
        }
        let order = self.order.take();
        quietly(|| drop(order));
    }
}
