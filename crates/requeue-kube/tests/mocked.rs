//! A controller and its helpers on a mocked client, with kube's own watchers.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client};
use requeue_kube::controller::Action;
use requeue_kube::finalizer::{Event, finalizer};
use requeue_kube::range::{Shard, ShardBy};
use requeue_kube::{Controller, policy};
use serde_json::{Value, json};

/// Returns a new name, because all tests run in one process, and controllers of a process need
/// different names.
fn unique_name() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("mocked {}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns a client. `answer` returns the response to each request.
fn client(mut answer: impl FnMut(&Request<Body>) -> Value + Send + 'static) -> Client {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let answer = answer(&request).to_string() + "\n";
            send.send_response(Response::new(Body::from(answer.into_bytes())));
        }
    });
    Client::new(service, "default")
}

fn object(name: &str, version: &str, owner: Option<&str>) -> Value {
    let owners = owner.map(|owner| {
        json!([
            { "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner }
        ])
    });
    json!({ "metadata": {
        "namespace": "ns", "name": name, "uid": name, "resourceVersion": version,
        "ownerReferences": owners,
    } })
}

/// Returns the given lists in turn. Between two lists, each watch ends with an expired version.
fn lists(lists: Vec<Vec<Value>>) -> impl FnMut(&str) -> Value {
    let mut lists = lists.into_iter();
    let mut version = 0;
    move |query| {
        if query.contains("watch=true") {
            // After the status 410 Gone, the watcher must list again.
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Failure", "message": "too old", "reason": "Expired", "code": 410 });
            json!({ "type": "ERROR", "object": status })
        } else {
            version += 1;
            json!({ "metadata": { "resourceVersion": version.to_string() },
                "items": lists.next().expect("one list for each request") })
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_between_two_lists_is_heard_of_after_410_gone() {
    let main = vec![
        vec![object("a", "1", None), object("b", "1", None), object("owner", "1", None)],
        vec![object("a", "1", None), object("c", "5", None), object("owner", "1", None)],
    ];
    let owned = vec![vec![object("child", "1", Some("owner"))], vec![]];
    let mut kinds =
        BTreeMap::from([("/api/v1/configmaps", lists(main)), ("/api/v1/secrets", lists(owned))]);
    let client = client(move |request| {
        let uri = request.uri();
        kinds.get_mut(uri.path()).unwrap()(uri.query().unwrap_or_default())
    });

    let runs = Arc::new(Mutex::new(Vec::new()));
    let reconcile = |map: ObjectRef<ConfigMap>, runs: Arc<Mutex<Vec<String>>>| async move {
        runs.lock().unwrap().push(map.name);
        Ok::<_, kube::Error>(Action::await_change())
    };
    let mut stream = Box::pin(
        Controller::new(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
            .owns(Api::<Secret>::all(client), watcher::Config::default())
            .name(unique_name())
            .run_refs(reconcile, policy::backoff, Arc::clone(&runs)),
    );
    let begun = tokio::time::Instant::now();
    let mut failed = 0;
    // Both watches list a second time, 0.8 to 1.6 s after the end of their first watch.
    while begun.elapsed() < Duration::from_millis(1700) {
        if let Ok(item) = tokio::time::timeout(Duration::from_millis(50), stream.next()).await {
            failed += usize::from(item.unwrap().is_err());
        }
    }
    let runs = runs.lock().unwrap();
    assert_eq!(runs[..3], ["a", "b", "owner"], "{runs:?}");
    let mut later = runs[3..].to_vec();
    later.sort_unstable();
    // In the second lists, `b` is deleted, `c` is new, and an object that `owner` owns is deleted.
    // `a` is unchanged.
    assert_eq!(later, ["b", "c", "owner"], "{runs:?}");
    assert!(failed >= 2, "failures of watches are reported");
}

#[tokio::test(start_paused = true)]
async fn only_the_first_list_may_come_from_a_cache_of_the_api_server() {
    let any = watcher::Config { page_size: None, ..watcher::Config::default().any_semantic() };
    for config in [any, watcher::Config::default().streaming_lists()] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let expired = json!({ "type": "ERROR", "object": { "kind": "Status", "apiVersion": "v1",
            "metadata": {}, "status": "Failure", "message": "too old", "reason": "Expired",
            "code": 410 } });
        let client = client({
            let seen = Arc::clone(&seen);
            move |request| {
                let uri = request.uri();
                let query = uri.query().unwrap().to_owned();
                assert_eq!(uri.path(), "/api/v1/namespaces/ns/configmaps");
                let is_watch = query.contains("watch=true");
                if !is_watch || query.contains("sendInitialEvents") {
                    seen.lock().unwrap().push(query);
                }
                match is_watch {
                    true => expired.clone(),
                    false => json!({ "metadata": { "resourceVersion": "7" }, "items": [] }),
                }
            }
        });
        let maps = Api::<ConfigMap>::namespaced(client, "ns");
        let reconcile = async |_: ObjectRef<ConfigMap>, _: Arc<()>| {
            Ok::<_, kube::Error>(Action::await_change())
        };
        let stream = Controller::new(maps, config).name(unique_name()).run_refs(
            reconcile,
            policy::backoff,
            Arc::new(()),
        );
        let mut stream = pin!(stream);
        while seen.lock().unwrap().len() < 3 {
            _ = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
        }
        let seen = seen.lock().unwrap().clone();
        assert!(seen[0].contains("resourceVersion=0"), "{seen:?}");
        for query in &seen[1..] {
            assert!(!query.contains("resourceVersion="), "{seen:?}");
            let is_watch = query.contains("watch=true");
            assert_eq!(query.contains("resourceVersionMatch="), is_watch, "{seen:?}");
        }
    }
}

/// Returns the paths and queries of the first requests of a controller with this shard.
async fn requests(shard: Shard, maps: fn(Client) -> Api<ConfigMap>) -> Vec<String> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let client = client({
        let seen = Arc::clone(&seen);
        move |request| {
            seen.lock().unwrap().push(request.uri().to_string());
            json!({ "metadata": { "resourceVersion": "1" }, "items": [] })
        }
    });
    let mut stream = Box::pin(
        Controller::new(maps(client.clone()), watcher::Config::default())
            .owns(Api::<Secret>::namespaced(client.clone(), "other"), watcher::Config::default())
            .name(unique_name())
            .shard(shard)
            .run_refs(
                async |_: ObjectRef<ConfigMap>, _: Arc<()>| {
                    Ok::<_, kube::Error>(Action::await_change())
                },
                policy::backoff,
                Arc::new(()),
            ),
    );
    while seen.lock().unwrap().len() < 2 {
        _ = tokio::time::timeout(Duration::from_millis(1), stream.next()).await;
    }
    let mut seen = seen.lock().unwrap().clone();
    seen.truncate(2);
    seen.sort_unstable();
    seen
}

#[tokio::test(start_paused = true)]
async fn a_sharded_controller_asks_for_its_shard_of_the_kinds_that_the_server_can_select() {
    let by_uid = Shard::new(1, 2).unwrap();
    let selected = |field: &str| {
        format!(
            "shardSelector=shardRange({field},%270x8000000000000000%27,%270x10000000000000000%27)"
        )
    };
    let [maps, secrets] = &requests(by_uid, Api::all).await[..] else { panic!("two lists") };
    assert!(maps.starts_with("/api/v1/configmaps?"), "{maps}");
    assert!(maps.ends_with(&selected("object.metadata.uid")), "{maps}");
    assert!(secrets.starts_with("/api/v1/namespaces/other/secrets?"), "{secrets}");
    assert!(!secrets.contains("shardSelector"), "owned objects have uids of their own: {secrets}");

    let by_namespace = by_uid.by(ShardBy::Namespace);
    let namespaced = |client| Api::namespaced(client, "ns");
    let [maps, secrets] = &requests(by_namespace, namespaced).await[..] else {
        panic!("two lists")
    };
    assert!(maps.starts_with("/api/v1/namespaces/ns/configmaps?"), "{maps}");
    assert!(secrets.starts_with("/api/v1/namespaces/other/secrets?"), "{secrets}");
    for uri in [maps, secrets] {
        assert!(uri.ends_with(&selected("object.metadata.namespace")), "{uri}");
    }
}

#[tokio::test]
async fn a_finalizer_is_added_first_and_then_the_reconciler_says_what_comes_next() {
    let patches = Arc::new(Mutex::new(Vec::new()));
    let client = client({
        let patches = Arc::clone(&patches);
        move |request| {
            patches
                .lock()
                .unwrap()
                .push((request.method().clone(), request.uri().path().to_owned()));
            object("a", "2", None)
        }
    });
    let api = Api::<ConfigMap>::namespaced(client, "ns");
    let hourly = Action::requeue_after(Duration::from_secs(3600)).priority(-3);
    let reconcile = async |event: Event<ConfigMap>| {
        assert!(matches!(event, Event::Apply(_)));
        Ok::<_, kube::Error>(hourly.clone())
    };

    let mut map: ConfigMap = serde_json::from_value(object("a", "1", None)).unwrap();
    let action =
        finalizer(&api, "example.com/x", Arc::new(map.clone()), |event| Box::pin(reconcile(event)));
    assert_eq!(action.await.unwrap(), Action::await_change());
    let path = "/api/v1/namespaces/ns/configmaps/a".to_owned();
    assert_eq!(*patches.lock().unwrap(), [(Method::PATCH, path)]);

    map.metadata.finalizers = Some(vec!["example.com/x".into()]);
    let action =
        finalizer(&api, "example.com/x", Arc::new(map), |event| Box::pin(reconcile(event)));
    assert_eq!(action.await.unwrap(), hourly);
    assert_eq!(patches.lock().unwrap().len(), 1);
}

/// With kube's decoding, a list with such an object fails, and each event of such an object delays
/// the watch.
#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_keeps_no_other_in_the_watch_from_its_run() {
    let raw = |name: &str, levels: usize| {
        let (open, close) = (r#"{"a":"#.repeat(levels), "}".repeat(levels));
        let object = object(name, "2", None).to_string();
        format!(r#"{},"spec":{open}1{close}}}"#, object.strip_suffix('}').unwrap())
    };
    let events = [("deep", 130), ("deeper", 9_000), ("good", 1)].map(|(name, levels)| {
        ["ADDED", "MODIFIED"]
            .map(|kind| format!(r#"{{"type":"{kind}","object":{}}}"#, raw(name, levels)))
    });
    let list = json!({ "metadata": { "resourceVersion": "1" }, "items": [] }).to_string();
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let mut answers = [list, events.as_flattened().join("\n") + "\n"].into_iter();
        let mut unanswered = Vec::new();
        while let Some((_, send)) = handle.next_request().await {
            match answers.next() {
                Some(answer) => send.send_response(Response::new(Body::from(answer.into_bytes()))),
                None => unanswered.push(send),
            }
        }
    });
    let things = ApiResource::erase::<Pod>(&());
    let api = Api::<DynamicObject>::all_with(Client::new(service, "default"), &things);
    let reconcile =
        async |_: ObjectRef<DynamicObject>, _| Ok::<_, kube::Error>(Action::await_change());
    let stream = Controller::new_with(api, watcher::Config::default(), things)
        .name(unique_name())
        .run_refs(reconcile, policy::backoff, Arc::new(()));
    let mut stream = pin!(stream);
    let mut failed = 0;
    let run = loop {
        match stream.next().await.unwrap() {
            Ok((run, _)) => break run,
            Err(error) => failed += usize::from(error.to_string().contains("watch")),
        }
    };
    assert_eq!((run.name.as_str(), failed), ("good", 4));
}
