//! The encoding of a controller's metrics, with controller-runtime's names, help texts, labels and
//! buckets.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use requeue::{BUCKETS, Histogram, metrics};

use super::Series;
use super::meters::RESULTS;

/// The values of a controller at one moment.
pub(super) struct Sample<'a> {
    series: &'a Series,
    depths: Vec<(String, usize)>,
    queue: metrics::Sample,
}

impl<'a> Sample<'a> {
    pub(super) fn read_series(series: &'a Series) -> Self {
        let queue = series.queue.sample();
        Self { series, depths: series.depths_by_priority(queue.depth), queue }
    }
}

/// A metric family. The names of counters are without `_total`.
pub(super) struct Family {
    name: &'static str,
    help: &'static str,
    value: Value,
}

/// The value of a family in a sample. Each value has the label `controller`, and those of the queue
/// also have `name`, with the same content. `Results` and `Depths` have several values each, which
/// another label distinguishes.
enum Value {
    Results,
    Count(fn(&Sample<'_>) -> u64),
    Gauge(fn(&Sample<'_>) -> usize),
    ReconcileTime,
    Depths,
    QueueAge(fn(&Sample<'_>) -> Duration),
    QueueTimes(for<'a> fn(&'a Sample<'_>) -> &'a Histogram),
}

impl Value {
    const fn metric_type(&self) -> MetricType {
        match self {
            Self::Results | Self::Count(_) => MetricType::Counter,
            Self::Gauge(_) | Self::Depths | Self::QueueAge(_) => MetricType::Gauge,
            Self::ReconcileTime | Self::QueueTimes(_) => MetricType::Histogram,
        }
    }
}

impl Family {
    pub(super) fn encode(
        &self,
        samples: &[Sample<'_>],
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let kind = self.value.metric_type();
        let mut to = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for sample in samples {
            let name = &*sample.series.name;
            let labels = [("name", name), ("controller", name)];
            let is_of_queue = self.name.starts_with("workqueue_");
            let labels = if is_of_queue { &labels[..] } else { &labels[1..] };
            match &self.value {
                Value::Results => {
                    for (result, count) in RESULTS.iter().zip(&sample.series.meters.results) {
                        let labels = [("controller", name), ("result", result)];
                        encode_counter(to.encode_family(&labels)?, count.load(Relaxed))?;
                    }
                }
                Value::Depths => {
                    for (priority, depth) in &sample.depths {
                        let labels = [("name", name), ("controller", name), ("priority", priority)];
                        to.encode_family(&labels)?.encode_gauge(depth)?;
                    }
                }
                Value::Count(read) => encode_counter(to.encode_family(&labels)?, read(sample))?,
                Value::Gauge(read) => {
                    to.encode_family(&labels)?.encode_gauge(&read(sample))?;
                }
                Value::ReconcileTime => {
                    sample.series.meters.times.0.encode(to.encode_family(&labels)?)?;
                }
                Value::QueueAge(read) => {
                    to.encode_family(&labels)?.encode_gauge(&read(sample).as_secs_f64())?;
                }
                Value::QueueTimes(read) => {
                    let times = read(sample);
                    let bounds = BUCKETS.into_iter().chain([f64::INFINITY]);
                    let buckets: Vec<_> = bounds.zip(times.counts).collect();
                    let (sum, count) = (times.sum as f64 / 1e9, times.counts.iter().sum());
                    to.encode_family(&labels)?
                        .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }
}

fn encode_counter(mut to: MetricEncoder<'_>, count: u64) -> fmt::Result {
    to.encode_counter(&count, None::<&Exemplar<NoLabelSet, u64>>)
}

pub(super) const FAMILIES: [Family; 17] = [
    Family {
        name: "controller_runtime_reconcile",
        help: "Total number of reconciliations per controller",
        value: Value::Results,
    },
    Family {
        name: "controller_runtime_reconcile_errors",
        help: "Total number of reconciliation errors per controller",
        value: Value::Count(|of| of.series.meters.results[1].load(Relaxed)),
    },
    Family {
        name: "controller_runtime_terminal_reconcile_errors",
        help: "Total number of terminal reconciliation errors per controller",
        value: Value::Count(|of| of.series.meters.terminal.load(Relaxed)),
    },
    Family {
        name: "controller_runtime_reconcile_panics",
        help: "Total number of reconciliation panics per controller",
        value: Value::Count(|of| of.series.meters.panics.load(Relaxed)),
    },
    Family {
        name: "controller_runtime_reconcile_timeouts",
        help: "Total number of reconciliation timeouts per controller",
        value: Value::Count(|of| of.series.meters.timeouts.load(Relaxed)),
    },
    Family {
        name: "stale_sync_skips",
        help: "Total number of deliveries that waited because a watch had not shown the controller's \
               own writes",
        value: Value::Count(|of| of.series.meters.stale_skips.load(Relaxed)),
    },
    Family {
        name: "stale_sync_timeouts",
        help: "Total number of reconciliations that started although a watch had not shown the \
               controller's own writes within the time limit",
        value: Value::Count(|of| of.series.meters.stale_starts.load(Relaxed)),
    },
    Family {
        name: "controller_runtime_reconcile_time_seconds",
        help: "Length of time per reconciliation per controller",
        value: Value::ReconcileTime,
    },
    Family {
        name: "controller_runtime_max_concurrent_reconciles",
        help: "Maximum number of concurrent reconciles per controller",
        value: Value::Gauge(|of| of.series.workers),
    },
    Family {
        name: "controller_runtime_active_workers",
        help: "Number of currently used workers per controller",
        value: Value::Gauge(|of| of.series.meters.active.load(Relaxed)),
    },
    Family {
        name: "workqueue_depth",
        help: "Current depth of workqueue by workqueue and priority",
        value: Value::Depths,
    },
    Family {
        name: "workqueue_adds",
        help: "Total number of adds handled by workqueue",
        value: Value::Count(|of| of.queue.totals.enqueued),
    },
    Family {
        name: "workqueue_queue_duration_seconds",
        help: "How long in seconds an item stays in workqueue before being requested",
        value: Value::QueueTimes(|of| &of.queue.times.queued),
    },
    Family {
        name: "workqueue_work_duration_seconds",
        help: "How long in seconds processing an item from workqueue takes.",
        value: Value::QueueTimes(|of| &of.queue.times.worked),
    },
    Family {
        name: "workqueue_unfinished_work_seconds",
        help: "How many seconds of work has been done that is in progress and hasn't been observed \
               by work_duration. Large values indicate stuck threads. One can deduce the number of \
               stuck threads by observing the rate at which this increases.",
        value: Value::QueueAge(|of| of.queue.times.unfinished_work),
    },
    Family {
        name: "workqueue_longest_running_processor_seconds",
        help: "How many seconds has the longest running processor for workqueue been running.",
        value: Value::QueueAge(|of| of.queue.times.longest_running),
    },
    Family {
        name: "workqueue_retries",
        help: "Total number of items added to the workqueue with a non-zero delay (rate-limited \
               requeues, explicit RequeueAfter or AddAfter calls)",
        value: Value::Count(|of| of.series.meters.retries.load(Relaxed)),
    },
];
