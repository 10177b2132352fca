//! Changes that a watch has missed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::core::ObjectMeta;
use kube::runtime::predicates;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use requeue_kube::{Controller, ObjectKey, policy};
use tokio::sync::Semaphore;

use super::common::*;
use requeue_kube::controller::{Action, Watched};

fn secret(name: &str) -> Secret {
    let map = map(name, 1);
    Secret { metadata: map.metadata, ..Secret::default() }
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_unseen_is_reconciled_by_reference() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let _reading =
        Reading::of(controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("kept", 1), map("gone", 1)]);
    log.reaches(2).await;
    log.clear();
    // The watch was disconnected in the meantime, and the list does not contain `gone`.
    feed.list(&[map("kept", 1)]);
    log.reaches(1).await;
    a_moment().await;
    assert_eq!(log.names(), ["gone"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_is_not_reconciled_by_object_nor_tried_again() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let fail = async |map: Arc<ConfigMap>, log: Arc<Log>| {
        log.note(name(&*map));
        Err::<Action, _>(OnPurpose)
    };
    let fail = move |map, log| Box::pin(fail(map, log));
    let reading = Reading::of(controller.run(fail, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    log.reaches(4).await;
    feed.delete(&map("a", 2));
    feed.list(&[]);
    a_moment().await;
    let runs = log.names().len();
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert_eq!(log.names().len(), runs);
    assert!(reading.items().iter().all(|item| item.contains("on purpose")));
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_what_was_deleted_unseen_is_reconciled() {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let log = Log::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("owner", 1), map("other", 1)]);
    let child = |name, owner| owned_by::<ConfigMap, _>(secret(name), owner);
    children.list(&[child("x", "owner"), child("y", "other")]);
    log.reaches(2).await;
    log.clear();
    children.list(&[child("y", "other")]);
    log.reaches(1).await;
    a_moment().await;
    assert_eq!(log.names(), ["owner"]);
    // The same holds for a deletion that the watch reports.
    log.clear();
    children.delete(&child("y", "other"));
    log.reaches(1).await;
    assert_eq!(log.names(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn whom_something_concerned_that_was_deleted_unseen_is_reconciled() {
    let (feed, controller) = controller::<ConfigMap>();
    let (watched, events) = Feed::new();
    let log = Log::new();
    let mapper =
        |secret: Secret| Some(ObjectRef::new(&format!("of {}", name(&secret))).within("ns"));
    let controller = controller.watch_mapped(Watched::stream(events), mapper);
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("of x", 1), map("of y", 1)]);
    watched.list(&[secret("x"), secret("y")]);
    log.reaches(2).await;
    log.clear();
    watched.send(Event::Init);
    watched.send(Event::InitDone);
    log.reaches(2).await;
    assert_eq!(log.names(), ["of x", "of y"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_any_version_of_its_kind_is_an_owner() {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let log = Log::new();
    let controller = controller.watch_owned(Watched::stream(events));
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("owner", 1)]);
    children.list(&[]);
    log.reaches(1).await;
    let mut child = owned_by::<ConfigMap, _>(secret("x"), "owner");
    child.metadata.owner_references.as_mut().unwrap()[0].api_version = "v2beta1".into();
    children.apply(&child);
    log.reaches(2).await;
    // A kind of the same name in another API group is another kind.
    child.metadata.name = Some("y".into());
    child.metadata.owner_references.as_mut().unwrap()[0].api_version = "other/v1".into();
    children.apply(&child);
    a_moment().await;
    assert_eq!(log.names(), ["owner", "owner"]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_the_cluster_is_one_object_wherever_its_children_are() {
    let (feed, controller) = controller::<Node>();
    let (children, events) = Feed::new();
    let controller =
        controller.watch_owned(Watched::stream(events)).with_config(config().concurrency(8));
    let (log, running, most) = (Log::new(), Arc::new(Semaphore::new(8)), Arc::default());
    let context = Arc::new((log.clone(), running, Arc::clone(&most)));
    type Context = (Log, Arc<Semaphore>, Arc<std::sync::atomic::AtomicUsize>);
    let reconcile = |node: Arc<Node>, context: Arc<Context>| async move {
        let (log, running, most) = &*context;
        let _running = running.acquire().await.unwrap();
        most.fetch_max(8 - running.available_permits(), std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        log.note(name(&*node));
        Ok::<_, OnPurpose>(Action::await_change())
    };
    let reading = Reading::of(controller.run(reconcile, policy::backoff, context));
    let metadata = ObjectMeta { name: Some("node".into()), ..ObjectMeta::default() };
    feed.list(&[Node { metadata, ..Node::default() }]);
    children.list(&[]);
    for version in 1..30 {
        for namespace in ["a", "b", "c"] {
            let child = in_namespace(namespace, "child", version);
            children.apply(&owned_by::<Node, _>(child, "node"));
        }
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(most.load(std::sync::atomic::Ordering::Relaxed), 1, "overlapping runs");
    assert!(log.names().len() > 5);
    assert!(reading.items().iter().all(|item| item == "ok node"), "{:?}", reading.items());
}

#[tokio::test(start_paused = true)]
async fn a_predicate_leaves_out_changes_but_no_deletes() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let controller = controller.filter(predicates::generation);
    let _reading =
        Reading::of(controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1), map("b", 1)]);
    log.reaches(2).await;
    log.clear();
    feed.apply(&map("a", 2));
    feed.list(&[map("a", 3), map("b", 2)]);
    a_moment().await;
    assert!(log.names().is_empty());
    feed.apply(&generation(map("a", 4), 2));
    feed.delete(&map("b", 3));
    log.reaches(2).await;
    assert_eq!(log.names(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn what_fails_while_it_is_deleted_is_not_looked_for() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Err::<Action, _>(OnPurpose)
    };
    let reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    feed.delete(&map("a", 2));
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(reading.items(), ["reconciler for object ConfigMap.v1./a.ns failed: on purpose"]);
}

/// A function that sends a list of objects with these names and versions.
type List = Box<dyn Fn(&[(&str, u32)])>;

/// Returns a controller of ConfigMaps that own Secrets, and that watches Nodes, with a feed for
/// each of the three watches. A Node concerns the ConfigMap of the same name.
fn of_three() -> ([List; 3], Controller<ConfigMap>) {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, owned) = Feed::new();
    let (nodes, watched) = Feed::new();
    let mapper = |node: Node| [ObjectRef::new(&name(&node)).within("ns")];
    let controller = controller
        .watch_owned(Watched::stream(owned))
        .watch_mapped(Watched::stream(watched), mapper);
    let list_maps = move |maps: &[(&str, u32)]| {
        feed.list(&maps.iter().map(|&(name, version)| map(name, version)).collect::<Vec<_>>());
    };
    let list_children = move |maps: &[(&str, u32)]| {
        let child = |&(name, version): &(&str, u32)| {
            let metadata = map(name, version).metadata;
            owned_by::<ConfigMap, _>(Secret { metadata, ..Secret::default() }, name)
        };
        children.list(&maps.iter().map(child).collect::<Vec<_>>());
    };
    let list_nodes = move |maps: &[(&str, u32)]| {
        let node = |&(name, version): &(&str, u32)| {
            let metadata = ObjectMeta { namespace: None, ..map(name, version).metadata };
            Node { metadata, ..Node::default() }
        };
        nodes.list(&maps.iter().map(node).collect::<Vec<_>>());
    };
    ([Box::new(list_maps), Box::new(list_children), Box::new(list_nodes)], controller)
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[tokio::test(start_paused = true)]
async fn a_relist_of_every_watch_runs_each_changed_object_once_and_no_other() {
    let (lists, controller) = of_three();
    let log = Log::new();
    let _reading =
        Reading::of(controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone())));
    let first = NAMES.map(|name| (name, 1));
    lists.iter().for_each(|list| list(&first));
    log.reaches(NAMES.len()).await;
    a_moment().await;
    assert_eq!(log.names(), NAMES);

    // All watches list again without a change, first one after the other, then at the same time.
    log.clear();
    for list in &lists {
        list(&first);
        a_moment().await;
    }
    lists.iter().for_each(|list| list(&first));
    a_moment().await;
    assert_eq!(log.names(), [""; 0]);

    // In each list, one object has changed, one object is deleted, and the other objects are
    // unchanged.
    for (list, [changed, gone]) in lists.iter().zip([["a", "b"], ["c", "d"], ["e", "f"]]) {
        log.clear();
        let version = |name| if name == changed { 2 } else { 1 };
        let there = NAMES.into_iter().filter(|&name| name != gone);
        list(&there.map(|name| (name, version(name))).collect::<Vec<_>>());
        a_moment().await;
        let mut names = log.names();
        names.sort_unstable();
        assert_eq!(names, [changed, gone]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_recreated_unseen_is_another_one() {
    let (feed, controller) = controller::<ConfigMap>();
    let log = Log::new();
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("same", 1), map("recreated", 1)]);
    log.reaches(2).await;
    log.clear();
    let mut recreated = map("recreated", 1);
    recreated.metadata.uid = Some("another".into());
    feed.list(&[map("same", 1), recreated]);
    a_moment().await;
    assert_eq!(log.names(), ["recreated"]);
}

#[tokio::test(start_paused = true)]
async fn unchanged_objects_run_once_for_all_relists_where_that_is_asked_for() {
    let (lists, controller) = of_three();
    let log = Log::new();
    let controller = controller.with_config(config().reconcile_unchanged());
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    let objects = NAMES.map(|name| (name, 1));
    lists.iter().for_each(|list| list(&objects));
    log.reaches(NAMES.len()).await;
    a_moment().await;
    log.clear();
    for list in &lists {
        list(&objects);
        a_moment().await;
    }
    assert_eq!(log.names(), NAMES);
}

#[tokio::test(start_paused = true)]
async fn a_relist_disturbs_no_unchanged_object_that_runs_backs_off_or_is_given_up() {
    let (lists, controller) = of_three();
    let log = Log::new();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        match &*name(&*map) {
            "a" => tokio::time::sleep(std::time::Duration::from_secs(5)).await,
            "b" | "c" => return Err(OnPurpose),
            _ => {}
        }
        Ok(Action::await_change())
    };
    let hour = std::time::Duration::from_secs(3600);
    let config = config()
        .concurrency(8)
        .rate_limiter(move || requeue::limiter::ExponentialFailure::new(hour, hour));
    let controller = controller.with_config(config);
    let policy = |map: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| match &*name(&*map) {
        "c" => Action::terminal(),
        _ => Action::backoff(),
    };
    let _reading = Reading::of(controller.run(reconcile, policy, Arc::new(log.clone())));
    let objects = NAMES.map(|name| (name, 1));
    lists.iter().for_each(|list| list(&objects));
    log.reaches(NAMES.len()).await;
    log.clear();
    for list in &lists {
        list(&objects);
        a_moment().await;
    }
    tokio::time::sleep(hour / 2).await;
    assert_eq!(log.names(), [""; 0]);
    // `b` runs when its backoff has passed, and no other object runs.
    tokio::time::sleep(hour).await;
    assert_eq!(log.names(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_with_many_changes_that_concern_one_object_adds_it_once() {
    let (feed, controller) = controller::<ConfigMap>();
    let (children, events) = Feed::new();
    let (give, queue) = tokio::sync::oneshot::channel();
    let log = Log::new();
    let controller = controller
        .watch_owned(Watched::stream(events))
        .queue_on_start(move |queue| _ = give.send(queue));
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    let child = |name, version| {
        let metadata = map(name, version).metadata;
        owned_by::<ConfigMap, _>(Secret { metadata, ..Secret::default() }, "owner")
    };
    feed.list(&[map("owner", 1)]);
    children.list(&["x", "y", "z", "gone"].map(|name| child(name, 1)));
    log.reaches(1).await;
    a_moment().await;
    let queue = queue.await.unwrap();
    queue.pause();
    children.list(&["x", "y", "new"].map(|name| child(name, 2)));
    a_moment().await;
    let owner = ObjectKey::new(Some("ns"), "owner");
    assert_eq!(queue.look_up(&owner).map(|entry| entry.adds), Some(1));
}
