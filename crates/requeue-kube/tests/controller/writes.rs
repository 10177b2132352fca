//! Runs that must read the controller's own writes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use either::Either;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Status;
use kube::core::response::StatusDetails;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use requeue::Pace;
use requeue_kube::controller::{self, Action, Config, Watched, Writes};
use requeue_kube::metrics::Metrics;
use requeue_kube::shared::SharedWatch;
use requeue_kube::{Controller, ObjectKey, policy};
use tokio::time::sleep;

use super::common::*;

/// Returns the child of `owner` with this version.
fn child(owner: &str, version: u32) -> Secret {
    let metadata = map(&format!("child of {owner}"), version).metadata;
    owned_by::<ConfigMap, _>(Secret { metadata, ..Secret::default() }, owner)
}

fn details(uid: &str) -> StatusDetails {
    serde_json::from_value(serde_json::json!({ "name": "child of a", "uid": uid })).unwrap()
}

/// The context of the reconciler.
struct Context {
    log: Log,
    writes: Writes,
    /// The response of the first run's write.
    response: Mutex<Option<Secret>>,
    /// The first run's result.
    next: Action,
}

/// A reconciler that records each run and, in the first run, the write.
async fn write(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, OnPurpose> {
    context.log.note(name(&*map));
    let Some(written) = context.response.lock().unwrap().take() else {
        return Ok(Action::await_change());
    };
    context.writes.record(&written);
    Ok(context.next.clone())
}

/// A controller of ConfigMaps that own Secrets. Its first run writes a Secret with version 10.
struct World {
    owners: Feed<ConfigMap>,
    children: Feed<Secret>,
    log: Log,
    status: controller::Status,
    metrics: prometheus_client::registry::Registry,
    _reading: Reading,
}

impl World {
    fn new(config: Config, next: Action) -> Self {
        let (owners, controller) = controller::<ConfigMap>();
        let (children, events) = Feed::new();
        let mut metrics = prometheus_client::registry::Registry::default();
        let controller = controller
            .watch_owned(Watched::stream(events))
            .metrics(&Metrics::register(&mut metrics))
            .with_config(config);
        let (log, status) = (Log::new(), controller.status());
        let response = Mutex::new(Some(child("a", 10)));
        let context = Context { log: log.clone(), writes: controller.writes(), response, next };
        let reading = Reading::of(controller.run(write, policy::backoff, Arc::new(context)));
        owners.list(&[map("a", 1)]);
        children.list(&[]);
        Self { owners, children, log, status, metrics, _reading: reading }
    }

    /// Returns the value of a counter of the only controller.
    fn count(&self, family: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics).unwrap();
        let line =
            text.lines().find(|line| line.starts_with(&format!("{family}_total{{"))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_runs_again_when_the_watch_has_shown_its_write() {
    let world = World::new(config(), Action::await_change());
    world.log.reaches(1).await;
    for _ in 0..3 {
        world.owners.apply(&map("a", 2));
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.log.names().len(), 1, "the write was not shown yet");
    assert!(world.count("stale_sync_skips") >= 1);
    world.children.apply(&child("a", 10));
    a_moment().await;
    assert_eq!(world.log.names().len(), 2);
    // From now on, no run waits for a write.
    world.owners.apply(&map("a", 4));
    a_moment().await;
    assert_eq!(world.log.names().len(), 3);
    assert_eq!(world.count("stale_sync_timeouts"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_status_says_for_which_write_an_object_waits() {
    let world = World::new(config(), Action::await_change());
    world.log.reaches(1).await;
    let why = || world.status.why_waits(&ObjectKey::new(Some("ns"), "a"));
    assert_eq!(why(), None, "it does not run again");
    world.owners.apply(&map("a", 2));
    sleep(Duration::from_secs(3)).await;
    let wait = why().unwrap();
    let expected =
        "waits for the watch to reach resourceVersion 10 of Secret ns/child of a, at most ";
    let left: f64 =
        wait.strip_prefix(expected).unwrap().strip_suffix(" s").unwrap().parse().unwrap();
    assert!((6.9..7.1).contains(&left), "{left:?}");
    assert_eq!(world.status.why_waits(&ObjectKey::new(Some("ns"), "b")), None);
    world.children.apply(&child("a", 10));
    a_moment().await;
    assert_eq!(why(), None);
    assert_eq!(world.status.shard_group(), None);
}

/// A delivery with a stale store is released, and must not count as a start. Otherwise, the second run would be the
/// third start.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_waits_for_a_write_does_not_count_toward_the_pace() {
    let config = config().pace(Pace::new(2, Duration::from_secs(60)));
    let world = World::new(config, Action::await_change());
    world.log.reaches(1).await;
    world.owners.apply(&map("a", 2));
    a_moment().await;
    assert_eq!(world.count("stale_sync_skips"), 1);
    world.children.apply(&child("a", 10));
    a_moment().await;
    assert_eq!(world.log.names().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn another_object_of_the_kind_with_a_later_version_shows_a_write() {
    let world = World::new(config(), Action::requeue_after(Duration::ZERO));
    world.log.reaches(1).await;
    let other = Secret { metadata: map("other", 9).metadata, ..Secret::default() };
    world.children.apply(&other);
    a_moment().await;
    assert_eq!(world.log.names().len(), 1);
    let other = Secret { metadata: map("other", 11).metadata, ..Secret::default() };
    world.children.apply(&other);
    world.log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_with_a_later_version_shows_a_write() {
    let world = World::new(config(), Action::await_change());
    world.children.send(Event::Init);
    world.log.reaches(1).await;
    world.owners.apply(&map("a", 2));
    // This list may have begun before the write, and may not contain it.
    world.children.send(Event::InitDone);
    a_moment().await;
    assert_eq!(world.log.names().len(), 1);
    world.children.list(&[child("a", 10)]);
    world.log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_waits_no_longer_than_the_limit_and_is_counted() {
    let config = config().own_writes_timeout(Duration::from_secs(3));
    let world = World::new(config, Action::requeue_after(Duration::ZERO));
    world.log.reaches(2).await;
    let times = world.log.times("a");
    assert_eq!((times[1] - times[0]).as_secs(), 3);
    assert_eq!(world.count("stale_sync_timeouts"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_disables_the_wait() {
    let config = config().own_writes_timeout(Duration::ZERO);
    let world = World::new(config, Action::await_change());
    world.log.reaches(1).await;
    world.owners.apply(&map("a", 2));
    a_moment().await;
    assert_eq!(world.log.names().len(), 2);
    assert_eq!(world.count("stale_sync_skips"), 0);
}

#[tokio::test(start_paused = true)]
async fn other_objects_do_not_wait() {
    let world = World::new(config(), Action::await_change());
    world.log.reaches(1).await;
    world.owners.apply(&map("b", 2));
    a_moment().await;
    assert_eq!(world.log.names(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_before_the_record_counts_and_a_kind_that_is_not_watched_never_delays() {
    let (owners, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let log = Log::new();
    let (writes, feed) = (controller.writes(), children.clone());
    let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
        let (writes, feed) = (writes.clone(), feed.clone());
        async move {
            log.note(name(&*map));
            feed.apply(&child("a", 10));
            sleep(Duration::from_millis(10)).await;
            writes.record(&child("a", 10));
            // No watch has the kind of the first object, and the second object has no version.
            writes.record(&Node { metadata: map.metadata.clone(), ..Node::default() });
            writes.record(&Secret::default());
            Ok::<_, OnPurpose>(Action::await_change())
        }
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    owners.list(&[map("a", 1)]);
    children.list(&[]);
    log.reaches(2).await;
    assert_eq!(log.times("a")[1].as_millis() / 10, 1, "it runs again at once");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_shown_by_its_event() {
    let mut terminating = child("a", 20);
    terminating.metadata.deletion_timestamp = Some(Time(Default::default()));
    let status = Status { details: Some(details("uid of child of a")), ..Status::success() };
    let cases: [(Either<Secret, Status>, _); 3] = [
        // The object is gone immediately. The response contains the last state, or no object.
        (Either::Left(child("a", 10)), Event::Delete(child("a", 11))),
        (Either::Right(status), Event::Delete(child("a", 11))),
        // The deletion is in progress, as the version in the response shows.
        (Either::Left(terminating.clone()), Event::Apply(terminating)),
    ];
    for (deleted, shows) in cases {
        let (owners, controller) = controller::<ConfigMap>();
        let (children, events) = Feed::new();
        let controller = controller.watch_owned(Watched::stream(events));
        let (log, writes) = (Log::new(), controller.writes());
        let deleted = Mutex::new(Some(deleted));
        let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
            log.note(name(&*map));
            let deleted = deleted.lock().unwrap().take();
            if let Some(deleted) = deleted {
                writes.record_deletion(&deleted);
            }
            async { Ok::<_, OnPurpose>(Action::await_change()) }
        };
        let stream = controller.run(reconcile, policy::backoff, Arc::new(log.clone()));
        let _reading = Reading::of(stream);
        owners.list(&[map("a", 1)]);
        children.list(&[child("a", 9)]);
        log.reaches(1).await;
        children.apply(&child("a", 10));
        a_moment().await;
        assert_eq!(log.names().len(), 1, "the object is still there");
        children.send(shows);
        log.reaches(2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_two_watches_of_a_kind_the_written_object_shows_its_write() {
    let (owners, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let (others, other_events) = Feed::<Secret>::new();
    let controller = controller
        .watch_owned(Watched::stream(events))
        .watch_mapped(Watched::stream(other_events), |_| None::<ObjectRef<ConfigMap>>);
    let (log, writes) = (Log::new(), controller.writes());
    let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
        log.note(name(&*map));
        writes.record(&child("a", 10));
        async { Ok::<_, OnPurpose>(Action::await_change()) }
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    owners.list(&[map("a", 1)]);
    children.list(&[]);
    others.list(&[]);
    log.reaches(1).await;
    owners.apply(&map("a", 2));
    // The other watch never shows the child, although it reaches later versions.
    others.apply(&Secret { metadata: map("other", 90).metadata, ..Secret::default() });
    a_moment().await;
    assert_eq!(log.names().len(), 1);
    children.apply(&child("a", 10));
    log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn events_of_own_writes_start_no_run_if_they_are_suppressed() {
    for suppress in [false, true] {
        let config = if suppress { config().suppress_own_writes() } else { config() };
        let world = World::new(config, Action::await_change());
        world.log.reaches(1).await;
        world.children.apply(&child("a", 10));
        a_moment().await;
        assert_eq!(world.log.names().len(), if suppress { 1 } else { 2 });
        // A later version is a change by another client.
        world.children.apply(&child("a", 11));
        a_moment().await;
        assert_eq!(world.log.names().len(), if suppress { 2 } else { 3 });
        world.children.delete(&child("a", 12));
        a_moment().await;
        assert_eq!(world.log.names().len(), if suppress { 3 } else { 4 });
    }
}

/// Returns a reconciler whose runs take 10 ms. The first run writes version 10 of the child.
fn writing(
    writes: Writes,
) -> impl Fn(Arc<ConfigMap>, Arc<Log>) -> BoxFuture<'static, Result<Action, OnPurpose>> {
    move |map, log| {
        let writes = writes.clone();
        async move {
            log.note(name(&*map));
            sleep(Duration::from_millis(10)).await;
            if log.names().len() == 1 {
                writes.record(&child("a", 10));
            }
            Ok(Action::await_change())
        }
        .boxed()
    }
}

/// Two changes that a shared watch receives together are one event for its subscribers. If another
/// client made the first change, the run has not seen that change.
#[tokio::test(start_paused = true)]
async fn a_change_that_a_shared_watch_merges_with_an_own_write_starts_a_run() {
    type Share = fn(SharedWatch<Secret>, Controller<ConfigMap>) -> Controller<ConfigMap>;
    let shares: [Share; 2] = [
        |children, controller| controller.watch_owned(Watched::shared(&children)),
        |children, controller| {
            controller.watch_mapped(Watched::shared(&children), |_| {
                Some(ObjectRef::new("a").within("ns"))
            })
        },
    ];
    for share in shares {
        // Another client has written versions 9 and 11.
        for (versions, is_during_run, runs) in [
            (&[10][..], false, 1),
            (&[9, 10], false, 2),
            (&[10, 11], false, 2),
            (&[10], true, 1),
            (&[9, 10], true, 2),
            (&[10, 11], true, 2),
        ] {
            let (children, events) = Feed::new();
            let (owners, controller) = controller::<ConfigMap>();
            let controller = share(SharedWatch::from_stream(events, ()), controller)
                .with_config(config().suppress_own_writes());
            let (log, writes) = (Log::new(), controller.writes());
            let stream = controller.run(writing(writes), policy::backoff, Arc::new(log.clone()));
            let _reading = Reading::of(stream);
            owners.list(&[map("a", 1)]);
            children.list(&[child("a", 8)]);
            log.reaches(1).await;
            if !is_during_run {
                sleep(Duration::from_secs(1)).await;
            }
            versions.iter().for_each(|version| children.apply(&child("a", *version)));
            sleep(Duration::from_secs(1)).await;
            assert_eq!(log.names().len(), runs, "{versions:?}, during the run: {is_during_run}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_main_object_that_a_shared_watch_merges_with_an_own_write_starts_a_run() {
    for (versions, runs) in [(&[3][..], 1), (&[2, 3], 2)] {
        let (feed, events) = Feed::new();
        let watch = SharedWatch::from_stream(events, ());
        let controller = Controller::for_shared(&watch)
            .name(format!("merged {versions:?}"))
            .with_config(config().suppress_own_writes());
        let (log, writes) = (Log::new(), controller.writes());
        let reconcile = move |object: Arc<ConfigMap>, log: Arc<Log>| {
            log.note(name(&*object));
            if log.names().len() == 1 {
                writes.record(&map("a", 3));
            }
            async { Ok::<_, OnPurpose>(Action::await_change()) }
        };
        let stream = controller.run(reconcile, policy::backoff, Arc::new(log.clone()));
        let _reading = Reading::of(stream);
        feed.list(&[map("a", 1)]);
        log.reaches(1).await;
        a_moment().await;
        versions.iter().for_each(|version| feed.apply(&map("a", *version)));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(log.names().len(), runs, "{versions:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_during_the_run_waits_for_its_end_and_is_lost_only_if_it_is_an_own_write() {
    for (version, runs) in [(10, 1), (11, 2)] {
        let (owners, controller) = controller::<ConfigMap>();
        let (children, events) = Feed::new();
        let controller = controller
            .watch_owned(Watched::stream(events))
            .with_config(config().suppress_own_writes());
        let (log, writes) = (Log::new(), controller.writes());
        let stream = controller.run(writing(writes), policy::backoff, Arc::new(log.clone()));
        let _reading = Reading::of(stream);
        owners.list(&[map("a", 1)]);
        children.list(&[]);
        log.reaches(1).await;
        children.apply(&child("a", version));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(log.names().len(), runs, "version {version}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_of_another_task_is_recorded_for_the_object_that_it_names() {
    let (owners, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let (log, writes) = (Log::new(), controller.writes());
    let first = AtomicU32::new(0);
    let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
        log.note(name(&*map));
        let (writes, first) = (writes.clone(), first.fetch_add(1, Ordering::Relaxed) == 0);
        async move {
            let task = tokio::spawn(async move {
                // The call is not within a run, so it has no effect.
                writes.record(&child("a", 99));
                if first {
                    let object = kube::runtime::reflector::ObjectRef::from_obj(&*map);
                    writes.record_for(&object, &child("a", 10));
                }
            });
            task.await.unwrap();
            let next =
                if first { Action::requeue_after(Duration::ZERO) } else { Action::await_change() };
            Ok::<_, OnPurpose>(next)
        }
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    owners.list(&[map("a", 1)]);
    children.list(&[]);
    log.reaches(1).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(log.names().len(), 1);
    children.apply(&child("a", 10));
    log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn another_owner_runs_although_the_write_is_suppressed() {
    let config = config().suppress_own_writes();
    let world = World::new(config, Action::await_change());
    world.log.reaches(1).await;
    // The run of `a` has written `b` as the owner.
    let mut moved = child("a", 10);
    moved.metadata.owner_references = None;
    world.children.apply(&owned_by::<ConfigMap, _>(moved, "b"));
    world.owners.apply(&map("b", 12));
    world.log.reaches(2).await;
    assert_eq!(world.log.names(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changed_and_was_deleted_during_its_run_does_not_run_again() {
    let (owners, controller) = controller::<ConfigMap>();
    let controller = controller.with_config(config().suppress_own_writes());
    let log = Log::new();
    let reconcile = async |map: Arc<ConfigMap>, log: Arc<Log>| {
        log.note(name(&*map));
        sleep(Duration::from_millis(10)).await;
        Ok::<_, OnPurpose>(Action::await_change())
    };
    let reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    owners.list(&[map("a", 1)]);
    log.reaches(1).await;
    owners.apply(&map("a", 2));
    owners.delete(&map("a", 3));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((log.names().len(), reading.items().len()), (1, 1), "{:?}", reading.items());
}
