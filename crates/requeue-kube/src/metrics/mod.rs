//! The metrics of controllers, as controller-runtime has them: names, labels and buckets, so that
//! its dashboards and alerts work unchanged.

mod families;
mod meters;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use requeue::Queue;

use self::families::{FAMILIES, Sample};
pub(crate) use self::meters::{Meters, Outcome};
use crate::ObjectKey;

/// The controllers of a Prometheus registry.
///
/// Made once for a registry and given to each
/// [`Controller::metrics`](crate::Controller::metrics). Controllers are read when the registry is
/// encoded, and not before. Their series come when they begin and go when they end.
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
/// # Serving it
///
/// As that of a queue: see [`requeue::metrics::Metrics`]. Let each registry have the one or the
/// other: both have series called `workqueue_`.
///
/// # Series
///
/// | series | labels | what |
/// |---|---|---|
/// | `controller_runtime_reconcile_total` | `controller`, `result` | runs that ended in `success`, `error`, `requeue` (with backoff) or `requeue_after`; a panic and a time-out are errors |
/// | `controller_runtime_reconcile_errors_total` | `controller` | runs that failed |
/// | `controller_runtime_terminal_reconcile_errors_total` | `controller` | of these, those that the error policy called [terminal](crate::controller::Action::terminal) |
/// | `controller_runtime_reconcile_panics_total` | `controller` | those that panicked |
/// | `controller_runtime_reconcile_timeouts_total` | `controller` | those that [took too long](crate::controller::Config::reconcile_timeout) |
/// | `controller_runtime_reconcile_time_seconds` | `controller` | how long runs took |
/// | `controller_runtime_max_concurrent_reconciles` | `controller` | how many objects are reconciled at once at most |
/// | `controller_runtime_active_workers` | `controller` | how many are |
/// | `workqueue_depth` | `name`, `controller`, `priority` | keys that are ready, or will be once their worker is done; with more than 25 priorities, all under `exceeded_cardinality_limit` |
/// | `workqueue_adds_total` | `name`, `controller` | keys that became ready, or dirty while with a worker |
/// | `workqueue_retries_total` | `name`, `controller` | keys that came back after a delay: a failure's, or what a success asked for |
/// | `workqueue_queue_duration_seconds` | `name`, `controller` | how long keys were ready before they were handed out |
/// | `workqueue_work_duration_seconds` | `name`, `controller` | how long workers had keys |
/// | `workqueue_unfinished_work_seconds` | `name`, `controller` | how long all keys with a worker have been with it, added up |
/// | `workqueue_longest_running_processor_seconds` | `name`, `controller` | the longest of these |
/// | `leader_election_master_status` | `name` | 1 where this process holds the lease: see [`leader`](Self::leader) |
///
/// A scrape reads counters: it takes no longer when there are more keys.
#[derive(Clone)]
pub struct Metrics(Arc<Shown>);

impl Metrics {
    /// Puts one collector into `registry`. Once for each registry: of two, both would write the
    /// heads of all families.
    pub fn register(registry: &mut Registry) -> Self {
        let shown = Arc::new(Shown::default());
        registry.register_collector(Box::new(Arc::clone(&shown)));
        Self(shown)
    }

    /// The gauge `leader_election_master_status` of the lease called `lease`: 0 until it is
    /// [set](MasterStatus::set). It stays.
    pub fn leader(&self, lease: &str) -> MasterStatus {
        lock(&self.0.leaders).entry(lease.to_owned()).or_default();
        MasterStatus { shown: Arc::clone(&self.0), lease: lease.to_owned() }
    }

    pub(crate) fn show(&self, series: &Arc<Series>) {
        let mut controllers = lock(&self.0.controllers);
        controllers.retain(|_, series| series.strong_count() > 0);
        controllers.insert(series.name.clone(), Arc::downgrade(series));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Whether this process holds a lease.
#[derive(Clone)]
pub struct MasterStatus {
    shown: Arc<Shown>,
    lease: String,
}

impl MasterStatus {
    /// Whether it does from now on.
    pub fn set(&self, leads: bool) {
        lock(&self.shown.leaders).insert(self.lease.clone(), leads);
    }
}

impl fmt::Debug for MasterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterStatus").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// What is shown of a controller, for as long as it runs.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) workers: usize,
    pub(crate) meters: Arc<Meters>,
    pub(crate) queue: Queue<ObjectKey>,
    priorities: Mutex<Priorities>,
}

/// The priorities that were seen: their series stay.
#[derive(Default)]
struct Priorities {
    seen: BTreeSet<i32>,
    exceeded: bool,
}

/// controller-runtime's bound.
const MOST_PRIORITIES: usize = 25;

impl Series {
    pub(crate) fn new(
        name: String,
        workers: usize,
        meters: Arc<Meters>,
        queue: Queue<ObjectKey>,
    ) -> Arc<Self> {
        Arc::new(Self { name, workers, meters, queue, priorities: Mutex::default() })
    }

    /// The depth for each value of the label `priority`.
    fn depths(&self) -> Vec<(String, usize)> {
        // One more than there may be shows that there are too many.
        let depths: BTreeMap<_, _> = self.queue.depths(MOST_PRIORITIES + 1).into_iter().collect();
        let mut priorities = lock(&self.priorities);
        priorities.seen.extend(depths.keys());
        priorities.exceeded |= priorities.seen.len() > MOST_PRIORITIES;
        if priorities.exceeded {
            priorities.seen.clear();
            return vec![("exceeded_cardinality_limit".to_owned(), self.queue.depth())];
        }
        // What every change has is there from the beginning.
        priorities.seen.insert(0);
        let depth = |priority: &i32| depths.get(priority).copied().unwrap_or(0);
        priorities.seen.iter().map(|priority| (priority.to_string(), depth(priority))).collect()
    }
}

/// The collector.
#[derive(Default)]
struct Shown {
    controllers: Mutex<BTreeMap<String, Weak<Series>>>,
    leaders: Mutex<BTreeMap<String, bool>>,
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
        let samples: Vec<_> = running.iter().map(|series| Sample::of(series)).collect();
        for family in FAMILIES.iter().filter(|_| !samples.is_empty()) {
            family.encode(&samples, &mut encoder)?;
        }
        let leaders = lock(&self.leaders).clone();
        families::leaders(&leaders, &mut encoder)
    }
}
