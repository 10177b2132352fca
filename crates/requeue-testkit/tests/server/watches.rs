//! Watches, and the stores that kube's runtime fills from them.

use std::pin::pin;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, watcher};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::{maps, named};

/// Returns the kind of an event, and the name of its object.
fn told(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(map) => format!("+{}", map.name_any()),
        WatchEvent::Modified(map) => format!("~{}", map.name_any()),
        WatchEvent::Deleted(map) => format!("-{}", map.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        WatchEvent::Error(status) => format!("{}: {}", status.code, status.message),
    }
}

#[tokio::test]
async fn a_watch_shows_changes_in_order() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let first = maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let version = first.resource_version().expect("a version");
    let watch = maps.watch(&WatchParams::default(), &version).await.expect("a watch");
    maps.create(&PostParams::default(), &named("b")).await.expect("created");
    let patch = Patch::Merge(json!({ "data": { "key": "value" } }));
    maps.patch("a", &PatchParams::default(), &patch).await.expect("patched");
    maps.delete("b", &DeleteParams::default()).await.expect("deleted");
    let events: Vec<_> = watch.take(3).try_collect().await.expect("events");
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), ["+b", "~a", "-b"]);
    let WatchEvent::Deleted(last) = &events[2] else { panic!("{events:?}") };
    assert_eq!(last.resource_version(), Some(server.snapshot().version().to_string()));
}

#[tokio::test]
async fn a_server_counts_its_watches_and_can_end_them() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let watch = maps.watch(&WatchParams::default(), "1").await.expect("a watch");
    assert_eq!((server.open_watches("configmaps"), server.open_watches("secrets")), (1, 0));
    drop(watch);
    assert_eq!(server.open_watches("configmaps"), 0);
    let watch = maps.watch(&WatchParams::default(), "1").await.expect("a watch");
    server.end_watches();
    // A change after the end is in the next watch.
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    assert_eq!(watch.count().await, 0);
    let watch = maps.watch(&WatchParams::default(), "1").await.expect("a watch");
    let events: Vec<_> = watch.take(1).try_collect().await.expect("events");
    assert_eq!(told(&events[0]), "+a");
}

#[tokio::test]
async fn a_selector_makes_objects_appear_and_disappear() {
    let server = ApiServer::new();
    let maps = maps(&server);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let params = WatchParams::default().labels("on=yes");
    let watch = maps.watch(&params, "1").await.expect("a watch");
    for value in [json!("yes"), json!("no")] {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "on": value } } }));
        maps.patch("a", &PatchParams::default(), &patch).await.expect("patched");
    }
    let events: Vec<_> = watch.take(2).try_collect().await.expect("events");
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), ["+a", "-a"]);
}

#[tokio::test]
async fn a_forgotten_version_is_gone() {
    let server = ApiServer::new();
    let maps = maps(&server);
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    server.compact();
    let mut watch = pin!(maps.watch(&WatchParams::default(), "2").await.expect("a watch"));
    let event = watch.try_next().await.expect("an event").expect("an event");
    let now = server.snapshot().version();
    assert_eq!(told(&event), format!("410: too old resource version: 2 ({now})"));
    assert!(watch.next().await.is_none(), "the server closes the watch");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_arrive_each_minute_and_a_watch_has_an_end() {
    let server = ApiServer::new();
    let maps = maps(&server);
    let begin = tokio::time::Instant::now();
    let params = WatchParams { bookmarks: true, timeout: Some(150), ..WatchParams::default() };
    let watch = maps.watch(&params, "1").await.expect("a watch");
    maps.create(&PostParams::default(), &named("a")).await.expect("created");
    let events: Vec<_> = watch.try_collect().await.expect("events");
    assert_eq!(events.iter().map(told).collect::<Vec<_>>(), ["+a", "bookmark", "bookmark"]);
    let WatchEvent::Bookmark(last) = &events[2] else { panic!("{events:?}") };
    assert_eq!(last.metadata.resource_version, server.snapshot().version().to_string());
    assert_eq!(begin.elapsed(), Duration::from_secs(150));
}

#[tokio::test]
async fn kubes_watcher_lists_and_follows_in_both_ways() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let server = ApiServer::new();
        let maps = maps(&server);
        for name in ["a", "b", "c"] {
            maps.create(&PostParams::default(), &named(name)).await.expect("created");
        }
        let mut events = pin!(watcher(maps.clone(), config.page_size(2)));
        let mut told = Vec::new();
        while told.last().is_none_or(|last| last != "-b") {
            let event = events.try_next().await.expect("an event").expect("an event");
            let text = match event {
                watcher::Event::Init => "init".into(),
                watcher::Event::InitApply(map) => format!("+{}", map.name_any()),
                watcher::Event::InitDone => {
                    maps.delete("b", &DeleteParams::default()).await.expect("deleted");
                    "done".into()
                }
                watcher::Event::Apply(map) => format!("~{}", map.name_any()),
                watcher::Event::Delete(map) => format!("-{}", map.name_any()),
            };
            told.push(text);
        }
        assert_eq!(told, ["init", "+a", "+b", "+c", "done", "-b"]);
    }
}
