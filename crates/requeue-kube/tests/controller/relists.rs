//! What a watch has missed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::core::ObjectMeta;
use kube::runtime::predicates;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use requeue_kube::policy;
use tokio::sync::Semaphore;

use super::common::*;
use requeue_kube::controller::Action;

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
    // The watch was cut off meanwhile: a list without `gone`.
    feed.list(&[map("kept", 1)]);
    log.reaches(2).await;
    assert_eq!(log.names(), ["gone", "kept"]);
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
    let controller = controller.owns_stream::<Secret>(events);
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("owner", 1), map("other", 1)]);
    let child = |name, owner| owned_by::<ConfigMap, _>(secret(name), owner);
    children.list(&[child("x", "owner"), child("y", "other")]);
    log.reaches(2).await;
    log.clear();
    children.list(&[child("y", "other")]);
    log.reaches(2).await;
    assert_eq!(log.names(), ["owner", "other"]);
    // Once more, with deletes that are seen.
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
    let controller = controller.watches_stream(events, mapper);
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
    let controller = controller.owns_stream::<Secret>(events);
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("owner", 1)]);
    children.list(&[]);
    log.reaches(1).await;
    let mut child = owned_by::<ConfigMap, _>(secret("x"), "owner");
    child.metadata.owner_references.as_mut().unwrap()[0].api_version = "v2beta1".into();
    children.apply(&child);
    log.reaches(2).await;
    // Another group has other kinds.
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
        controller.owns_stream::<ConfigMap>(events).with_config(config().concurrency(8));
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
