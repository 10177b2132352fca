//! The order of objects, and the delays of changes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::controller::{ReconcileReason, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;
use requeue_kube::controller::{Action, Request, Watched};
use requeue_kube::policy;

use super::common::*;

const SECOND: Duration = Duration::from_secs(1);

/// A reconciler that takes 10 ms for each object.
async fn slowly(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, OnPurpose> {
    log.note(name(&*map));
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(Action::await_change())
}

fn many(count: u32) -> Vec<ConfigMap> {
    (0..count).map(|number| map(&format!("{number:04}"), 1)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_changed_object_goes_ahead_of_a_resync_of_5000() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(config().concurrency(64).reconcile_unchanged());
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    let mut objects = many(5000);
    feed.list(&objects);
    log.reaches(5000).await;
    tokio::time::sleep(SECOND).await;
    log.clear();
    // A list in which one object has changed, and then a change while the other objects are
    // reconciled.
    objects[4000] = map("4000", 2);
    feed.list(&objects);
    log.reaches(1000).await;
    feed.apply(&map("4999", 2));
    log.reaches(5000).await;
    let names = log.names();
    let place = |name: &str| names.iter().position(|other| other == name).unwrap();
    assert!(place("4000") < 64, "{}", place("4000"));
    assert!((1000..1200).contains(&place("4999")), "{}", place("4999"));
}

#[tokio::test(start_paused = true)]
async fn all_are_reconciled_in_bulk_and_changes_before_them() {
    let (feed, controller) = controller();
    let log = Log::new();
    let (bulk, trigger) = tokio::sync::mpsc::unbounded_channel();
    let controller = controller.reconcile_all_on(receive(trigger));
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    feed.list(&many(5));
    log.reaches(5).await;
    log.clear();
    bulk.send(()).unwrap();
    log.reaches(1).await;
    feed.apply(&map("0004", 2));
    log.reaches(5).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(log.names(), ["0000", "0004", "0001", "0002", "0003"]);
}

#[tokio::test(start_paused = true)]
async fn a_mapper_sets_the_priorities_of_the_objects_that_it_names() {
    let (feed, controller) = controller();
    let (watched, events) = Feed::<Secret>::new();
    let mapper = |secret: Secret| {
        let priority: i32 =
            secret.metadata.labels.clone().unwrap_or_default()["priority"].parse().unwrap();
        let request = Request::new(ObjectRef::<ConfigMap>::new(&name(&secret)).within("ns"));
        // If one object has two requests, the higher priority counts.
        [request.clone().priority(-3), request.priority(priority)]
    };
    let secret = |name, version, priority: i32| {
        let mut metadata = map(name, version).metadata;
        metadata.labels = Some([("priority".to_owned(), priority.to_string())].into());
        Secret { metadata, ..Secret::default() }
    };
    let log = Log::new();
    let controller = controller.watch_mapped(Watched::stream(events), mapper);
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    feed.list(&["a", "b", "c", "d"].map(|name| map(name, 1)));
    watched.list(&[secret("b", 1, 5), secret("c", 1, 7)]);
    log.reaches(4).await;
    assert_eq!(log.names(), ["c", "b", "a", "d"], "also in the first list");
    tokio::time::sleep(SECOND).await;
    log.clear();
    feed.apply(&map("a", 2));
    a_moment().await;
    watched.apply(&secret("b", 2, 1));
    feed.apply(&map("d", 2));
    watched.apply(&secret("c", 2, 9));
    log.reaches(4).await;
    assert_eq!(log.names(), ["a", "c", "b", "d"]);
    // The watch has missed the deletions.
    tokio::time::sleep(SECOND).await;
    log.clear();
    feed.apply(&map("a", 3));
    a_moment().await;
    feed.apply(&map("d", 3));
    watched.list(&[]);
    log.reaches(4).await;
    assert_eq!(log.names(), ["a", "c", "b", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_sets_the_priorities_of_the_objects_that_it_names() {
    let (feed, controller) = controller();
    let log = Log::new();
    let (named, trigger) = tokio::sync::mpsc::unbounded_channel::<Request<ConfigMap>>();
    let controller = controller.reconcile_on(receive(trigger));
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    feed.list(&many(4));
    log.reaches(4).await;
    tokio::time::sleep(SECOND).await;
    log.clear();
    let request = |name| Request::new(ObjectRef::new(name).within("ns"));
    named.send(request("0000")).unwrap();
    a_moment().await;
    for (name, priority) in [("0001", -1), ("0002", 0), ("0003", 1)] {
        named.send(request(name).priority(priority)).unwrap();
    }
    log.reaches(4).await;
    assert_eq!(log.names(), ["0000", "0003", "0002", "0001"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_reconciled_when_a_stream_names_it() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let (named, trigger) = tokio::sync::mpsc::unbounded_channel::<ReconcileRequest<ConfigMap>>();
    let controller = controller.reconcile_on(receive(trigger));
    let reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    let obj_ref = ObjectRef::new("a").within("ns");
    let reason = ReconcileReason::Custom { reason: "because".into() };
    named.send(ReconcileRequest { obj_ref, reason }).ok().unwrap();
    log.reaches(2).await;
    named.send(ObjectRef::new("nobody").within("ns").into()).ok().unwrap();
    a_moment().await;
    assert!(reading.items()[2].contains("nobody.ns that was not found"), "{:?}", reading.items());
}

#[tokio::test(start_paused = true)]
async fn a_key_comes_back_with_the_priority_that_is_asked_for() {
    let (feed, controller) = controller();
    let log = Log::new();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        let first = !log.names().contains(&name(&*map));
        log.note(name(&*map));
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, OnPurpose>(match (first, name(&*map).as_str()) {
            (true, "urgent") => Action::requeue_after(SECOND).priority(50),
            (true, "idle") => Action::requeue_after(SECOND).priority(-1000),
            (true, _) => Action::requeue_after(SECOND),
            (false, _) => Action::await_change(),
        })
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("idle", 1), map("plain", 1), map("urgent", 1), map("zz", 1)]);
    tokio::time::sleep(SECOND - Duration::from_millis(5)).await;
    // These objects keep the worker busy while the other objects become due.
    let busy: Vec<_> = (0..6).map(|number| map(&format!("busy {number}"), 1)).collect();
    busy.iter().for_each(|object| feed.apply(object));
    tokio::time::sleep(SECOND).await;
    let names = log.names();
    let place = |name: &str| names.iter().rposition(|other| other == name).unwrap();
    assert!(place("urgent") < place("busy 5"), "{names:?}");
    assert!(place("busy 5") < place("plain"), "{names:?}");
    assert!(place("plain") < place("idle"), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_for_the_last_one_but_not_for_ever() {
    let (feed, controller) = controller();
    let log = Log::new();
    let config = config().debounce(SECOND).debounce_max(SECOND * 5);
    let controller = controller.with_config(config);
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        // The requested later run of the object must not delay the run for a change.
        Ok::<_, OnPurpose>(Action::requeue_after(SECOND * 3600))
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 0)]);
    tokio::time::sleep(SECOND * 10).await;
    for version in 1..30 {
        feed.apply(&map("a", version));
        tokio::time::sleep(SECOND / 2).await;
    }
    tokio::time::sleep(SECOND * 10).await;
    let times: Vec<_> = log.times("a").iter().map(Duration::as_secs).collect();
    // The last change is at 24 s.
    assert_eq!(times, [1, 15, 20, 25]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_changes_does_not_hold_up_another() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(config().fair_namespaces());
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    feed.list(&[]);
    for number in 0..100 {
        feed.apply(&in_namespace("busy", &format!("{number:04}"), 1));
    }
    feed.apply(&in_namespace("calm", "calm", 1));
    log.reaches(101).await;
    let place = log.names().iter().position(|name| name == "calm").unwrap();
    assert!(place <= 2, "{place}");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_has_no_more_workers_than_its_limit() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(config().concurrency(10).namespace_limit(2));
    let _reading = Reading::of(controller.run(slowly, policy::backoff, Arc::new(log.clone())));
    feed.list(&many(6));
    tokio::time::sleep(Duration::from_millis(15)).await;
    assert_eq!(log.names().len(), 4);
}

fn receive<T: Send + 'static>(
    mut from: tokio::sync::mpsc::UnboundedReceiver<T>,
) -> impl futures_util::Stream<Item = T> + Send + 'static {
    futures_util::stream::poll_fn(move |cx| from.poll_recv(cx))
}
