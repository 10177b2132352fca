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

/// The default memory for the events of a controller, in bytes. It suffices for about 2,000 runs: a successful run has
/// an add of 64 bytes and two other events of 32 bytes. An add needs 64 bytes because it is debounced, even with a
/// debounce of zero. A manager with 20 controllers thus needs 5 MiB.
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
///     // The limits of controller-runtime.
///     .rate_limiter(|| {
///         let (base, max) = (Duration::from_millis(5), Duration::from_secs(1000));
///         ExponentialFailure::with_hasher(base, max, RandomState::new())
///     })
///     .fair_namespaces();
/// # drop(config);
/// ```
// The struct has many fields and no groups of fields, because each field is one setting with one method.
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
                // The seed comes from the random generator of this thread. A test that seeds this generator gets the
                // same delays each time.
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
    /// Sets the maximum number of objects that are reconciled at the same time.
    ///
    /// The default is 1, as in controller-runtime.
    ///
    /// The value 0 means 256. In kube, 0 is the default, and means no limit.
    pub const fn concurrency(mut self, concurrency: u16) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets how long an object must stay unchanged before it is reconciled.
    ///
    /// The default is zero, which disables the wait.
    ///
    /// Use this setting for objects that change several times within a short time.
    pub const fn debounce(mut self, debounce: Duration) -> Self {
        self.debounce = debounce;
        self
    }

    /// Sets the longest time by which further changes of an object can delay its run.
    ///
    /// The default is ten times [`debounce`](Self::debounce).
    ///
    /// kube has no such limit. There, an object that changes all the time is never reconciled.
    pub const fn debounce_max(mut self, most: Duration) -> Self {
        self.debounce_max = Some(most);
        self
    }

    /// Limits how often one object is reconciled, even if all of its runs succeed.
    ///
    /// The default is no limit.
    ///
    /// If an object changes more often, it waits until the pace permits its next run. This run serves all changes in
    /// the meantime. The setting stops hot loops, in which a controller's own writes trigger the controller again. All
    /// runs of such a loop succeed, so no backoff slows them down. If the pace is invalid, the controller ends with
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

    /// Sets the maximum number of consecutive retries of a failing object.
    ///
    /// The default is no limit.
    ///
    /// After these retries, the object is given up, and runs again only after a change. It then has the same number of
    /// retries again. Its backoff continues with the next longer delay, until a run succeeds or the object has a new
    /// generation.
    pub const fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// Sets the maximum duration of a run.
    ///
    /// The default is no limit.
    ///
    /// A longer run is dropped at an `await`, and is counted as a failure.
    pub const fn reconcile_timeout(mut self, timeout: Duration) -> Self {
        self.reconcile_timeout = Some(timeout);
        self
    }

    /// Sets the time limit for the first lists of all watches together.
    ///
    /// The default is 2 minutes.
    ///
    /// The controller reconciles no object before all watches have listed their objects. If a list is missing after
    /// this time, the controller ends with [`RunnerError::CacheSync`](super::RunnerError::CacheSync), which names the
    /// watch.
    ///
    /// In a [shard group](crate::Controller::shard_group), the same limit applies to the list of each shard that the
    /// process gains. If this list is missing after the limit, the controller hands its shards over, leaves the group,
    /// and ends with the same error.
    pub const fn cache_sync_timeout(mut self, timeout: Duration) -> Self {
        self.cache_sync_timeout = timeout;
        self
    }

    /// Sets how long a graceful shutdown waits for runs in flight.
    ///
    /// The default is 30 s.
    ///
    /// The controller then drops the remaining runs at an `await`. The error
    /// [`RunnerError::CutOff`](super::RunnerError::CutOff) names their objects.
    pub const fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Ends the controller when a reconciler or an error policy panics. The controller's stream then panics with the
    /// same payload.
    ///
    /// By default, a panic is handled like any other failure of a run.
    pub const fn propagate_panics(mut self) -> Self {
        self.recover_panic = false;
        self
    }

    /// Makes an object that gets a new generation wait for the end of its backoff.
    ///
    /// By default, such an object runs immediately, and its failures are forgotten, because the new generation may have
    /// removed their cause. Call this method if a reconciler creates generations of the object that it reconciles, and
    /// can fail afterwards. Without this call, the object also backs off, but runs [twice in each
    /// delay](crate::Controller#backoff-and-new-generations).
    pub const fn keep_backoff_on_new_generation(mut self) -> Self {
        self.clear_on_new_generation = false;
        self
    }

    /// Reconciles all objects of the controller's own kind, with [low priority](super::LOW_PRIORITY), each time that
    /// their watch lists them again. By default, unchanged objects are not reconciled after such a list.
    ///
    /// A watch lists all objects again if it cannot resume, after a long outage or after the response `410 Gone`. By
    /// default, the controller compares the uid and resource version of each object with those that it saw last. It
    /// thus finds every change, creation and deletion that it has missed, and reconciles only these objects. kube and
    /// controller-runtime reconcile all objects, once for each watch that lists again.
    ///
    /// An owned or watched object that is unchanged never causes a run, even with this setting.
    ///
    /// Watches do not list at regular intervals. To correct drift that no watch reports, return
    /// [`Action::requeue_after`](super::Action::requeue_after) or use
    /// [`reconcile_all_on`](crate::Controller::reconcile_all_on).
    pub const fn reconcile_unchanged(mut self) -> Self {
        self.reconcile_unchanged = true;
        self
    }

    /// Sets the maximum time for which an object waits until a watch reports a write that the object's last run has
    /// [recorded](super::Writes).
    ///
    /// The default is 10 s. Zero disables the wait.
    ///
    /// The time begins when the write is recorded. After this time, the object runs, even if the store does not contain
    /// the write yet.
    pub const fn own_writes_timeout(mut self, timeout: Duration) -> Self {
        self.own_writes_timeout = timeout;
        self
    }

    /// Suppresses the runs that this controller's own [recorded](super::Writes) writes would cause.
    ///
    /// If an event arrives while an object that it concerns has a run in flight, the controller keeps the event until
    /// the run has ended. The run may still record the write that caused the event. With
    /// [`in_flight_policy`](Self::in_flight_policy), such an event therefore does not restart the run. Deletions, new
    /// generations and objects in a list cause runs as usual. A run's write to its own object still causes runs of the
    /// other objects that this object concerns.
    ///
    /// A slow subscriber of a [`SharedWatch`](crate::shared::SharedWatch) receives several changes of an object as one
    /// event. This event causes a run, because one of the changes may be that of another client.
    ///
    /// A write that changes nothing returns the current version of the object, which another client may have created.
    /// The event of that client's change then causes no run. If other clients write the same objects, record only
    /// writes that have changed the object, for example writes with the resource version as a precondition.
    pub const fn suppress_own_writes(mut self) -> Self {
        self.suppress_own_writes = true;
        self
    }

    /// Sets what happens when an object changes during its run.
    ///
    /// The default is [`InFlightPolicy::After`]: the run continues, and the object then runs again.
    ///
    /// With [`InFlightPolicy::Restart`], the run is dropped at an `await`, and the object immediately runs again. The
    /// dropped run is neither a success nor a failure, and no metric counts it. Use this policy for long runs, if a
    /// change of the object makes the result of the run useless. A reconciler that writes its own object would restart
    /// its own run. To prevent this, ignore the events of these writes, or write only at the end of the run.
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

    /// Sets the function that creates the rate limiter. The rate limiter computes the delay after each failure.
    ///
    /// The default is [`BackoffLimiter`](requeue::limiter::BackoffLimiter): 5 ms, doubled with each consecutive
    /// failure, up to 5 min, with jitter.
    ///
    /// A limiter stores the keys of failing objects. If other users can create objects, give the limiter the hasher
    /// [`RandomState`], as in the example. These users then cannot choose names with equal hashes.
    pub fn rate_limiter<L>(mut self, make: impl Fn() -> L + Send + Sync + 'static) -> Self
    where
        L: RateLimiter<ObjectKey> + 'static,
    {
        self.rate_limiter = Arc::new(move || Box::new(make()));
        self
    }

    /// Sets how long objects of a high priority can delay an object of a lower priority.
    ///
    /// Among any `deliveries` consecutive deliveries, at least one is of the object that has been ready longest, at any
    /// priority.
    ///
    /// The default is 10. [`u32::MAX`] disables this rule.
    pub const fn oldest_every(mut self, deliveries: u32) -> Self {
        self.oldest_every = deliveries;
        self
    }

    /// Lets namespaces take turns within each priority. A namespace with many changes then does not delay the objects
    /// of other namespaces.
    pub const fn fair_namespaces(mut self) -> Self {
        self.fair_namespaces = true;
        self
    }

    /// Sets the maximum number of objects of one namespace that are reconciled at the same time.
    ///
    /// The default is no limit.
    ///
    /// All objects without a namespace together have one such limit.
    pub const fn namespace_limit(mut self, limit: u32) -> Self {
        self.namespace_limit = Some(limit);
        self
    }

    /// Sets the memory for the most recent events of objects: adds, waits, runs and their results.
    ///
    /// The default is 256 KiB, for the last 2,000 runs. An add takes 64 bytes, and most other events take 32. If the
    /// memory is 0, no event is recorded.
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

    /// Returns a builder for the queue of a controller with this configuration. With `places`, the queue group of a key
    /// is its shard. The queue uses the clock of the tokio runtime, so that a test can pause the time.
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
                // The hasher is random. Otherwise, a user could choose the name of a namespace so that it shares the
                // turns of another namespace.
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

    /// The type in this test also proves that the hasher is SipHash. With foldhash, a user who can create objects could
    /// choose keys with equal hashes.
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
