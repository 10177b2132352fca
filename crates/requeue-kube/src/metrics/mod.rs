//! Metrics of controllers, with the names, labels and buckets of controller-runtime's metrics.
//!
//! Dashboards and alerts that were written for controller-runtime also work with these metrics.

mod families;
mod meters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};

use educe::Educe;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use requeue_leases::LeaseMetrics;

use self::families::{FAMILIES, Sample, encode_family};
pub(crate) use self::meters::{Meters, Outcome};
use crate::ObjectQueue;

/// The metrics of the controllers that are in one Prometheus registry.
///
/// Create one value for each registry, and pass it to each [`Controller::metrics`](crate::Controller::metrics). The
/// metrics read the state of the controllers only when the registry is encoded. The series of a controller exist from
/// its start to its end.
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
/// [`requeue::metrics::Metrics`] describes how to export the metrics. Do not register both values in one registry,
/// because both contain series whose names begin with `workqueue_`.
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
/// | `stale_sync_timeouts_total` | `controller` | runs that started after the [limit](crate::controller::Config::own_writes_timeout), before a watch had shown all own writes |
/// | `workqueue_depth` | `name`, `controller`, `priority` | keys that are ready or dirty. With more than 25 priorities, all keys are counted under `exceeded_cardinality_limit`. |
/// | `workqueue_adds_total` | `name`, `controller` | keys that became ready, or dirty while in flight |
/// | `workqueue_retries_total` | `name`, `controller` | keys that run again after a delay: the backoff of a failure, or the delay that a success asked for |
/// | `workqueue_queue_duration_seconds` | `name`, `controller` | time from ready to delivery |
/// | `workqueue_work_duration_seconds` | `name`, `controller` | time from delivery to completion |
/// | `workqueue_unfinished_work_seconds` | `name`, `controller` | the sum of the times since delivery of all keys in flight |
/// | `workqueue_longest_running_processor_seconds` | `name`, `controller` | the longest time since delivery of a key in flight |
///
/// [`LeaseMetrics`] describes the series of elections and shard groups, which this value also contains.
///
/// A scrape reads only counters. Its duration does not depend on the number of keys.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Shown>);

impl Metrics {
    /// Creates the metrics, and registers them in `registry`.
    ///
    /// Call this function once for each registry. A second value in the same registry would write the headers of all
    /// families again.
    pub fn register(registry: &mut Registry) -> Self {
        let shown = Arc::new(Shown::default());
        registry.register_collector(Box::new(Arc::clone(&shown)));
        Self(shown)
    }

    pub(crate) fn show_series(&self, series: &Arc<Series>) {
        let mut controllers = self.0.controllers.lock();
        // The registry has only a weak reference to each controller, so the series of a controller end when it ends.
        controllers.retain(|_, series| series.strong_count() > 0);
        controllers.insert(series.name.clone(), Arc::downgrade(series));
    }
}

/// Returns the metrics of elections and shard groups in the same registry.
impl AsRef<LeaseMetrics> for Metrics {
    fn as_ref(&self) -> &LeaseMetrics {
        &self.0.leases
    }
}

/// The state from which the metrics of one controller are read. It exists while the controller runs.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) meters: Arc<Meters>,
    pub(crate) queue: ObjectQueue,
    priorities: Mutex<Priorities>,
}

/// All priorities that were seen so far. Each has a series that remains, even if no key has this priority now.
#[derive(Default)]
struct Priorities {
    seen: BTreeSet<i32>,
    exceeded: bool,
}

/// The maximum number of priorities with a series each, as in controller-runtime.
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

    /// Returns the depth for each value of the label `priority`. `total` is the depth of all priorities together.
    fn depths_by_priority(&self, total: usize) -> Vec<(String, usize)> {
        // The call returns at most one priority more than is permitted, which suffices to notice that the limit is
        // exceeded.
        let depths: BTreeMap<_, _> =
            self.queue.ready_and_dirty_by_priority(MOST_PRIORITIES + 1).into_iter().collect();
        let mut priorities = self.priorities.lock();
        priorities.seen.extend(depths.keys());
        // Once the limit is exceeded, the series of the single priorities never return. Otherwise, they would appear
        // and disappear repeatedly.
        priorities.exceeded |= priorities.seen.len() > MOST_PRIORITIES;
        if priorities.exceeded {
            priorities.seen.clear();
            return vec![("exceeded_cardinality_limit".to_owned(), total)];
        }
        // Every change has priority 0, so its series exists from the start.
        priorities.seen.insert(0);
        let depth = |priority: &i32| depths.get(priority).copied().unwrap_or(0);
        priorities.seen.iter().map(|priority| (priority.to_string(), depth(priority))).collect()
    }
}

/// The collector that is registered in the registry.
#[derive(Default, Educe)]
#[educe(Debug)]
struct Shown {
    #[educe(Debug(ignore))]
    controllers: Mutex<BTreeMap<String, Weak<Series>>>,
    leases: LeaseMetrics,
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let running: Vec<_> = self.controllers.lock().values().filter_map(Weak::upgrade).collect();
        let samples: Vec<_> = running.into_iter().map(Sample::read_series).collect();
        for family in FAMILIES.iter().filter(|_| !samples.is_empty()) {
            encode_family(family, &samples, &mut encoder)?;
        }
        self.leases.encode(encoder)
    }
}
