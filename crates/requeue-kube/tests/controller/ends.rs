//! The end of a controller: shutdown, dropped streams and panics.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::utils::Backoff;
use requeue::{CancelledRun, InFlightPolicy};
use requeue_kube::ObjectKey;
use requeue_kube::controller::{Action, Config, Watched};
use requeue_kube::policy;
use tokio::sync::oneshot;

use super::common::*;

const SECOND: Duration = Duration::from_secs(1);

/// A reconciler that records the start of the run and, after 10 s, its end.
async fn long(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, OnPurpose> {
    log.note(format!("{} begins", name(&*map)));
    tokio::time::sleep(10 * SECOND).await;
    log.note(format!("{} ends", name(&*map)));
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn a_graceful_shutdown_begins_nothing_and_finishes_what_runs() {
    let (feed, controller) = controller();
    let (stop, stopped) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller.graceful_shutdown_on(async { _ = stopped.await });
    let reading = Reading::of(controller.run(long, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    log.reaches(1).await;
    stop.send(()).unwrap();
    assert_eq!(reading.end().await, ["ok a"]);
    assert_eq!(log.names(), ["a begins", "a ends"]);
}

#[tokio::test(start_paused = true)]
async fn a_graceful_shutdown_cuts_off_what_takes_too_long() {
    let (feed, controller) = controller();
    let (stop, stopped) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller
        .graceful_shutdown_on(async { _ = stopped.await })
        .with_config(config().shutdown_timeout(3 * SECOND));
    let reading = Reading::of(controller.run(long, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    stop.send(()).unwrap();
    let at = tokio::time::Instant::now();
    let cut_off = "runner error: the shutdown interrupted the reconciliation of ns/a";
    assert_eq!(reading.end().await, [cut_off]);
    assert_eq!(at.elapsed().as_secs(), 3);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(log.names(), ["a begins"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_restarts_a_run_in_flight() {
    let (feed, controller) = controller();
    let (stop, stopped) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller
        .graceful_shutdown_on(async { _ = stopped.await })
        .with_config(config().in_flight_policy(InFlightPolicy::restart()));
    let reading = Reading::of(controller.run(long, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    feed.apply(&map("a", 2));
    log.reaches(2).await;
    stop.send(()).unwrap();
    assert_eq!(reading.end().await, ["ok a"]);
    assert_eq!(log.names(), ["a begins", "a begins", "a ends"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_cancelled_by_name_is_dropped_and_not_reported() {
    let (feed, controller) = controller();
    let (stop, stopped) = oneshot::channel::<()>();
    let (send, queue) = oneshot::channel();
    let log = Log::new();
    let controller = controller
        .graceful_shutdown_on(async { _ = stopped.await })
        .queue_on_start(|queue| drop(send.send(queue)));
    let reading = Reading::of(controller.run(long, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    let queue = queue.await.unwrap();
    let key = ObjectKey::new(Some("ns"), "a");
    assert_eq!(queue.cancel_running(&key), CancelledRun::Cancelled);
    while queue.states().total() > 0 {
        tokio::task::yield_now().await;
    }
    stop.send(()).unwrap();
    let items = reading.end().await;
    assert!(items.is_empty(), "{items:?}");
    assert_eq!(log.names(), ["a begins"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_before_the_first_lists_ends_at_once() {
    let (_feed, controller) = controller::<ConfigMap>();
    let controller = controller.graceful_shutdown_on(std::future::ready(()));
    let items =
        Reading::of(controller.run(note, policy::backoff, Arc::new(Log::new()))).end().await;
    assert!(items.is_empty(), "{items:?}");
}

#[tokio::test(start_paused = true)]
async fn when_no_watch_is_left_what_is_ready_still_runs() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    drop(feed);
    assert_eq!(reading.end().await, ["ok a", "ok b"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_debounced_when_no_watch_is_left_still_runs() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let (give, queue) = oneshot::channel();
    let controller = controller
        .with_config(config().debounce(SECOND))
        .queue_on_start(move |queue| _ = give.send(queue));
    let reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    feed.apply(&map("c", 1));
    drop(feed);
    // Changed objects go first.
    assert_eq!(reading.end().await, ["ok c", "ok a", "ok b"]);
    // The add was counted when its wait began, and is not counted again when the wait ends.
    let counts = queue.await.unwrap().totals();
    assert_eq!((counts.adds, counts.enqueued, counts.coalesced), (3, 3, 0));
}

/// Reconciles `a` for a second in its first run, which records a write of version 10 at its end.
/// Then closes the feeds of the watches, so that no event shows the write.
async fn ended_during_a_write(
    config: Config,
    before_the_end: impl FnOnce(&Feed<ConfigMap>, &Feed<Secret>),
    during: Duration,
) -> Vec<String> {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::<Secret>::new();
    let controller = controller.watch_owned(Watched::stream(events)).with_config(config);
    let (log, writes) = (Log::new(), controller.writes());
    let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
        let writes = writes.clone();
        async move {
            log.note(name(&*map));
            if log.names().len() == 1 {
                tokio::time::sleep(SECOND).await;
                writes
                    .record(&Secret { metadata: self::map("x", 10).metadata, ..Secret::default() });
            }
            Ok::<_, OnPurpose>(Action::await_change())
        }
    };
    let reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    children.list(&[]);
    log.reaches(1).await;
    tokio::time::sleep(during).await;
    before_the_end(&feed, &children);
    a_moment().await;
    drop((feed, children));
    reading.end().await
}

#[tokio::test(start_paused = true)]
async fn an_object_that_waits_for_its_own_write_when_no_watch_is_left_still_runs() {
    let change = |feed: &Feed<ConfigMap>, _: &Feed<Secret>| feed.apply(&map("a", 2));
    // The object changes after its run, and then during its run.
    for during in [2 * SECOND, SECOND / 2] {
        let items = ended_during_a_write(config(), change, during).await;
        assert_eq!(items, ["ok a", "ok a"], "{during:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_add_that_waits_for_the_end_of_a_run_when_no_watch_is_left_still_runs() {
    let child = |version| {
        let metadata = map("x", version).metadata;
        owned_by::<ConfigMap, _>(Secret { metadata, ..Secret::default() }, "a")
    };
    let config = config().suppress_own_writes();
    for config in [config.clone(), config.debounce(SECOND)] {
        let change = |_: &Feed<ConfigMap>, children: &Feed<Secret>| children.apply(&child(9));
        let items = ended_during_a_write(config, change, SECOND / 2).await;
        assert_eq!(items, ["ok a", "ok a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_debounced_during_its_run_when_no_watch_is_left_still_runs() {
    let change = |feed: &Feed<ConfigMap>, _: &Feed<Secret>| feed.apply(&map("a", 2));
    let items = ended_during_a_write(config().debounce(SECOND), change, SECOND / 2).await;
    assert_eq!(items, ["ok a", "ok a"]);
}

/// A backoff that permits no attempt.
struct Never;

impl Iterator for Never {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        None
    }
}

impl Backoff for Never {
    fn reset(&mut self) {}
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_begun_again_ends_the_controller() {
    let ended = "runner error: the watch of ConfigMap.v1 (controlled) failed, and its backoff allows no restart";
    for is_listed in [false, true] {
        let (feed, controller) = controller::<ConfigMap>();
        let (_watched, events) = Feed::<ConfigMap>::new();
        let mut controller = controller.trigger_backoff(Never);
        if !is_listed {
            controller = controller.watch_owned(Watched::stream(events));
        }
        let log = Log::new();
        let reading = Reading::of(controller.run(long, policy::backoff, Arc::new(log.clone())));
        feed.list(&[map("a", 1)]);
        if is_listed {
            log.reaches(1).await;
        }
        feed.fail();
        let items = reading.end().await;
        assert!(items[0].starts_with("event queue error: "), "{items:?}");
        let rest = if is_listed { &["ok a", ended][..] } else { &[ended] };
        assert_eq!(items[1..], *rest);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_stream_stops_everything() {
    let (feed, controller) = controller();
    let log = Arc::new(Log::new());
    let store = controller.store();
    let mut stream = Box::pin(controller.run(long, policy::backoff, Arc::clone(&log)));
    assert!(stream.next().now_or_never().is_none());
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    drop(stream);
    a_moment().await;
    feed.apply(&map("b", 1));
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((log.names(), store.len()), (vec!["a begins".to_owned()], 1));
    // No task holds the context after the end.
    assert_eq!(Arc::strong_count(&log), 1);
}

#[tokio::test(start_paused = true)]
async fn a_controller_whose_stream_is_not_polled_does_nothing() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let stream = controller.run(note, policy::backoff, Arc::new(log.clone()));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND).await;
    assert!(log.names().is_empty());
    drop(stream);
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_blocks_no_worker_and_misses_what_is_too_much() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let stream = controller.run(note, policy::backoff, Arc::new(log.clone()));
    let mut stream = Box::pin(stream);
    assert!(stream.next().now_or_never().is_none());
    let objects: Vec<_> = (0..3000).map(|number| map(&number.to_string(), 1)).collect();
    feed.list(&objects);
    log.reaches(3000).await;
    a_moment().await;
    let mut read = 0;
    while tokio::time::timeout(SECOND, stream.next()).await.is_ok() {
        read += 1;
    }
    assert_eq!(read, 1024);
    // The controller continues.
    feed.apply(&map("1", 2));
    assert_eq!(stream.next().await.unwrap().unwrap().0.name, "1");
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_controller_if_asked_to() {
    let (feed, controller) = controller::<ConfigMap>();
    let controller = controller.with_config(config().propagate_panics());
    let reconcile = |_: Arc<ConfigMap>, _: Arc<()>| async { panic!("on purpose") };
    let policy = |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<()>| Action::backoff();
    let stream = controller.run(reconcile, policy, Arc::new(()));
    let reading = tokio::spawn(stream.for_each(async |_| ()));
    feed.list(&[map("a", 1)]);
    let panic = reading.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
}

#[tokio::test(start_paused = true)]
async fn a_mapper_that_panics_ends_the_controller() {
    let (feed, controller) = controller::<ConfigMap>();
    let (watched, events) = Feed::<ConfigMap>::new();
    let mapper = |_| -> Option<ObjectRef<ConfigMap>> { panic!("in a mapper") };
    let controller = controller.watch_mapped(Watched::stream(events), mapper);
    let stream = controller.run(note, policy::backoff, Arc::new(Log::new()));
    let reading = tokio::spawn(stream.for_each(async |_| ()));
    feed.list(&[]);
    watched.list(&[]);
    a_moment().await;
    watched.apply(&map("x", 1));
    let panic = reading.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref(), Some(&"in a mapper"));
}
