//! The start of a controller.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::ObjectRef;
use requeue_kube::controller::{Action, Watched};
use requeue_kube::policy;
use tokio::sync::oneshot;

use super::common::*;

#[tokio::test(start_paused = true)]
async fn nothing_is_reconciled_before_all_watches_have_listed() {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::<Secret>::new();
    let log = Log::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let readiness = controller.readiness();
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    assert_eq!(readiness.waiting_for(), ["ConfigMap.v1 (controlled)", "Secret.v1 (owned)"]);
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(readiness.waiting_for(), ["Secret.v1 (owned)"]);
    assert!(log.names().is_empty() && !readiness.is_ready());
    children.list(&[]);
    readiness.ready().await;
    log.reaches(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_list_in_time_is_named() {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::<Secret>::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let log = Arc::new(Log::new());
    let begun = tokio::time::Instant::now();
    let reading = Reading::of(controller.run(note, policy::backoff, log));
    feed.list(&[map("a", 1)]);
    children.fail();
    let items = reading.end().await;
    assert_eq!(begun.elapsed().as_secs(), 120);
    assert_eq!(items.len(), 2, "{items:?}");
    assert!(items[0].starts_with("event queue error"), "{items:?}");
    assert_eq!(
        items[1],
        "runner error: no first list within 120s of Secret.v1 (owned); check the connection to the API server, the kind, and the permission to list it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_watch_waits_longer_each_time_until_it_lists() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Arc::new(Log::new());
    let reading = Reading::of(controller.run(note, policy::backoff, log));
    // Like kube's watchers, the feed begins a list before each error.
    for _ in 0..100 {
        feed.send(kube::runtime::watcher::Event::Init);
        feed.fail();
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The delays are 0.8 s, 1.6 s and so on, each with a jitter of up to the same length.
    assert!((4..=7).contains(&reading.items().len()), "{}", reading.items().len());
}

#[tokio::test(start_paused = true)]
async fn a_second_controller_of_one_name_is_an_error() {
    let (feed, first) = controller::<ConfigMap>();
    let (_feed, second) = controller::<ConfigMap>();
    let log = Arc::new(Log::new());
    let (first, second) = (first.name("twin"), second.name("twin"));
    let first = Reading::of(first.run(note, policy::backoff, Arc::clone(&log)));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    let items = Reading::of(second.run(note, policy::backoff, Arc::clone(&log))).end().await;
    assert!(items[0].contains("a controller named \"twin\" already runs"), "{items:?}");
    // The name is free again when the first controller is dropped.
    drop(first);
    a_moment().await;
    let (feed, third) = controller::<ConfigMap>();
    let _third = Reading::of(third.name("twin").run(note, policy::backoff, Arc::clone(&log)));
    feed.list(&[map("a", 1)]);
    log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_is_free_as_soon_as_its_stream_is_dropped() {
    for _ in 0..2 {
        let (_feed, controller) = controller::<ConfigMap>();
        let log = Arc::new(Log::new());
        let mut stream = Box::pin(controller.name("again").run(note, policy::backoff, log));
        assert!(stream.next().now_or_never().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_config_that_makes_no_sense_is_an_error() {
    let (_feed, controller) = controller::<ConfigMap>();
    let controller = controller.with_config(config().namespace_limit(0));
    let items =
        Reading::of(controller.run(note, policy::backoff, Arc::new(Log::new()))).end().await;
    assert!(items[0].contains("group limit of 0"), "{items:?}");
}

#[tokio::test(start_paused = true)]
async fn a_standby_sees_everything_queues_nothing_and_begins_with_what_there_is() {
    let (feed, controller) = controller::<ConfigMap>();
    let (lead, leads) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller.start_on(async { _ = leads.await });
    let (store, readiness) = (controller.store(), controller.readiness());
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    feed.delete(&map("b", 2));
    feed.apply(&map("c", 1));
    // The standby lasts longer than the time limit for the first lists.
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(readiness.is_ready() && log.names().is_empty());
    assert_eq!(store.len(), 2);
    lead.send(()).unwrap();
    log.reaches(2).await;
    feed.apply(&map("d", 1));
    log.reaches(3).await;
    assert_eq!(log.names(), ["a", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_standby_sees_go_is_run_by_reference_when_it_leads() {
    let (feed, controller) = controller::<ConfigMap>();
    let (watched, events) = Feed::<ConfigMap>::new();
    let (lead, leads) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller
        .watch_mapped(Watched::stream(events), |_| [ObjectRef::new("never there").within("ns")])
        .start_on(async { _ = leads.await });
    let _reading =
        Reading::of(controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone())));
    watched.list(&[map("x", 1)]);
    feed.list(&[map("again", 1), map("gone", 1), map("stays", 1)]);
    for name in ["again", "gone"] {
        feed.delete(&map(name, 2));
    }
    feed.apply(&map("again", 3));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(log.names().is_empty());
    lead.send(()).unwrap();
    log.reaches(4).await;
    a_moment().await;
    let mut names = log.names();
    names.sort_unstable();
    assert_eq!(names, ["again", "gone", "never there", "stays"]);
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_not_to_warm_up_watches_nothing() {
    let (feed, controller) = controller::<ConfigMap>();
    let (lead, leads) = oneshot::channel::<()>();
    let log = Log::new();
    let controller = controller.start_on(async { _ = leads.await }).without_warmup();
    let (store, readiness) = (controller.store(), controller.readiness());
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(store.is_empty() && readiness.is_ready());
    lead.send(()).unwrap();
    log.reaches(1).await;
}

#[tokio::test(start_paused = true)]
async fn the_store_has_what_is_handed_out() {
    let (feed, controller) = controller::<ConfigMap>();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(map.metadata.resource_version.clone().unwrap());
        Ok::<_, OnPurpose>(Action::await_change())
    };
    let log = Log::new();
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    // At the start of a list, no object may run, because until the end of the list the store
    // contains the previous objects.
    feed.list(&[map("a", 2)]);
    log.reaches(2).await;
    assert_eq!(log.names(), ["1", "2"]);
}
