//! The collector for `prometheus-client`. It reads the queues only while the registry is encoded.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use requeue_core::{ConsecutiveFailures, Histogram};

use self::Value::{Age, Count, Failures, FleetCount, FleetTimes, Keys, Times};
use super::{Sample, Scrape};
use crate::queue::Shared;
use crate::ranked_mutex::{Rank, RankedMutex};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, drop_quietly};
use crate::{BuildError, Key};

/// The queues that a Prometheus registry shows.
///
/// Create one collector for each registry, and pass it to each
/// [`Builder::metrics`](crate::Builder::metrics). The collector reads the queues only while the
/// registry is encoded. When the last handle and the last item of a queue are dropped, the series
/// of this queue disappear. Another queue can then use its name.
///
/// # Examples
///
/// ```
/// use prometheus_client::encoding::text;
/// use prometheus_client::registry::Registry;
/// use requeue::Queue;
/// use requeue::metrics::Metrics;
///
/// let mut registry = Registry::default();
/// let metrics = Metrics::register(&mut registry);
///
/// let queue = Queue::builder().name("pods").metrics(&metrics).build()?;
/// queue.add("default/web");
///
/// let mut body = String::new();
/// text::encode(&mut body, &registry)?;
/// assert!(body.contains("\nworkqueue_depth{name=\"pods\"} 1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Serving metrics
///
/// [`text::encode`](prometheus_client::encoding::text::encode) writes text in the OpenMetrics
/// format. Serve it with the header `Content-Type: application/openmetrics-text; version=1.0.0;
/// charset=utf-8`, to clients whose `Accept` header contains this type. The text is not valid as
/// `text/plain`: in OpenMetrics, the name of a counter family lacks the suffix `_total` of its
/// samples. A client that expects `text/plain` would find neither the type nor the help text of
/// counters. The `/metrics` endpoint of requeue-http serves both formats.
///
/// # Series
///
/// All series have the label `name`, which is the name of the queue. The first seven families come
/// from client-go, and have the names, help texts and buckets of Kubernetes. Dashboards and alerts
/// for Kubernetes therefore work unchanged. If the registry has a prefix or labels, they are added.
///
/// | series | type | meaning |
/// |---|---|---|
/// | `workqueue_depth` | gauge | ready and dirty keys |
/// | `workqueue_adds_total` | counter | how often a key became ready or dirty, as in client-go: [`Totals::enqueued`](crate::Totals::enqueued) |
/// | `workqueue_queue_duration_seconds` | histogram | time from becoming ready to the delivery |
/// | `workqueue_work_duration_seconds` | histogram | time in flight |
/// | `workqueue_unfinished_work_seconds` | gauge | sum of the times for which the present keys in flight have been in flight |
/// | `workqueue_longest_running_processor_seconds` | gauge | the longest time for which a key in flight has been in flight |
/// | `workqueue_retries_total` | counter | delayed adds, even with a delay of zero, without debounced adds |
/// | `workqueue_paused` | gauge | 1 if the queue is paused, and otherwise 0 |
/// | `workqueue_waiting` | gauge | keys that wait for a due time |
/// | `workqueue_backing_off` | gauge | waiting keys that back off; only of queues in memory |
/// | `workqueue_in_flight` | gauge | keys in flight |
/// | `workqueue_oldest_ready_seconds` | gauge | time for which the oldest ready key has been ready |
/// | `workqueue_at_group_limit` | gauge | ready keys whose groups have reached their limit; only of queues whose groups have a limit |
/// | `workqueue_oldest_at_group_limit_seconds` | gauge | time for which the oldest of these keys has been ready |
/// | `workqueue_coalesced_total` | counter | adds that became part of a run that was already pending |
/// | `workqueue_paced_total` | counter | runs that the pace delayed |
/// | `workqueue_failures_total` | counter | attempts that failed, including the last attempt of a key that was given up |
/// | `workqueue_consecutive_failures` | histogram | the consecutive failures of the key, observed at each failed attempt |
/// | `workqueue_given_up_total` | counter | keys given up, for example after too many failures |
/// | `workqueue_panics_total` | counter | attempts that panicked |
/// | `workqueue_parked` | gauge | parked keys; only of queues in a store |
/// | `workqueue_counts_age_seconds` | gauge | time since the store last counted its keys; only of queues in a store |
/// | `workqueue_fleet_adds_total`, `_coalesced_total`, `_starts_total`, `_successes_total`, `_failures_total`, `_given_up_total` | counter | the adds, deliveries and results of all processes; only of queues in a store, like the following series |
/// | `workqueue_fleet_queue_duration_seconds`, `_work_duration_seconds` | histogram | the times of all processes |
/// | `workqueue_fleet_workers` | gauge | workers that are alive, in all processes |
/// | `workqueue_fleet_longest_running_seconds` | gauge | the longest time in flight, among the first 256 keys in flight |
#[derive(Clone, Debug)]
pub struct Metrics {
    queues: Arc<Queues>,
}

/// The upper bounds of the buckets of histograms.
///
/// The bounds are the numbers that Kubernetes uses, so the buckets of programs in Go and in Rust
/// can be added. Some bounds are written differently (`0.000001` for `1e-06`). Prometheus parses
/// bounds as numbers, and version 3.0 and later store them in one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Buckets {
    /// The ten bounds of Kubernetes, from 10 ns to 10 s. Longer durations are only in the bucket
    /// `+Inf`.
    #[default]
    Kubernetes,
    /// The bounds of Kubernetes and two larger ones, 100 s and 1000 s, for runs that take minutes.
    Long,
}

impl Buckets {
    const fn bound_count(self) -> usize {
        match self {
            Self::Kubernetes => 10,
            Self::Long => Histogram::BUCKETS.len(),
        }
    }
}

impl Metrics {
    /// Registers a collector in `registry`, with the buckets of Kubernetes.
    ///
    /// Call this function only once for each registry. Two collectors would both write the headers
    /// of all families.
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_with(registry, Buckets::default())
    }

    /// Registers a collector as [`register`](Self::register) does, with the given buckets.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use requeue::metrics::{Buckets, Metrics};
    ///
    /// let mut registry = Registry::default();
    /// let metrics = Metrics::register_with(&mut registry, Buckets::Long);
    /// # drop(metrics);
    /// ```
    pub fn register_with(registry: &mut Registry, buckets: Buckets) -> Self {
        let queues = Arc::new(Queues {
            buckets,
            by_name: Mutex::new(ByName { queues: BTreeMap::new(), sweep_at: SWEEP_FROM }),
            scraping: RankedMutex::new(()),
        });
        registry.register_collector(Box::new(Arc::clone(&queues)));
        Self { queues }
    }

    /// Shows a queue as `name` until the queue is dropped.
    ///
    /// For a queue of this crate, [`Builder::metrics`](crate::Builder::metrics) does this.
    ///
    /// # Errors
    ///
    /// - [`BuildError::Unnamed`]: the name is empty.
    /// - [`BuildError::DuplicateName`]: the collector already shows a live queue with this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::encoding::text;
    /// use prometheus_client::registry::Registry;
    /// use requeue::metrics::{Metrics, Sample, Scrape};
    /// use std::sync::Arc;
    ///
    /// struct Elsewhere;
    ///
    /// impl Scrape for Elsewhere {
    ///     fn scrape(&self) -> Option<Sample> {
    ///         let mut sample = Sample::default();
    ///         sample.depth = 3;
    ///         Some(sample)
    ///     }
    /// }
    ///
    /// let mut registry = Registry::default();
    /// let queue = Arc::new(Elsewhere);
    /// Metrics::register(&mut registry).add("mail", &queue)?;
    ///
    /// let mut body = String::new();
    /// text::encode(&mut body, &registry)?;
    /// assert!(body.contains("\nworkqueue_depth{name=\"mail\"} 3\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // This method is hidden, because only requeue-store has queues of another type.
    #[doc(hidden)]
    pub fn add<Q: Scrape + 'static>(&self, name: &str, queue: &Arc<Q>) -> Result<(), BuildError> {
        self.add_as(&name.into(), queue)
    }

    pub(crate) fn add_as<Q: Scrape + 'static>(
        &self,
        name: &Arc<str>,
        queue: &Arc<Q>,
    ) -> Result<(), BuildError> {
        if name.is_empty() {
            return Err(BuildError::Unnamed);
        }
        let queue: Arc<dyn Scrape> = Arc::<Q>::clone(queue);
        if self.queues.add_queue(name, &queue) {
            return Ok(());
        }
        // A scrape in progress may own the last reference to the other queue. When the scrape has
        // ended, the name is free.
        drop(self.queues.scraping.lock(Some(Rank::Scrape)));
        let added = self.queues.add_queue(name, &queue);
        added.then_some(()).ok_or_else(|| BuildError::DuplicateName(name.to_string()))
    }
}

impl<K: Key> Scrape for Shared<K> {
    fn scrape(&self) -> Option<Sample> {
        self.read_sample()
    }
}

/// The collector that is registered, and that all `Metrics` of the registry share.
struct Queues {
    buckets: Buckets,
    by_name: Mutex<ByName>,
    /// A scrape holds this lock while it owns references to queues. It cannot use the lock of
    /// `by_name`: dropping the last reference to a queue runs user code, which may call this
    /// collector.
    scraping: RankedMutex<()>,
}

struct ByName {
    queues: BTreeMap<Arc<str>, Weak<dyn Scrape>>,
    /// When the map has this number of entries, the next new queue removes the entries of dropped
    /// queues, in case no scrape does.
    sweep_at: usize,
}

const SWEEP_FROM: usize = 16;

impl Queues {
    fn by_name(&self) -> MutexGuard<'_, ByName> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue. Returns `false` if a live queue already has this name.
    fn add_queue(&self, name: &Arc<str>, queue: &Arc<dyn Scrape>) -> bool {
        let mut by_name = self.by_name();
        if by_name.queues.len() >= by_name.sweep_at {
            by_name.queues.retain(|_, queue| queue.strong_count() > 0);
            by_name.sweep_at = SWEEP_FROM.max(2 * by_name.queues.len());
        }
        let queue = Arc::downgrade(queue);
        match by_name.queues.entry(Arc::clone(name)) {
            Entry::Occupied(taken) if taken.get().strong_count() > 0 => return false,
            Entry::Occupied(mut dead) => drop(dead.insert(queue)),
            Entry::Vacant(free) => drop(free.insert(queue)),
        }
        true
    }

    fn read_samples(&self) -> Vec<(Arc<str>, Sample)> {
        let scraping = self.scraping.lock(Some(Rank::Scrape));
        let mut queues = Vec::new();
        self.by_name().queues.retain(|name, queue| {
            // No queue may be dropped under this lock, because dropping the last reference to a
            // queue runs user code.
            let queue = queue.upgrade().map(|queue| queues.push((Arc::clone(name), queue)));
            queue.is_some()
        });
        let sample = |(name, queue): (Arc<str>, Arc<dyn Scrape>)| {
            let sample = queue.scrape();
            drop_quietly(queue);
            Some((name, sample?))
        };
        let samples = queues.into_iter().filter_map(sample).collect();
        drop(scraping);
        samples
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.by_name().queues.keys().cloned().collect();
        f.debug_list().entries(names).finish()
    }
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.read_samples();
        if samples.is_empty() {
            return Ok(());
        }
        for (name, help, value) in FAMILIES {
            if !samples.iter().any(|(_, sample)| value.is_kept(sample)) {
                continue;
            }
            let mut encoder = encoder.encode_descriptor(name, help, None, value.metric_type())?;
            for (name, sample) in samples.iter().filter(|(_, of)| value.is_kept(of)) {
                let labels = [("name", &**name)];
                value.encode_value(sample, self.buckets, encoder.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A family of metrics: its name, its help text and its value. The name includes the unit, but not
/// the suffix `_total` of counters.
type Family = (&'static str, &'static str, Value<Sample>);

/// The function that reads the value of a family from a sample. Each variant is one kind of value.
// The type is hidden, because only requeue-kube needs it, for its own families of metrics.
#[doc(hidden)]
#[derive(Debug)]
pub enum Value<S> {
    Count(fn(&S) -> u64),
    /// A number of keys. `None` means that the queue does not count such keys.
    Keys(fn(&S) -> Option<usize>),
    /// An age. `None` means that the queue does not measure it.
    Age(fn(&S) -> Option<Duration>),
    Times(fn(&S) -> &Histogram),
    /// A counter over all processes. `None` means that only one process uses the queue.
    FleetCount(fn(&S) -> Option<u64>),
    FleetTimes(fn(&S) -> Option<&Histogram>),
    Failures(fn(&S) -> &ConsecutiveFailures),
}

impl<S> Value<S> {
    pub const fn metric_type(&self) -> MetricType {
        match self {
            Self::Count(_) | Self::FleetCount(_) => MetricType::Counter,
            Self::Keys(_) | Self::Age(_) => MetricType::Gauge,
            Self::Times(_) | Self::FleetTimes(_) | Self::Failures(_) => MetricType::Histogram,
        }
    }

    fn is_kept(&self, of: &S) -> bool {
        match self {
            Self::Keys(read) => read(of).is_some(),
            Self::Age(read) => read(of).is_some(),
            Self::FleetCount(read) => read(of).is_some(),
            Self::FleetTimes(read) => read(of).is_some(),
            Self::Count(_) | Self::Times(_) | Self::Failures(_) => true,
        }
    }

    pub fn encode_value(&self, of: &S, buckets: Buckets, mut to: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(read) => encode_count(read(of), to),
            Self::FleetCount(read) => encode_count(read(of).unwrap_or_default(), to),
            Self::FleetTimes(read) => {
                encode_histogram(read(of).unwrap_or(&Histogram::default()), buckets, to)
            }
            Self::Keys(read) => to.encode_gauge(&read(of).unwrap_or_default()),
            Self::Age(read) => to.encode_gauge(&read(of).unwrap_or_default().as_secs_f64()),
            Self::Times(read) => encode_histogram(read(of), buckets, to),
            Self::Failures(read) => encode_failures(read(of), to),
        }
    }
}

fn encode_count(count: u64, mut to: MetricEncoder<'_>) -> fmt::Result {
    to.encode_counter(&count, None::<&Exemplar<NoLabelSet, u64>>)
}

fn encode_histogram(times: &Histogram, buckets: Buckets, mut to: MetricEncoder<'_>) -> fmt::Result {
    let bounds = buckets.bound_count();
    let mut counts = [(f64::INFINITY, 0); Histogram::BUCKETS.len() + 1];
    for (i, &n) in times.counts.iter().enumerate() {
        match Histogram::BUCKETS.get(i).filter(|_| i < bounds) {
            Some(&bound) => counts[i] = (bound, n),
            None => counts[bounds].1 += n,
        }
    }
    let seconds = times.sum as f64 / 1e9;
    to.encode_histogram::<NoLabelSet>(seconds, times.count(), &counts[..=bounds], None)
}

fn encode_failures(failures: &ConsecutiveFailures, mut to: MetricEncoder<'_>) -> fmt::Result {
    let ConsecutiveFailures { counts, sum } = failures;
    let bounds = ConsecutiveFailures::BUCKETS.iter().map(|&bound| bound.into());
    let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts.iter().copied()).collect();
    to.encode_histogram::<NoLabelSet>(*sum as f64, counts.iter().sum(), &buckets, None)
}

const FAMILIES: [Family; 32] = [
    // The help texts are those of Kubernetes' component-base, without the prefix about their
    // stability.
    ("workqueue_depth", "Current depth of workqueue", Keys(|of| Some(of.depth))),
    ("workqueue_adds", "Total number of adds handled by workqueue", Count(|of| of.totals.enqueued)),
    (
        "workqueue_queue_duration_seconds",
        "How long in seconds an item stays in workqueue before being requested.",
        Times(|of| &of.times.queued),
    ),
    (
        "workqueue_work_duration_seconds",
        "How long in seconds processing an item from workqueue takes.",
        Times(|of| &of.times.worked),
    ),
    (
        "workqueue_unfinished_work_seconds",
        "How many seconds of work has done that is in progress and hasn't been observed by \
         work_duration. Large values indicate stuck threads. One can deduce the number of \
         stuck threads by observing the rate at which this increases.",
        Age(|of| Some(of.times.unfinished_work)),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "How many seconds has the longest running processor for workqueue been running.",
        Age(|of| Some(of.times.longest_running)),
    ),
    (
        "workqueue_retries",
        "Total number of retries handled by workqueue",
        Count(|of| of.totals.retries),
    ),
    // The following metrics do not exist in client-go.
    (
        "workqueue_paused",
        "Whether deliveries are paused: 1 if they are, and otherwise 0",
        Keys(|of| of.paused.map(usize::from)),
    ),
    (
        "workqueue_waiting",
        "Current number of keys that wait for a due time, including those that back off",
        Keys(|of| Some(of.waiting)),
    ),
    (
        "workqueue_backing_off",
        "Current number of keys that wait because their last run failed",
        Keys(|of| of.backing_off),
    ),
    ("workqueue_in_flight", "Current number of keys in flight", Keys(|of| Some(of.in_flight))),
    (
        "workqueue_oldest_ready_seconds",
        "How long in seconds the oldest ready key has been ready",
        Age(|of| Some(of.times.oldest_ready)),
    ),
    (
        "workqueue_at_group_limit",
        "Current number of ready keys whose groups have reached their limit of keys in flight",
        Keys(|of| of.at_group_limit.map(|at_limit| at_limit.keys)),
    ),
    (
        "workqueue_oldest_at_group_limit_seconds",
        "How long in seconds the oldest of these keys has been ready",
        Age(|of| of.at_group_limit.map(|at_limit| at_limit.oldest)),
    ),
    (
        "workqueue_coalesced",
        "Total number of adds that became part of a pending run",
        Count(|of| of.totals.coalesced),
    ),
    ("workqueue_paced", "Total number of runs that the pace delayed", Count(|of| of.totals.paced)),
    ("workqueue_failures", "Total number of runs that failed", Count(|of| of.totals.failures)),
    (
        "workqueue_consecutive_failures",
        "At each failed run, the number of consecutive failures of its key",
        Failures(|of| &of.consecutive),
    ),
    ("workqueue_given_up", "Total number of keys that were given up", Count(|of| of.given_up)),
    ("workqueue_panics", "Total number of runs that panicked", Count(|of| of.panics)),
    ("workqueue_parked", "Current number of parked keys", Keys(|of| of.parked)),
    (
        "workqueue_counts_age_seconds",
        "Seconds since the store counted its keys, which is the age of the other numbers of keys",
        Age(|of| of.counts_age),
    ),
    (
        "workqueue_fleet_adds",
        "Total number of adds of all processes, including coalesced adds",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.adds)),
    ),
    (
        "workqueue_fleet_coalesced",
        "Total number of adds of all processes that became part of a pending run",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.coalesced)),
    ),
    (
        "workqueue_fleet_starts",
        "Total number of deliveries in all processes",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.starts)),
    ),
    (
        "workqueue_fleet_successes",
        "Total number of runs that succeeded in all processes",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.successes)),
    ),
    (
        "workqueue_fleet_failures",
        "Total number of runs that failed in all processes",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.failures)),
    ),
    (
        "workqueue_fleet_given_up",
        "Total number of keys that all processes gave up",
        FleetCount(|of| of.fleet.as_ref().map(|fleet| fleet.given_up)),
    ),
    (
        "workqueue_fleet_queue_duration_seconds",
        "Seconds from ready to delivery in all processes",
        FleetTimes(|of| of.fleet.as_ref().map(|fleet| &fleet.queued)),
    ),
    (
        "workqueue_fleet_work_duration_seconds",
        "Seconds from delivery to completion in all processes",
        FleetTimes(|of| of.fleet.as_ref().map(|fleet| &fleet.worked)),
    ),
    (
        "workqueue_fleet_workers",
        "Current number of workers that are alive",
        Keys(|of| of.fleet.as_ref().map(|fleet| fleet.workers)),
    ),
    (
        "workqueue_fleet_longest_running_seconds",
        "How long in seconds the longest run has taken, among the first 256 keys in flight of all processes",
        Age(|of| of.fleet.as_ref().map(|fleet| fleet.longest_running)),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Queue;
    use crate::sync::Ordering;

    #[test]
    fn what_workers_count_is_shown() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let queue = Queue::<u8>::builder().name("q").metrics(&metrics).build().unwrap();
        queue.shared.tally.given_up.fetch_add(2, Ordering::Relaxed);
        queue.shared.tally.panics.fetch_add(3, Ordering::Relaxed);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("\nworkqueue_given_up_total{name=\"q\"} 2\n"));
        assert!(text.contains("\nworkqueue_panics_total{name=\"q\"} 3\n"));
        let sample = queue.sample();
        assert_eq!((sample.given_up, sample.panics), (2, 3));
    }
}
