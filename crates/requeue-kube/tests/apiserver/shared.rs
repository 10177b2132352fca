//! Controllers that share a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use requeue_kube::controller::{Action, Watched};
use requeue_kube::shared::SharedWatch;
use requeue_kube::{Controller, policy};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::server::{MAPS, SECRETS, Server};

/// The runs of a controller, and the errors that it has reported.
#[derive(Default)]
struct Seen {
    runs: Mutex<Vec<String>>,
    errors: Mutex<Vec<String>>,
}

impl Seen {
    /// Returns the runs since the last call, in order of their names.
    fn runs(&self) -> Vec<String> {
        let mut runs = std::mem::take(&mut *self.runs.lock().unwrap());
        runs.sort_unstable();
        runs
    }
}

/// Starts a controller, which runs until the handle is dropped.
fn start(controller: Controller<ConfigMap>) -> (Arc<Seen>, AbortOnDropHandle<()>) {
    let seen = Arc::<Seen>::default();
    let reconcile = async |map: ObjectRef<ConfigMap>, seen: Arc<Seen>| {
        seen.runs.lock().unwrap().push(map.name);
        Ok::<_, kube::Error>(Action::await_change())
    };
    let stream = controller.run_refs(reconcile, policy::backoff, Arc::clone(&seen));
    let reports = Arc::clone(&seen);
    let running = tokio::spawn(stream.for_each(move |item| {
        reports.errors.lock().unwrap().extend(item.err().map(|error| error.to_string()));
        async {}
    }));
    (seen, AbortOnDropHandle::new(running))
}

async fn a_while() {
    sleep(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn controllers_of_one_kind_watch_it_once_and_both_see_deletions() {
    let server = Server::new();
    server.put(MAPS, "a", json!({}));
    let client = server.client();
    let wc = watcher::Config::default();
    let maps = SharedWatch::new(Api::<ConfigMap>::all(client.clone()), wc.clone());
    let secrets = SharedWatch::new(Api::<Secret>::all(client), wc);
    let to_b = |_: Arc<Secret>| Some(ObjectRef::new("b").within("ns"));
    let first =
        Controller::for_shared(&maps).name("shared 1").watch_owned(Watched::shared(&secrets));
    let second = Controller::for_shared(&maps)
        .name("shared 2")
        .watch_mapped(Watched::shared(&secrets), to_b);
    let ((first, one), (second, two)) = (start(first), start(second));
    a_while().await;
    assert_eq!((first.runs(), second.runs()), (vec!["a".to_owned()], vec!["a".to_owned()]));
    server.put(SECRETS, "s", server.owned_by("a"));
    a_while().await;
    assert_eq!((first.runs(), second.runs()), (vec!["a".to_owned()], vec!["b".to_owned()]));
    server.delete(SECRETS, "s");
    server.delete(MAPS, "a");
    a_while().await;
    assert_eq!(first.runs(), ["a"]);
    assert_eq!(second.runs(), ["a", "b"]);

    // A controller that starts late receives the current state.
    server.put(MAPS, "c", json!({}));
    let (late, three) = start(Controller::for_shared(&maps).name("shared 3"));
    a_while().await;
    assert_eq!(late.runs(), ["c"]);
    for path in [MAPS, SECRETS] {
        assert_eq!((server.count("list", path), server.count("watch", path)), (1, 1), "{path}");
    }
    // The watch ends when the last controller and the last clone are dropped.
    drop((maps, secrets, one, two));
    a_while().await;
    assert_eq!((server.open_watches(MAPS), server.open_watches(SECRETS)), (1, 0));
    drop(three);
    a_while().await;
    assert_eq!(server.open_watches(MAPS), 0);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_there_is_one_list_and_one_run_for_each_changed_object() {
    let server = Server::new();
    ["a", "b", "c"].iter().for_each(|name| server.put(MAPS, name, json!({})));
    let maps = SharedWatch::new(Api::<ConfigMap>::all(server.client()), watcher::Config::default());
    let running: Vec<_> = (0..3)
        .map(|number| start(Controller::for_shared(&maps).name(format!("outage {number}"))))
        .collect();
    a_while().await;
    running.iter().for_each(|(seen, _)| assert_eq!(seen.runs(), ["a", "b", "c"]));
    server.end_watches();
    server.put(MAPS, "a", json!({ "labels": { "changed": "yes" } }));
    server.delete(MAPS, "b");
    server.put(MAPS, "d", json!({}));
    server.compact();
    a_while().await;
    for (seen, _) in &running {
        assert_eq!(seen.runs(), ["a", "b", "d"]);
        let errors = seen.errors.lock().unwrap();
        assert!(errors.len() == 1 && errors[0].contains("Expired"), "{errors:?}");
    }
    assert_eq!(server.count("list", MAPS), 2);
}

#[tokio::test(start_paused = true)]
async fn an_index_finds_the_objects_that_a_changed_object_concerns() {
    let server = Server::new();
    let of = |secret: &str| json!({ "labels": { "secret": secret } });
    server.put(MAPS, "a", of("x"));
    server.put(MAPS, "b", of("y"));
    server.put(SECRETS, "x", json!({}));
    let client = server.client();
    let wc = watcher::Config::default();
    let maps = SharedWatch::new(Api::<ConfigMap>::all(client.clone()), wc.clone());
    let by_secret = maps.by_index(|map: &ConfigMap| {
        let labels: Option<&BTreeMap<_, _>> = map.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get("secret").cloned())
    });
    let index = by_secret.clone();
    let mapper = move |secret: Secret| {
        let maps = index.keys(secret.metadata.name.as_deref().unwrap_or_default());
        maps.into_iter().map(|map| map.to_ref(())).collect::<Vec<ObjectRef<ConfigMap>>>()
    };
    let controller = Controller::for_shared(&maps).name("index");
    let (seen, _running) = start(controller.watches(Api::<Secret>::all(client), wc, mapper));
    a_while().await;
    seen.runs();
    server.put(SECRETS, "x", json!({ "labels": { "changed": "yes" } }));
    a_while().await;
    assert_eq!(seen.runs(), ["a"]);
    // Now `b` refers to `x`, and `a` does not.
    server.put(MAPS, "b", of("x"));
    server.put(MAPS, "a", of("y"));
    a_while().await;
    assert_eq!(by_secret.get("x").len(), 1);
    seen.runs();
    server.put(SECRETS, "x", json!({ "labels": { "changed": "again" } }));
    a_while().await;
    assert_eq!(seen.runs(), ["a", "b"], "`a` was concerned before");
    server.delete(MAPS, "b");
    a_while().await;
    assert!(by_secret.get("x").is_empty());
}

type Fed = watcher::Result<Event<ConfigMap>>;

/// Returns a stream, and the sender of its events.
fn feed() -> (mpsc::UnboundedSender<Fed>, impl Stream<Item = Fed>) {
    let (send, mut events) = mpsc::unbounded_channel();
    (send, stream::poll_fn(move |cx| events.poll_recv(cx)))
}

fn named(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

/// Reads the name of an object, and panics for `a` without a label.
fn name_or_panic(map: &ConfigMap) -> Option<String> {
    let name = map.metadata.name.clone();
    assert!(map.metadata.labels.is_some() || name.as_deref() != Some("a"), "on purpose");
    name
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_index_function_panics_has_no_value_and_the_others_go_on() {
    let (send, events) = feed();
    let list = [Event::Init, Event::InitApply(named("a")), Event::InitApply(named("b"))];
    for event in list.into_iter().chain([Event::InitDone]) {
        send.send(Ok(event)).unwrap();
    }
    let maps = SharedWatch::from_stream(events, ());
    let index = maps.by_index(name_or_panic);
    let (seen, _running) = start(Controller::for_shared(&maps).name("panics"));
    a_while().await;
    assert_eq!(seen.runs(), ["a", "b"]);
    // The second index is created when the store already contains the objects.
    for index in [&index, &maps.by_index(name_or_panic)] {
        assert_eq!((index.get("a").len(), index.get("b").len()), (0, 1));
    }
    let mut labelled = named("a");
    labelled.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    labelled.metadata.resource_version = Some("2".to_owned());
    send.send(Ok(Event::Apply(labelled))).unwrap();
    a_while().await;
    assert_eq!((index.get("a").len(), index.get("b").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_slow_function_of_an_index_blocks_no_other_user_of_the_watch() {
    let (send, events) = feed();
    let maps = SharedWatch::<ConfigMap>::from_stream(events, ());
    let blocked = Arc::new(Mutex::new(Vec::new()));
    let slow = |maps: &SharedWatch<ConfigMap>| {
        let (maps, blocked) = (maps.clone(), Arc::clone(&blocked));
        move |map: &ConfigMap| {
            let maps = maps.clone();
            // Another thread uses the watch in the meantime.
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || _ = done.send(maps.store().len()));
            let is_blocked = is_done.recv_timeout(Duration::from_secs(60)).is_err();
            blocked.lock().unwrap().push(is_blocked);
            map.metadata.name.clone()
        }
    };
    let index = maps.by_index(slow(&maps));
    let (_, _running) = start(Controller::for_shared(&maps).name("slow index"));
    let list = [Event::Init, Event::InitApply(named("a")), Event::InitDone];
    for event in list.into_iter().chain([Event::Apply(named("b"))]) {
        send.send(Ok(event)).unwrap();
    }
    a_while().await;
    assert_eq!((index.get("a").len(), index.get("b").len()), (1, 1));
    let late = maps.by_index(slow(&maps));
    assert_eq!((late.get("a").len(), late.get("b").len()), (1, 1));
    assert_eq!(*blocked.lock().unwrap(), [false; 4], "one call for each object and index");
}

#[tokio::test(start_paused = true)]
async fn a_shared_stream_that_panics_ends_the_controllers() {
    let events = stream::poll_fn(|_| -> std::task::Poll<Option<_>> { panic!("on purpose") });
    let maps = SharedWatch::<ConfigMap>::from_stream(events, ());
    let (_, running) = start(Controller::for_shared(&maps).name("stream panics"));
    assert!(running.await.unwrap_err().is_panic());
}

/// A watch must not create a client before it is polled, because kube's client starts a task when
/// it is created.
#[test]
fn watches_of_lists_from_a_cache_can_be_created_outside_of_a_runtime() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.unwrap();
    let server = Server::new();
    let client = runtime.block_on(async { server.client() });
    let cached = || watcher::Config::default().any_semantic();
    let (maps, secrets) = (Api::<ConfigMap>::all(client.clone()), Api::<Secret>::all(client));
    let shared = SharedWatch::new(secrets.clone(), cached());
    let controller = Controller::new(maps, cached())
        .name("outside of a runtime")
        .owns(secrets.clone(), cached())
        .watch_owned(Watched::metadata(secrets.clone(), cached()).optional())
        .watches(secrets.clone(), cached(), |_: Secret| None::<ObjectRef<ConfigMap>>)
        .watch_mapped(Watched::new(secrets, cached()).optional(), |_| None::<ObjectRef<ConfigMap>>)
        .watch_owned(Watched::shared(&shared));
    server.put(MAPS, "a", json!({}));
    runtime.block_on(async {
        let (seen, _running) = start(controller);
        a_while().await;
        assert_eq!(seen.runs(), ["a"]);
    });
}

#[tokio::test(start_paused = true)]
async fn controllers_end_when_a_shared_stream_has_ended() {
    let mut map = ConfigMap::default();
    map.metadata.name = Some("a".to_owned());
    let events = stream::iter([Event::Init, Event::InitApply(map), Event::InitDone].map(Ok));
    let maps = SharedWatch::from_stream(events, ());
    let (seen, running) = start(Controller::for_shared(&maps).name("ends"));
    running.await.unwrap();
    assert_eq!(seen.runs(), ["a"]);
}
