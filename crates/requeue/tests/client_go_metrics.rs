//! The tests of client-go's `util/workqueue/metrics_test.go`, with the same names and numbers.
//!
//! There is one difference. In client-go, a ticker updates two gauges. In this crate, a scrape
//! reads their values from the queue.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{Builder, Item, Queue};

/// `testMetricsProvider`, with all its metrics in one value.
#[derive(Default)]
struct TestMetrics(Mutex<Seen>);

#[derive(Clone, PartialEq, Debug, Default)]
struct Seen {
    adds: u64,
    depth: i64,
    /// The sum of the latencies in seconds, and their number.
    latency: (f64, u64),
    duration: (f64, u64),
    retries: u64,
}

impl TestMetrics {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

impl<K> QueueMetrics<K> for TestMetrics {
    fn add(&self) {
        let mut seen = self.seen();
        seen.adds += 1;
        seen.depth += 1;
    }

    fn get(&self, _: &K, queued: Duration) {
        let mut seen = self.seen();
        seen.depth -= 1;
        seen.latency = (queued.as_secs_f64(), seen.latency.1 + 1);
    }

    fn done(&self, _: &K, worked: Duration) {
        let mut seen = self.seen();
        seen.duration = (worked.as_secs_f64(), seen.duration.1 + 1);
    }

    fn retry(&self) {
        self.seen().retries += 1;
    }

    fn withdraw(&self) {
        self.seen().depth -= 1;
    }
}

struct Provider(Arc<TestMetrics>);

impl<K> MetricsProvider<K> for Provider {
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<K>> {
        assert_eq!(name, "test");
        self.0.clone()
    }
}

fn new_queue(clock: &FakeClock) -> (Queue<&'static str>, Arc<TestMetrics>) {
    let metrics = Arc::new(TestMetrics::default());
    let queue = Builder::client_go()
        .name("test")
        .clock(clock.clone())
        .metrics_provider(Arc::new(Provider(metrics.clone())))
        .build()
        .unwrap();
    (queue, metrics)
}

fn get<'q>(queue: &'q Queue<&'static str>) -> Item<'q, &'static str> {
    let item = queue.get().blocking().unwrap();
    assert_eq!(*item, "foo");
    item
}

/// `TestMetricShutdown`: after a shutdown, no metric changes while time passes. This crate has no
/// ticker to stop. Even before the shutdown, no alarm is armed, and no hook is called without an
/// event.
#[test]
fn test_metric_shutdown() {
    let clock = FakeClock::new();
    let (queue, metrics) = new_queue(&clock);
    queue.add("foo");
    queue.add_after("bar", Duration::from_secs(60));
    let item = get(&queue);
    clock.advance(Duration::from_millis(1));
    assert_eq!(queue.sample().times.unfinished_work, Duration::from_millis(1));
    queue.shut_down();
    let before = metrics.seen().clone();

    clock.advance(Duration::from_secs(3600));
    assert_eq!(*metrics.seen(), before, "updated after the shutdown");
    assert_eq!(clock.armed(), 0);

    // After a shutdown, the queue refuses all kinds of adds, and does not count them.
    queue.add("foo");
    queue.add_after("foo", Duration::ZERO);
    queue.add_rate_limited("foo");
    assert_eq!(*metrics.seen(), before);

    // The values of the queue are still correct.
    assert_eq!(queue.sample().times.unfinished_work, Duration::from_millis(3_600_001));
    item.retry();
    let after = metrics.seen().clone();
    assert_eq!(after.duration, (3600.001, 1));
    assert_eq!(after.retries, before.retries, "a failure after the shutdown is not retried");
    assert_eq!(queue.totals().retries, 1);
}

/// `TestMetrics`.
#[test]
fn test_metrics() {
    let clock = FakeClock::new();
    let (queue, metrics) = new_queue(&clock);

    queue.add("foo");
    assert_eq!(metrics.seen().adds, 1);
    assert_eq!(queue.totals().enqueued, 1);
    assert_eq!(metrics.seen().depth, 1);
    assert_eq!(queue.sample().depth, 1);

    clock.advance(Duration::from_micros(50));

    let item = get(&queue);
    assert_eq!(metrics.seen().latency, (5e-05, 1));

    // Several adds of a key in flight are counted as one.
    for _ in 0..5 {
        queue.add(*item);
    }
    assert_eq!(metrics.seen().adds, 2);
    assert_eq!(queue.totals().enqueued, 2);
    assert_eq!(metrics.seen().depth, 1);
    assert_eq!(queue.sample().depth, 1);

    clock.advance(Duration::from_micros(25));

    item.done();
    assert_eq!(metrics.seen().duration, (2.5e-05, 1));
    assert_eq!(metrics.seen().depth, 1);
    assert_eq!(queue.sample().depth, 1);

    let item = get(&queue);
    assert_eq!(metrics.seen().latency, (2.5e-05, 2));

    clock.advance(Duration::from_millis(1));
    assert_eq!(queue.sample().times.unfinished_work.as_secs_f64(), 0.001);
    assert_eq!(queue.sample().times.longest_running.as_secs_f64(), 0.001);

    item.done();
    assert_eq!(metrics.seen().duration, (0.001, 2));

    // The histograms of the queue have the same values.
    let times = queue.sample().times;
    assert_eq!((times.queued.sum, times.queued.count()), (75_000, 2));
    assert_eq!((times.worked.sum, times.worked.count()), (1_025_000, 2));
}
