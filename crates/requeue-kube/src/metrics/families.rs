//! The metric families of a controller, with controller-runtime's names, help texts, labels and buckets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use requeue::metrics;
use requeue::metrics::Buckets;
use requeue::metrics::Value::{self, Age, Count, Keys, Times};

use self::Values::{Depths, One, ReconcileTime, Results};
use super::Series;
use super::meters::RESULTS;

/// The values of one controller's metrics, read at one time.
pub(super) struct Sample {
    series: Arc<Series>,
    depths: Vec<(String, usize)>,
    queue: metrics::Sample,
}

impl Sample {
    pub(super) fn read_series(series: Arc<Series>) -> Self {
        let queue = series.queue.sample();
        Self { depths: series.depths_by_priority(queue.depth), series, queue }
    }
}

/// A metric family: its name, its help text and the kind of its values. The name of a counter does not include the
/// suffix `_total`.
pub(super) type Family = (&'static str, &'static str, Values);

/// The values of a family for one controller. Each value has the label `controller`. If a value is from the queue, it
/// also has the label `name`, with the same content. `Results` and `Depths` have several values, which a further label
/// distinguishes.
pub(super) enum Values {
    Results,
    ReconcileTime,
    Depths,
    One(Value<Sample>),
}

pub(super) fn encode_family(
    (family, help, values): &Family,
    samples: &[Sample],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let kind = match values {
        Results => MetricType::Counter,
        ReconcileTime => MetricType::Histogram,
        Depths => MetricType::Gauge,
        One(value) => value.metric_type(),
    };
    let mut to = encoder.encode_descriptor(family, help, None, kind)?;
    for sample in samples {
        let name = &*sample.series.name;
        let labels = [("name", name), ("controller", name)];
        let is_of_queue = family.starts_with("workqueue_");
        let labels = if is_of_queue { &labels[..] } else { &labels[1..] };
        match values {
            Results => {
                for (result, count) in RESULTS.iter().zip(&sample.series.meters.results) {
                    let labels = [("controller", name), ("result", result)];
                    let (count, none) = (count.load(Relaxed), None::<&Exemplar<NoLabelSet, u64>>);
                    to.encode_family(&labels)?.encode_counter(&count, none)?;
                }
            }
            Depths => {
                for (priority, depth) in &sample.depths {
                    let labels = [("name", name), ("controller", name), ("priority", priority)];
                    to.encode_family(&labels)?.encode_gauge(depth)?;
                }
            }
            ReconcileTime => sample.series.meters.times.0.encode(to.encode_family(&labels)?)?,
            One(value) => value.encode_value(sample, Buckets::Long, to.encode_family(&labels)?)?,
        }
    }
    Ok(())
}

pub(super) const FAMILIES: [Family; 17] = [
    ("controller_runtime_reconcile", "Total number of reconciliations per controller", Results),
    (
        "controller_runtime_reconcile_errors",
        "Total number of reconciliation errors per controller",
        One(Count(|of| of.series.meters.results[1].load(Relaxed))),
    ),
    (
        "controller_runtime_terminal_reconcile_errors",
        "Total number of terminal reconciliation errors per controller",
        One(Count(|of| of.series.meters.terminal.load(Relaxed))),
    ),
    (
        "controller_runtime_reconcile_panics",
        "Total number of reconciliation panics per controller",
        One(Count(|of| of.series.meters.panics.load(Relaxed))),
    ),
    (
        "controller_runtime_reconcile_timeouts",
        "Total number of reconciliation timeouts per controller",
        One(Count(|of| of.series.meters.timeouts.load(Relaxed))),
    ),
    (
        "stale_sync_skips",
        "Total number of deliveries that waited because a watch had not shown the controller's \
         own writes",
        One(Count(|of| of.series.meters.stale_skips.load(Relaxed))),
    ),
    (
        "stale_sync_timeouts",
        "Total number of reconciliations that started although a watch had not shown the \
         controller's own writes within the time limit",
        One(Count(|of| of.series.meters.stale_starts.load(Relaxed))),
    ),
    (
        "controller_runtime_reconcile_time_seconds",
        "Length of time per reconciliation per controller",
        ReconcileTime,
    ),
    (
        "controller_runtime_max_concurrent_reconciles",
        "Maximum number of concurrent reconciles per controller",
        One(Keys(|of| Some(of.series.workers))),
    ),
    (
        "controller_runtime_active_workers",
        "Number of currently used workers per controller",
        One(Keys(|of| Some(of.series.meters.active.load(Relaxed)))),
    ),
    ("workqueue_depth", "Current depth of workqueue by workqueue and priority", Depths),
    (
        "workqueue_adds",
        "Total number of adds handled by workqueue",
        One(Count(|of| of.queue.totals.enqueued)),
    ),
    (
        "workqueue_queue_duration_seconds",
        "How long in seconds an item stays in workqueue before being requested",
        One(Times(|of| &of.queue.times.queued)),
    ),
    (
        "workqueue_work_duration_seconds",
        "How long in seconds processing an item from workqueue takes.",
        One(Times(|of| &of.queue.times.worked)),
    ),
    (
        "workqueue_unfinished_work_seconds",
        "How many seconds of work has been done that is in progress and hasn't been observed \
         by work_duration. Large values indicate stuck threads. One can deduce the number of \
         stuck threads by observing the rate at which this increases.",
        One(Age(|of| Some(of.queue.times.unfinished_work))),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "How many seconds has the longest running processor for workqueue been running.",
        One(Age(|of| Some(of.queue.times.longest_running))),
    ),
    (
        "workqueue_retries",
        "Total number of items added to the workqueue with a non-zero delay (rate-limited \
         requeues, explicit RequeueAfter or AddAfter calls)",
        One(Count(|of| of.series.meters.retries.load(Relaxed))),
    ),
];
