//! The configuration of a controller.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use educe::Educe;
use requeue::clock::TokioClock;
use requeue::limiter::BackoffLimiter;
use requeue::limiter::RateLimiter;
use requeue::{Builder, GroupId, InFlightPolicy, Order, Pace, Queue};

use super::error::RunnerError;
use super::ownership::Places;
use crate::ObjectKey;

/// The memory for events by default, in bytes. A successful run has an add of 64 bytes, and two other events of 32
/// bytes, so this memory suffices for the last 2,000 runs. An add is debounced even if the debounce is zero, and
/// therefore takes 64 bytes. A manager with 20 controllers takes 5 MiB for events.
const EVENTS: usize = 256 << 10;

type MakeLimiter = Arc<dyn Fn() -> Box<dyn RateLimiter<ObjectKey>> + Send + Sync>;

/// The configuration of a [`Controller`](crate::Controller).
///
/// ```
/// use requeue::limiter::ExponentialFailure;
/// use requeue_kube::controller::Config;
/// use std::hash::RandomState;
/// use std::time::Duration;
///
/// let config = Config::default()
///     .concurrency(8)
///     .reconcile_timeout(Duration::from_secs(60))
///     // As in controller-runtime.
///     .rate_limiter(|| {
///         let (base, max) = (Duration::from_millis(5), Duration::from_secs(1000));
///         ExponentialFailure::with_hasher(base, max, RandomState::new())
///     })
///     .fair_namespaces();
/// # drop(config);
/// ```
// The struct is flat although it has many fields, because each field is one setting with one
// method.
#[derive(Clone, Educe)]
#[educe(Debug)]
#[must_use = "a configuration does nothing until it is passed to a controller"]
pub struct Config {
    pub(super) concurrency: u16,
    pub(super) debounce: Duration,
    pub(super) debounce_max: Option<Duration>,
    pace: Option<Pace>,
    pub(super) max_retries: Option<u32>,
    pub(super) reconcile_timeout: Option<Duration>,
    pub(super) cache_sync_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(super) recover_panic: bool,
    pub(super) clear_on_new_generation: bool,
    pub(super) reconcile_unchanged: bool,
    pub(super) own_writes_timeout: Duration,
    pub(super) suppress_own_writes: bool,
    in_flight_policy: InFlightPolicy,
    #[educe(Debug(ignore))]
    pub(super) rate_limiter: MakeLimiter,
    oldest_every: u32,
    fair_namespaces: bool,
    namespace_limit: Option<u32>,
    record_events: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            concurrency: 1,
            debounce: Duration::ZERO,
            debounce_max: None,
            pace: None,
            max_retries: None,
            reconcile_timeout: None,
            cache_sync_timeout: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
            recover_panic: true,
            clear_on_new_generation: true,
            reconcile_unchanged: false,
            own_writes_timeout: Duration::from_secs(10),
            suppress_own_writes: false,
            in_flight_policy: InFlightPolicy::After,
            rate_limiter: Arc::new(|| {
                let (base, max) = (Duration::from_millis(5), Duration::from_secs(300));
                let limiter = BackoffLimiter::with_hasher(base, max, RandomState::new());
                // If a test seeds the random generator of this thread, all delays are repeatable.
                Box::new(limiter.seed(fastrand::u64(..)))
            }),
            oldest_every: 10,
            fair_namespaces: false,
            namespace_limit: None,
            record_events: EVENTS,
        }
    }
}

impl Config {
    /// Sets the number of objects that are reconciled concurrently.
    ///
    /// The default is 1, as in controller-runtime.
    ///
    /// 0 means 256. In kube, 0 is the default, and means no limit.
    pub const fn concurrency(mut self, concurrency: u16) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the time for which an object must stay unchanged before it is reconciled.
    ///
    /// The default is zero, which disables the wait.
    ///
    /// Use this setting for objects that change several times within a short time.
    pub const fn debounce(mut self, debounce: Duration) -> Self {
        self.debounce = debounce;
        self
    }

    /// Sets the longest time for which later changes can delay the run of a change.
    ///
    /// The default is ten times [`debounce`](Self::debounce).
    ///
    /// kube has no such bound, so an object that never stops changing is never reconciled.
    pub const fn debounce_max(mut self, most: Duration) -> Self {
        self.debounce_max = Some(most);
        self
    }

    /// Limits how often one object is reconciled, including after successes.
    ///
    /// The default is no limit.
    ///
    /// An object that changes more often waits until the pace permits its run. This run serves all changes so far. Use
    /// this setting against hot loops. A controller whose own writes trigger it again succeeds each time, so no backoff
    /// slows it down. If the pace is invalid, the controller ends with
    /// [`RunnerError::Config`](super::RunnerError::Config).
    ///
    /// ```
    /// use requeue::Pace;
    /// use requeue_kube::controller::Config;
    /// use std::time::Duration;
    ///
    /// // An object runs at most ten times in any minute.
    /// let config = Config::default().pace(Pace::new(10, Duration::from_secs(60)));
    /// # drop(config);
    /// ```
    pub const fn pace(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Sets the number of retries of a failing object.
    ///
    /// The default is no limit.
    ///
    /// An object that has used its retries is given up until it changes. After a change, the object has the same number
    /// of retries again. The backoff continues from the last delay, until the object succeeds or has a new generation.
    pub const fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// Sets the time limit of a run.
    ///
    /// The default is no limit.
    ///
    /// A run that exceeds the limit is dropped at an `await`, and counts as a failure.
    pub const fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// Sets the time in which all watches together must receive their first list.
    ///
    /// The default is 2 minutes.
    ///
    /// No object is reconciled before the first lists. If a watch has not received its list in time, the controller
    /// ends with [`RunnerError::CacheSync`](super::RunnerError::CacheSync), which names the watch.
    ///
    /// In a [shard group](crate::Controller::shard_group), the objects of a shard that the process receives must be
    /// listed within the same time. Otherwise the controller hands its shards over, leaves the group, and ends with the
    /// same error.
    pub const fn cache_sync_timeout(mut self, timeout: Duration) -> Self {
        self.cache_sync_timeout = timeout;
        self
    }

    /// Sets the time for which a graceful shutdown waits for runs in flight.
    ///
    /// The default is 30 s.
    ///
    /// After this time, the remaining runs are dropped at an `await`, and
    /// [`RunnerError::CutOff`](super::RunnerError::CutOff) names their objects.
    pub const fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Ends the controller when a reconciler or an error policy panics. The stream then panics with the same payload.
    ///
    /// By default, a panic counts as a failure.
    pub const fn propagate_panics(mut self) -> Self {
        self.recover_panic = false;
        self
    }

    /// Keeps the backoff of an object that gets a new generation.
    ///
    /// By default, the object then runs immediately, and its failures are cleared, because the new generation may have
    /// corrected the cause. Call this method if a reconciler creates generations of the objects that it reconciles and
    /// can fail afterwards. Without this call, such an object also backs off, but has [two runs for each
    /// delay](crate::Controller#backoff-and-new-generations).
    pub const fn keep_backoff_on_new_generation(mut self) -> Self {
        self.clear_on_new_generation = false;
        self
    }

    /// Runs every object of the controller's own kind, with [low priority](super::LOW_PRIORITY), when its watch lists
    /// it again. By default, an unchanged object does not run after such a list.
    ///
    /// A watch lists all objects again when it cannot resume: after a long outage, or when the API server answers `410
    /// Gone`. The controller compares the uid and the resource version of each object with the values that it last saw.
    /// The controller therefore reconciles every change, creation and deletion that it has missed, and runs no other
    /// object. kube and controller-runtime instead reconcile every object, once for each watch that lists again.
    ///
    /// Owned and watched objects that are unchanged never start a run.
    ///
    /// Lists have no fixed interval. To correct drift that no watch can show, return
    /// [`Action::requeue_after`](super::Action::requeue_after) or use
    /// [`reconcile_all_on`](crate::Controller::reconcile_all_on).
    pub const fn reconcile_unchanged(mut self) -> Self {
        self.reconcile_unchanged = true;
        self
    }

    /// Sets the longest time for which an object waits for an event of a write that its last run has
    /// [recorded](super::Writes).
    ///
    /// The default is 10 s. Zero disables the wait.
    ///
    /// The time is measured from the record of the write. After this time, the object runs even if the store does not
    /// contain the write yet.
    pub const fn own_writes_timeout(mut self, timeout: Duration) -> Self {
        self.own_writes_timeout = timeout;
        self
    }

    /// Starts no run for an event that only shows a [recorded](super::Writes) write of this controller.
    ///
    /// If an event arrives during a run of an object that the event concerns, the event waits for the end of the run,
    /// because the run may still record the write. With [`in_flight_policy`](Self::in_flight_policy), such an event
    /// therefore restarts no run. Deletions, new generations, and objects in a list start runs as usual. A write to the
    /// object of the run still starts runs of other objects that this object concerns.
    ///
    /// A slow subscriber of a [`SharedWatch`](crate::shared::SharedWatch) receives several changes of an object as one
    /// event. Such an event starts a run, because another client may have made one of the changes.
    ///
    /// A write that changes nothing returns the current version, which another client may have created. The event of
    /// this version then starts no run. If other clients write the same objects, record only writes that changed the
    /// object, such as those with a resource version as a precondition.
    pub const fn suppress_own_writes(mut self) -> Self {
        self.suppress_own_writes = true;
        self
    }

    /// Sets the effect of a change of an object that is being reconciled.
    ///
    /// The default is [`InFlightPolicy::After`]: the run continues, and the object runs once more after it.
    ///
    /// With [`InFlightPolicy::Restart`], the run is dropped at an `await`, and the object runs again immediately. A
    /// dropped run is neither a success nor a failure, and no metric counts its result. Choose this policy for long
    /// runs whose result a change makes useless. A reconciler that writes the object of its run thereby restarts the
    /// run. To prevent this, ignore these events, or write at the end of the run.
    ///
    /// ```
    /// use requeue::InFlightPolicy;
    /// use requeue_kube::controller::Config;
    /// use std::time::Duration;
    ///
    /// let config = Config::default().in_flight_policy(InFlightPolicy::Restart { at_most: Duration::from_secs(60) });
    /// # drop(config);
    /// ```
    pub const fn in_flight_policy(mut self, policy: InFlightPolicy) -> Self {
        self.in_flight_policy = policy;
        self
    }

    /// Sets the constructor of the rate limiter, which computes the delay after a failure.
    ///
    /// The default is [`BackoffLimiter`](requeue::limiter::BackoffLimiter): 5 ms, doubled with each consecutive
    /// failure, up to 5 min, with jitter.
    ///
    /// A limiter remembers the keys of objects that fail. If other users can create objects, give the limiter the
    /// hasher [`RandomState`], as in the example. These users then cannot choose names whose hashes are equal.
    pub fn rate_limiter<L>(mut self, make: impl Fn() -> L + Send + Sync + 'static) -> Self
    where
        L: RateLimiter<ObjectKey> + 'static,
    {
        self.rate_limiter = Arc::new(move || Box::new(make()));
        self
    }

    /// Sets the bound on the wait of low priorities.
    ///
    /// At least one of any `deliveries` consecutive deliveries takes the object that has been ready longest, at any
    /// priority.
    ///
    /// The default is 10. [`u32::MAX`] disables the bound.
    pub const fn oldest_every(mut self, deliveries: u32) -> Self {
        self.oldest_every = deliveries;
        self
    }

    /// Lets namespaces take turns within a priority, so that a namespace with many changes does not
    /// delay the other namespaces.
    pub const fn fair_namespaces(mut self) -> Self {
        self.fair_namespaces = true;
        self
    }

    /// Sets the number of objects of one namespace that are reconciled concurrently.
    ///
    /// The default is no limit.
    ///
    /// Objects without a namespace count as one namespace.
    pub const fn namespace_limit(mut self, limit: u32) -> Self {
        self.namespace_limit = Some(limit);
        self
    }

    /// Sets the memory for the last events of objects: adds, waits, runs and their results.
    ///
    /// The default is 256 KiB, for the last 2,000 runs. An add takes 64 bytes, and most other events take 32. 0 records
    /// nothing.
    ///
    /// The dashboard of the controller's queue shows the events of an object, and `requeue why NAMESPACE/NAME --server URL`
    /// prints them: see [`Builder::record_events`].
    pub const fn record_events(mut self, bytes: usize) -> Self {
        self.record_events = bytes;
        self
    }

    pub(super) fn worker_count(&self) -> usize {
        if self.concurrency == 0 { 256 } else { self.concurrency.into() }
    }

    /// Returns a builder for the queue that this configuration describes. With `places`, the group of a
    /// key is its shard. The queue uses the clock of the runtime, so
    /// that tests can pause the time of a controller.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(super) fn queue_builder(
        &self,
        places: Option<Arc<Places>>,
    ) -> Result<Builder<ObjectKey, RandomState>, RunnerError> {
        let mut queue = Queue::builder()
            .hasher(RandomState::new())
            .clock(TokioClock::current())
            .in_flight_policy(self.in_flight_policy)
            .record_events(self.record_events)
            .order(Order::Priority { oldest_every: self.oldest_every });
        if let Some(pace) = self.pace {
            queue = queue.pace(pace);
        }
        let by_namespace = self.fair_namespaces || self.namespace_limit.is_some();
        match places {
            Some(_) if by_namespace => {
                return Err(RunnerError::Config(
                    "a controller whose shards change cannot have fair namespaces or a limit of a \
                     namespace; remove one of the two settings"
                        .to_owned(),
                ));
            }
            Some(places) => queue = queue.group_by(move |key: &ObjectKey| places.group_of(key)),
            None if by_namespace => {
                // With a random hasher, users cannot choose a namespace whose name takes the turns of another
                // namespace.
                let hasher = RandomState::new();
                queue = queue.group_by(move |key: &ObjectKey| {
                    GroupId::new(hasher.hash_one(key.namespace()))
                });
            }
            None => {}
        }
        if self.fair_namespaces {
            queue = queue.fair();
        }
        Ok(match self.namespace_limit {
            Some(limit) => queue.group_limit(limit),
            None => queue,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::any::type_name_of_val;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_controller_records_events_unless_it_has_no_memory_for_them() {
        for (config, events) in [(Config::default(), 3), (Config::default().record_events(0), 0)] {
            let queue = config.queue_builder(None).unwrap().build().unwrap();
            let object = ObjectKey::new(Some("ns"), "name");
            queue.add(object.clone());
            queue.try_get().unwrap().succeed();
            assert_eq!(queue.history(&object).len(), events);
        }
    }

    /// The test also checks that the hasher is SipHash. With foldhash, a user who can create
    /// objects could choose keys that collide.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_runs_too_often_waits() {
        let minute = Duration::from_secs(60);
        let queue = Config::default()
            .pace(Pace::new(2, minute))
            .queue_builder(None)
            .unwrap()
            .build()
            .unwrap();
        let object = || ObjectKey::new(Some("ns"), "name");
        for _ in 0..2 {
            queue.add(object());
            queue.try_get().unwrap().succeed();
        }
        queue.add(object());
        assert!(queue.try_get().is_none());
        tokio::time::advance(minute).await;
        assert!(queue.try_get().is_some());
        let none =
            Config::default().pace(Pace::new(0, minute)).queue_builder(None).unwrap().build();
        assert!(none.is_err());
    }

    #[tokio::test]
    async fn a_controller_hashes_keys_with_siphash() {
        let queue =
            Config::default().fair_namespaces().queue_builder(None).unwrap().build().unwrap();
        let name = type_name_of_val(&queue);
        assert!(name.contains("std::hash::random::RandomState"), "{name}");
    }
}
