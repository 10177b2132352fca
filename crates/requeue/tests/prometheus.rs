//! The metrics that a Prometheus server gets in a scrape.

#![cfg(feature = "prometheus")]
#![allow(clippy::unwrap_used)]

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::metrics::{Buckets, Metrics};
use requeue::{BuildError, Completion, GroupId, Queue, Time};

fn scrape(registry: &Registry) -> String {
    let mut body = String::new();
    text::encode(&mut body, registry).unwrap();
    body
}

/// Returns the value of `series` in `text`, unchanged.
fn value<'t>(text: &'t str, series: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
}

fn queue(name: &str, clock: &FakeClock, metrics: &Metrics) -> Queue<&'static str> {
    Queue::builder().name(name).clock(clock.clone()).metrics(metrics).build().unwrap()
}

#[test]
fn the_text_is_exactly_this() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let queue = queue("pods", &clock, &metrics);

    queue.add("a");
    clock.advance(Duration::from_micros(50));
    let item = queue.try_get().unwrap();
    for _ in 0..5 {
        queue.add("a");
    }
    clock.advance(Duration::from_micros(25));
    item.done();
    let item = queue.try_get().unwrap();
    queue.add("b");
    queue.add_after("c", Duration::from_secs(60));
    clock.advance(Duration::from_secs(20));
    queue.try_get().unwrap().complete(Completion::RetryAfter(Duration::from_secs(90)));
    queue.add("d");
    clock.advance(Duration::from_millis(1500));

    assert_eq!(scrape(&registry), EXPECTED);
    item.done();
}

const EXPECTED: &str = r##"# HELP workqueue_depth Current depth of workqueue
# TYPE workqueue_depth gauge
workqueue_depth{name="pods"} 1
# HELP workqueue_adds Total number of adds handled by workqueue
# TYPE workqueue_adds counter
workqueue_adds_total{name="pods"} 4
# HELP workqueue_queue_duration_seconds How long in seconds an item stays in workqueue before being requested.
# TYPE workqueue_queue_duration_seconds histogram
workqueue_queue_duration_seconds_sum{name="pods"} 20.000075
workqueue_queue_duration_seconds_count{name="pods"} 3
workqueue_queue_duration_seconds_bucket{le="1e-8",name="pods"} 0
workqueue_queue_duration_seconds_bucket{le="1e-7",name="pods"} 0
workqueue_queue_duration_seconds_bucket{le="0.000001",name="pods"} 0
workqueue_queue_duration_seconds_bucket{le="0.000009999999999999999",name="pods"} 0
workqueue_queue_duration_seconds_bucket{le="0.00009999999999999999",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="0.001",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="0.01",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="0.1",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="1.0",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="10.0",name="pods"} 2
workqueue_queue_duration_seconds_bucket{le="+Inf",name="pods"} 3
# HELP workqueue_work_duration_seconds How long in seconds processing an item from workqueue takes.
# TYPE workqueue_work_duration_seconds histogram
workqueue_work_duration_seconds_sum{name="pods"} 0.000025
workqueue_work_duration_seconds_count{name="pods"} 2
workqueue_work_duration_seconds_bucket{le="1e-8",name="pods"} 1
workqueue_work_duration_seconds_bucket{le="1e-7",name="pods"} 1
workqueue_work_duration_seconds_bucket{le="0.000001",name="pods"} 1
workqueue_work_duration_seconds_bucket{le="0.000009999999999999999",name="pods"} 1
workqueue_work_duration_seconds_bucket{le="0.00009999999999999999",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="0.001",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="0.01",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="0.1",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="1.0",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="10.0",name="pods"} 2
workqueue_work_duration_seconds_bucket{le="+Inf",name="pods"} 2
# HELP workqueue_unfinished_work_seconds How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.
# TYPE workqueue_unfinished_work_seconds gauge
workqueue_unfinished_work_seconds{name="pods"} 21.5
# HELP workqueue_longest_running_processor_seconds How many seconds has the longest running processor for workqueue been running.
# TYPE workqueue_longest_running_processor_seconds gauge
workqueue_longest_running_processor_seconds{name="pods"} 21.5
# HELP workqueue_retries Total number of retries handled by workqueue
# TYPE workqueue_retries counter
workqueue_retries_total{name="pods"} 2
# HELP workqueue_paused Whether deliveries are paused: 1 if they are, and otherwise 0
# TYPE workqueue_paused gauge
workqueue_paused{name="pods"} 0
# HELP workqueue_waiting Current number of keys that wait for a due time, including those that back off
# TYPE workqueue_waiting gauge
workqueue_waiting{name="pods"} 2
# HELP workqueue_backing_off Current number of keys that wait because their last run failed
# TYPE workqueue_backing_off gauge
workqueue_backing_off{name="pods"} 1
# HELP workqueue_in_flight Current number of keys in flight
# TYPE workqueue_in_flight gauge
workqueue_in_flight{name="pods"} 1
# HELP workqueue_oldest_ready_seconds How long in seconds the oldest ready key has been ready
# TYPE workqueue_oldest_ready_seconds gauge
workqueue_oldest_ready_seconds{name="pods"} 1.5
# HELP workqueue_coalesced Total number of adds that became part of a pending run
# TYPE workqueue_coalesced counter
workqueue_coalesced_total{name="pods"} 4
# HELP workqueue_paced Total number of runs that the pace delayed
# TYPE workqueue_paced counter
workqueue_paced_total{name="pods"} 0
# HELP workqueue_failures Total number of runs that failed
# TYPE workqueue_failures counter
workqueue_failures_total{name="pods"} 1
# HELP workqueue_consecutive_failures At each failed run, the number of consecutive failures of its key
# TYPE workqueue_consecutive_failures histogram
workqueue_consecutive_failures_sum{name="pods"} 1.0
workqueue_consecutive_failures_count{name="pods"} 1
workqueue_consecutive_failures_bucket{le="1.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="2.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="5.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="10.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="20.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="50.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="100.0",name="pods"} 1
workqueue_consecutive_failures_bucket{le="+Inf",name="pods"} 1
# HELP workqueue_given_up Total number of keys that were given up
# TYPE workqueue_given_up counter
workqueue_given_up_total{name="pods"} 0
# HELP workqueue_panics Total number of runs that panicked
# TYPE workqueue_panics counter
workqueue_panics_total{name="pods"} 0
# EOF
"##;

#[test]
fn a_pause_a_full_group_and_a_key_that_keeps_failing_are_shown() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let builder = Queue::builder().name("q").clock(clock.clone()).metrics(&metrics);
    let queue =
        builder.group_by(|key: &&str| GroupId::of(&key[..1])).group_limit(1).build().unwrap();
    let shown = |series: &str| {
        let text = scrape(&registry);
        value(&text, &format!("{series}{{name=\"q\"}}")).map(str::to_owned)
    };
    queue.add_all(["a1", "a2", "b1"]);
    let a1 = queue.try_get().unwrap();
    clock.advance(Duration::from_secs(3));
    queue.add("a3");
    assert_eq!(shown("workqueue_at_group_limit").as_deref(), Some("2"));
    assert_eq!(shown("workqueue_oldest_at_group_limit_seconds").as_deref(), Some("3.0"));
    // The keys of a paused group are not included.
    queue.group(GroupId::of("a")).unwrap().pause();
    assert_eq!(shown("workqueue_at_group_limit").as_deref(), Some("0"));
    assert_eq!(shown("workqueue_oldest_at_group_limit_seconds").as_deref(), Some("0.0"));
    a1.succeed();

    queue.pause();
    assert_eq!(shown("workqueue_paused").as_deref(), Some("1"));
    queue.resume();
    assert_eq!(shown("workqueue_paused").as_deref(), Some("0"));
    for _ in 0..3 {
        queue.try_get().unwrap().complete(Completion::RetryAfter(Duration::ZERO));
    }
    let text = scrape(&registry);
    let up_to = |le: &str| {
        let series = format!("workqueue_consecutive_failures_bucket{{le=\"{le}\",name=\"q\"}}");
        value(&text, &series).unwrap().to_owned()
    };
    assert_eq!(["1.0", "2.0", "5.0", "+Inf"].map(up_to), ["1", "2", "3", "3"]);
}

#[test]
fn what_is_due_is_ready_when_scraped() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let queue = Queue::builder().name("q").clock(clock.clone()).metrics(&metrics).build().unwrap();
    for key in 0..1000 {
        queue.add_after(key, Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(1));
    let text = scrape(&registry);
    assert_eq!(value(&text, r#"workqueue_depth{name="q"}"#), Some("1000"));
    assert_eq!(value(&text, r#"workqueue_waiting{name="q"}"#), Some("0"));
    assert_eq!(value(&text, r#"workqueue_adds_total{name="q"}"#), Some("1000"));
}

#[test]
fn a_queue_of_its_name_has_to_be_gone_first() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let first = queue("pods", &clock, &metrics);
    first.add("a");
    let builder = || Queue::<u8>::builder().name("pods").metrics(&metrics);
    assert_eq!(builder().build().unwrap_err(), BuildError::DuplicateName("pods".to_owned()));

    // The queue stays alive as long as a handle or a sent item exists.
    let (handle, item) = (first.clone(), first.try_get().map(requeue::Item::into_owned));
    drop(first);
    assert!(builder().build().is_err());
    drop(handle);
    assert!(builder().build().is_err());
    drop(item);
    let second = builder().build().unwrap();
    second.add_all([1, 2]);
    assert_eq!(value(&scrape(&registry), r#"workqueue_depth{name="pods"}"#), Some("2"));
}

#[test]
fn a_queue_without_a_name_can_not_be_shown() {
    let metrics = Metrics::register(&mut Registry::default());
    let unnamed = Queue::<u8>::builder().metrics(&metrics).build();
    assert_eq!(unnamed.unwrap_err(), BuildError::Unnamed);
    let empty = Queue::<u8>::builder().name("").metrics(&metrics).build();
    assert_eq!(empty.unwrap_err(), BuildError::Unnamed);
}

#[test]
fn series_go_when_the_queue_goes() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    assert_eq!(scrape(&registry), "# EOF\n");
    let (pods, nodes) = (queue("pods", &clock, &metrics), queue("nodes", &clock, &metrics));
    let text = scrape(&registry);
    assert!(text.contains(r#""pods""#) && text.contains(r#""nodes""#));
    assert_eq!(text.matches("# TYPE workqueue_depth gauge").count(), 1, "one header for both");
    drop(pods);
    let text = scrape(&registry);
    assert!(!text.contains(r#""pods""#) && text.contains(r#""nodes""#));
    assert!(format!("{metrics:?}").contains(r#"["nodes"]"#), "a dropped queue is not kept");
    drop(nodes);
    assert_eq!(scrape(&registry), "# EOF\n");
}

#[test]
fn names_of_the_dead_are_forgotten_without_a_scrape() {
    let metrics = Metrics::register(&mut Registry::default());
    for i in 0..1000 {
        Queue::<u8>::builder().name(format!("q{i}")).metrics(&metrics).build().unwrap();
    }
    assert!(format!("{metrics:?}").matches("\"q").count() <= 32);
}

#[test]
fn two_registries_know_nothing_of_each_other() {
    let clock = FakeClock::new();
    let (mut one, mut other) = (Registry::default(), Registry::default());
    let (in_one, in_other) = (Metrics::register(&mut one), Metrics::register(&mut other));
    let (a, b) = (queue("pods", &clock, &in_one), queue("pods", &clock, &in_other));
    a.add_all(["x", "y"]);
    b.add("x");
    let depth = r#"workqueue_depth{name="pods"}"#;
    assert_eq!(value(&scrape(&one), depth), Some("2"));
    assert_eq!(value(&scrape(&other), depth), Some("1"));
    drop(one);
    a.add("z");
    assert_eq!(value(&scrape(&other), depth), Some("1"));
}

#[test]
fn after_shut_down_retries_are_not_counted() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let queue = queue("pods", &clock, &metrics);
    queue.add("a");
    queue.add_after("b", Duration::from_secs(1));
    let item = queue.try_get().unwrap();
    queue.shut_down();
    queue.add_after("c", Duration::from_secs(1));
    queue.add_rate_limited("c");
    item.retry();
    let text = scrape(&registry);
    assert_eq!(value(&text, r#"workqueue_retries_total{name="pods"}"#), Some("1"));
    assert_eq!(value(&text, r#"workqueue_failures_total{name="pods"}"#), Some("1"));
    assert_eq!(value(&text, r#"workqueue_waiting{name="pods"}"#), Some("0"));
}

#[test]
fn long_buckets_tell_minutes_apart() {
    for (buckets, series) in [(Buckets::Kubernetes, 11), (Buckets::Long, 13)] {
        let (mut registry, clock) = (Registry::default(), FakeClock::new());
        let metrics = Metrics::register_with(&mut registry, buckets);
        let queue = queue("pods", &clock, &metrics);
        for seconds in [5, 50, 500, 5000] {
            queue.add("a");
            let item = queue.try_get().unwrap();
            clock.advance(Duration::from_secs(seconds));
            item.done();
        }
        let text = scrape(&registry);
        assert_eq!(text.matches("workqueue_work_duration_seconds_bucket").count(), series);
        let at_most = |le| {
            let series =
                format!(r#"workqueue_work_duration_seconds_bucket{{le="{le}",name="pods"}}"#);
            value(&text, &series).map(str::to_owned)
        };
        assert_eq!(at_most("10.0").as_deref(), Some("1"));
        let long = buckets == Buckets::Long;
        assert_eq!(at_most("100.0").as_deref(), long.then_some("2"));
        assert_eq!(at_most("1000.0").as_deref(), long.then_some("3"));
        assert_eq!(at_most("+Inf").as_deref(), Some("4"));
        assert_eq!(
            value(&text, r#"workqueue_work_duration_seconds_sum{name="pods"}"#),
            Some("5555.0")
        );
    }
}

#[test]
fn names_are_escaped() {
    let (mut registry, clock) = (Registry::default(), FakeClock::new());
    let metrics = Metrics::register(&mut registry);
    let _queue = queue("a\"b\\c\nd", &clock, &metrics);
    assert_eq!(value(&scrape(&registry), r#"workqueue_depth{name="a\"b\\c\nd"}"#), Some("0"));
}

/// A clock whose `now` delays a scrape until another thread has built a queue, or a time limit has
/// passed.
#[derive(Clone)]
struct Slow {
    asked: Sender<()>,
    built: Arc<Mutex<Receiver<()>>>,
}

impl Clock for Slow {
    fn now(&self) -> Time {
        self.asked.send(()).unwrap();
        let _ = self.built.lock().unwrap().recv_timeout(Duration::from_millis(50));
        Time::ZERO
    }

    fn arm(&self, _: Time, _: &Waker) -> Alarm {
        Alarm::none()
    }
}

/// A scrape owns references to the queues that it reads. If a queue is dropped during the scrape, a
/// new queue must still be able to use its name.
#[test]
fn a_scrape_under_way_keeps_no_name_taken() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let ((asked, is_asked), (built, is_built)) = (mpsc::channel(), mpsc::channel());
    let clock = Slow { asked, built: Arc::new(Mutex::new(is_built)) };
    let first = Queue::<u8>::builder().name("pods").clock(clock).metrics(&metrics).build();
    std::thread::scope(|scope| {
        scope.spawn(|| scrape(&registry));
        is_asked.recv().unwrap();
        drop(first);
        let second = Queue::<u8>::builder().name("pods").metrics(&metrics).build();
        let _ = built.send(());
        assert!(second.is_ok(), "{second:?}");
    });
}

/// A scrape may drop the last reference to a queue. Dropping the queue then runs user code during
/// the scrape.
#[test]
fn a_key_that_scrapes_and_builds_when_dropped_does_so() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key(u8);

    static REGISTRY: OnceLock<(Registry, Metrics)> = OnceLock::new();

    impl Drop for Key {
        fn drop(&mut self) {
            let (registry, metrics) = REGISTRY.get().unwrap();
            scrape(registry);
            Queue::<u8>::builder().name("other").metrics(metrics).build().unwrap();
        }
    }

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (registry, metrics) = REGISTRY.get_or_init(|| (registry, metrics));
    let ((asked, is_asked), (built, is_built)) = (mpsc::channel(), mpsc::channel());
    let clock = Slow { asked, built: Arc::new(Mutex::new(is_built)) };
    let queue = Queue::builder().name("keys").clock(clock).metrics(metrics).build().unwrap();
    built.send(()).unwrap();
    queue.add(Key(1));
    is_asked.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| scrape(registry));
        is_asked.recv().unwrap();
        drop(queue);
        let _ = built.send(());
    });
    assert_eq!(scrape(registry), "# EOF\n");
}
