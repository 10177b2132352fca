//! Metrics of controllers, with controller-runtime's names, labels and buckets.
//!
//! Dashboards and alerts for controller-runtime work unchanged.

mod families;
mod meters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use self::families::{FAMILIES, Sample};
pub(crate) use self::meters::{Meters, Outcome, ShardMeters};
use crate::ObjectQueue;

/// The controllers in a Prometheus registry.
///
/// Create it once for a registry, and pass it to each
/// [`Controller::metrics`](crate::Controller::metrics). Controllers are read only when the registry
/// is encoded. Their series appear when a controller starts, and disappear when it ends.
///
/// ```
/// use prometheus_client::registry::Registry;
/// use requeue_kube::metrics::Metrics;
///
/// let mut registry = Registry::default();
/// let metrics = Metrics::register(&mut registry);
/// # drop(metrics);
/// ```
///
/// # Export
///
/// It works as for a queue: see [`requeue::metrics::Metrics`]. Do not register both in one
/// registry: both have series whose names begin with `workqueue_`.
///
/// # Series
///
/// | series | labels | value |
/// |---|---|---|
/// | `controller_runtime_reconcile_total` | `controller`, `result` | completed runs by result: `success`, `error`, `requeue` (with backoff) or `requeue_after`. A panic and a timeout are errors. |
/// | `controller_runtime_reconcile_errors_total` | `controller` | failed runs |
/// | `controller_runtime_terminal_reconcile_errors_total` | `controller` | failed runs for which the error policy returned [`terminal`](crate::controller::Action::terminal) |
/// | `controller_runtime_reconcile_panics_total` | `controller` | runs that panicked |
/// | `controller_runtime_reconcile_timeouts_total` | `controller` | runs that exceeded the [time limit](crate::controller::Config::reconcile_timeout) |
/// | `controller_runtime_reconcile_time_seconds` | `controller` | durations of runs |
/// | `controller_runtime_max_concurrent_reconciles` | `controller` | the limit of concurrent runs |
/// | `controller_runtime_active_workers` | `controller` | runs in flight |
/// | `stale_sync_skips_total` | `controller` | deliveries that waited because a watch had not shown the controller's [own writes](crate::controller::Writes) |
/// | `stale_sync_timeouts_total` | `controller` | runs that started without them after the [limit](crate::controller::Config::own_writes_timeout) |
/// | `workqueue_depth` | `name`, `controller`, `priority` | keys that are ready or dirty. With more than 25 priorities, all are counted under `exceeded_cardinality_limit`. |
/// | `workqueue_adds_total` | `name`, `controller` | keys that became ready, or dirty while in flight |
/// | `workqueue_retries_total` | `name`, `controller` | keys that came back after a delay: the backoff of a failure, or the delay that a success asked for |
/// | `workqueue_queue_duration_seconds` | `name`, `controller` | time from ready to delivery |
/// | `workqueue_work_duration_seconds` | `name`, `controller` | time from delivery to completion |
/// | `workqueue_unfinished_work_seconds` | `name`, `controller` | the sum of the times since delivery of all keys in flight |
/// | `workqueue_longest_running_processor_seconds` | `name`, `controller` | the longest of these times |
/// | `shard_group_shards_held` | `name` | shards of the [group](crate::shards) that this process holds |
/// | `shard_group_moves_total` | `name`, `reason` | shards that this process has received: by a `handover` of a live member, by a `takeover` from a dead one, or `first` without a former holder |
/// | `shard_group_unheld_seconds_total` | `name` | the sum over all shards of the times without a holder: counted by the former holder at a handover, and by the new one at a takeover |
/// | `leader_election_master_status` | `name` | 1 if this process holds the lease, otherwise 0: see [`leader`](Self::leader) |
///
/// A scrape reads counters. Its cost does not depend on the number of keys.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Shown>);

impl Metrics {
    /// Registers one collector in `registry`.
    ///
    /// Call it once for each registry: two collectors would both write the headers of all families.
    pub fn register(registry: &mut Registry) -> Self {
        let shown = Arc::new(Shown::default());
        registry.register_collector(Box::new(Arc::clone(&shown)));
        Self(shown)
    }

    /// Returns the gauge `leader_election_master_status` of the lease named `lease`.
    ///
    /// Its value is 0 until it is [set](MasterStatus::set). The gauge remains in the registry
    /// permanently.
    pub fn leader(&self, lease: &str) -> MasterStatus {
        lock(&self.0.leaders).entry(lease.to_owned()).or_default();
        MasterStatus { shown: Arc::clone(&self.0), lease: lease.to_owned() }
    }

    /// Returns the metrics of the shard group with this name.
    pub(crate) fn shards(&self, group: &str) -> Arc<ShardMeters> {
        Arc::clone(lock(&self.0.groups).entry(group.to_owned()).or_default())
    }

    pub(crate) fn show(&self, series: &Arc<Series>) {
        let mut controllers = lock(&self.0.controllers);
        controllers.retain(|_, series| series.strong_count() > 0);
        controllers.insert(series.name.clone(), Arc::downgrade(series));
    }
}

/// A gauge that shows whether this process holds a lease.
#[derive(Clone, Debug)]
pub struct MasterStatus {
    shown: Arc<Shown>,
    lease: String,
}

impl MasterStatus {
    /// Sets the gauge: 1 if `leads` is true, otherwise 0.
    pub fn set(&self, leads: bool) {
        lock(&self.shown.leaders).insert(self.lease.clone(), leads);
    }
}

/// The metrics of a controller, which exist as long as it runs.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) meters: Arc<Meters>,
    pub(crate) queue: ObjectQueue,
    priorities: Mutex<Priorities>,
}

/// The priorities that were seen. Their series remain.
#[derive(Default)]
struct Priorities {
    seen: BTreeSet<i32>,
    exceeded: bool,
}

/// controller-runtime's limit.
const MOST_PRIORITIES: usize = 25;

impl Series {
    pub(crate) fn new(name: String, workers: usize, queue: ObjectQueue) -> Arc<Self> {
        Arc::new(Self {
            name,
            workers,
            meters: Arc::default(),
            queue,
            priorities: Mutex::default(),
        })
    }

    /// Returns the depth for each value of the label `priority`.
    fn depths(&self) -> Vec<(String, usize)> {
        // One more than the limit, to detect that it is exceeded.
        let depths: BTreeMap<_, _> =
            self.queue.ready_and_dirty_by_priority(MOST_PRIORITIES + 1).into_iter().collect();
        let mut priorities = lock(&self.priorities);
        priorities.seen.extend(depths.keys());
        priorities.exceeded |= priorities.seen.len() > MOST_PRIORITIES;
        if priorities.exceeded {
            priorities.seen.clear();
            return vec![("exceeded_cardinality_limit".to_owned(), self.queue.ready_and_dirty())];
        }
        // Priority 0, which every change has, is present from the start.
        priorities.seen.insert(0);
        let depth = |priority: &i32| depths.get(priority).copied().unwrap_or(0);
        priorities.seen.iter().map(|priority| (priority.to_string(), depth(priority))).collect()
    }
}

/// The collector in the registry.
#[derive(Default)]
struct Shown {
    controllers: Mutex<BTreeMap<String, Weak<Series>>>,
    leaders: Mutex<BTreeMap<String, bool>>,
    groups: Mutex<BTreeMap<String, Arc<ShardMeters>>>,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let running: Vec<_> = lock(&self.controllers).values().filter_map(Weak::upgrade).collect();
        let samples: Vec<_> = running.iter().map(|series| Sample::read(series)).collect();
        for family in FAMILIES.iter().filter(|_| !samples.is_empty()) {
            family.encode(&samples, &mut encoder)?;
        }
        let leaders = lock(&self.leaders).clone();
        families::leaders(&leaders, &mut encoder)?;
        let groups = lock(&self.groups).clone();
        families::groups(&groups, &mut encoder)
    }
}
