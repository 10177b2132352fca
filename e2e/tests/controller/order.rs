//! The order in which objects run.

use std::sync::{Arc, Mutex, OnceLock};

use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use requeue_e2e::{Server, full, until};
use requeue_kube::controller::LOW_PRIORITY;
use requeue_kube::controller::{Action, Config};
use requeue_kube::{Controller, ObjectKey, ObjectQueue, policy};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// A controller with one worker, which records the order of its runs.
#[derive(Default)]
struct Turns {
    queue: OnceLock<ObjectQueue>,
    runs: Mutex<Vec<ObjectKey>>,
    /// The number of runs after which the queue is paused.
    pause_after: Mutex<Option<usize>>,
}

impl Turns {
    /// Starts a controller, and waits until all existing objects have run.
    async fn begin(maps: Api<ConfigMap>, wc: watcher::Config, config: Config) -> Begun {
        let turns = Arc::new(Self::default());
        let controller = Controller::new(maps, wc).with_config(config.concurrency(1));
        let readiness = controller.readiness();
        let handed = Arc::clone(&turns);
        let stream = controller
            .name(format!("order-{}", fastrand::u64(..)))
            .queue_on_start(move |queue| _ = handed.queue.set(queue))
            .run_refs(
                async |object, turns: Arc<Self>| {
                    turns.note(ObjectKey::from(&object));
                    Ok::<_, kube::Error>(Action::await_change())
                },
                policy::backoff,
                Arc::clone(&turns),
            );
        let running = AbortOnDropHandle::new(tokio::spawn(stream.for_each(async |_| ())));
        readiness.ready().await;
        until("all objects of the first list have run", async || {
            turns.queue().states().total() == 0
        })
        .await;
        Begun { turns, _running: running }
    }

    fn queue(&self) -> &ObjectQueue {
        self.queue.get().unwrap()
    }

    fn note(&self, key: ObjectKey) {
        let mut runs = self.runs.lock().unwrap();
        runs.push(key);
        if *self.pause_after.lock().unwrap() == Some(runs.len()) {
            self.queue().pause();
        }
    }

    /// Returns the number of runs before the run of `key`.
    fn before(&self, key: &ObjectKey) -> usize {
        self.runs.lock().unwrap().iter().position(|run| run == key).unwrap()
    }

    async fn are(&self, count: usize) {
        let what = format!("there were {count} runs");
        until(&what, async || self.runs.lock().unwrap().len() == count).await;
    }

    async fn queued(&self, count: usize) {
        let what = format!("{count} objects are queued");
        until(&what, async || self.queue().len() == count).await;
    }
}

struct Begun {
    turns: Arc<Turns>,
    _running: AbortOnDropHandle<()>,
}

/// Returns the permissions of a controller that only reads.
fn reads() -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"] }])
}

const LABEL: &str = "e2e=order";

/// Creates objects, and returns their keys in order.
async fn create(client: &Client, namespace: &str, count: usize) -> Vec<ObjectKey> {
    let maps: &Api<ConfigMap> = &Api::namespaced(client.clone(), namespace);
    let made = stream::iter(0..count).map(async |number| {
        let metadata = ObjectMeta {
            name: Some(format!("map-{number:04}")),
            labels: Some([("e2e".to_owned(), "order".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        let made = maps.create(&PostParams::default(), &map).await?;
        Ok::<_, kube::Error>(ObjectKey::from_object(&made))
    });
    made.buffered(16).try_collect().await.unwrap()
}

async fn change(maps: &Api<ConfigMap>, key: &ObjectKey) {
    let data = Patch::Merge(json!({ "data": { "changed": "yes" } }));
    maps.patch(key.name(), &PatchParams::default(), &data).await.unwrap();
}

#[tokio::test]
async fn what_has_changed_is_ahead_of_a_resync() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    let client = server.client().await;
    let namespace = server.namespace("resync").await;
    let count = if full() { 5000 } else { 300 };
    let keys = create(&client, &namespace, count).await;
    let proxy = server.proxy().await;
    let account = server.access().service_account(&namespace, "controller");
    account.allow(reads()).await;
    let watched = Api::namespaced(account.through(&proxy).client().await, &namespace);
    let wc = watcher::Config::default().labels(LABEL);
    let config = Config::default().reconcile_unchanged();
    let begun = Turns::begin(watched, wc, config).await;
    let turns = &begun.turns;

    // All objects are listed again, and the last object of the list has changed.
    turns.queue().pause();
    turns.runs.lock().unwrap().clear();
    proxy.down();
    until("all connections are closed", async || proxy.connections() == 0).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let [.., later, changed] = &keys[..] else { unreachable!("there are many keys") };
    change(&maps, changed).await;
    server.compact().await;
    proxy.up();
    turns.queued(count).await;
    let priority = |key| turns.queue().look_up(key).map(|entry| entry.priority);
    assert_eq!(priority(changed), Some(0));
    assert!(keys[..count - 1].iter().all(|key| priority(key) == Some(LOW_PRIORITY)));

    // Another object changes in the middle of the resync.
    let middle = count / 3;
    *turns.pause_after.lock().unwrap() = Some(middle);
    turns.queue().resume();
    turns.are(middle).await;
    change(&maps, later).await;
    until("the change is known", async || priority(later) == Some(0)).await;
    turns.queue().resume();
    turns.are(count).await;

    // One in ten deliveries may take the oldest key instead of the key with the highest priority.
    assert!(turns.before(changed) <= 1, "{} went ahead", turns.before(changed));
    let ahead = turns.before(later) - middle;
    assert!(ahead <= 1, "{ahead} of the resync went ahead");
}

#[tokio::test]
async fn only_what_has_changed_is_queued_after_410_gone() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    let client = server.client().await;
    let namespace = server.namespace("unchanged").await;
    let keys = create(&client, &namespace, 100).await;
    let proxy = server.proxy().await;
    let account = server.access().service_account(&namespace, "controller");
    account.allow(reads()).await;
    let watched = Api::namespaced(account.through(&proxy).client().await, &namespace);
    let wc = watcher::Config::default().labels(LABEL);
    let begun = Turns::begin(watched, wc, Config::default()).await;
    let turns = &begun.turns;

    turns.queue().pause();
    proxy.down();
    until("all connections are closed", async || proxy.connections() == 0).await;
    let maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let [changed, gone, later, ..] = &keys[..] else { unreachable!("there are many keys") };
    change(&maps, changed).await;
    maps.delete(gone.name(), &Default::default()).await.unwrap();
    server.compact().await;
    proxy.up();
    turns.queued(2).await;
    // This change is observed after all objects of the list.
    change(&maps, later).await;
    until("the change is known", async || turns.queue().look_up(later).is_some()).await;
    assert_eq!(turns.queue().len(), 3);
    assert!([changed, gone].iter().all(|key| turns.queue().look_up(key).is_some()));
}

#[tokio::test]
async fn a_namespace_that_floods_leaves_another_its_share() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    let (flooding, quiet) = (server.namespace("flood").await, server.namespace("quiet").await);
    let wc = watcher::Config::default().labels(LABEL);
    let account = server.access().user("flooded-controller");
    account.allow(reads()).await;
    let all = Api::all(account.client().await);
    let begun = Turns::begin(all, wc, Config::default().fair_namespaces()).await;
    let turns = &begun.turns;

    turns.queue().pause();
    let flood = create(&client, &flooding, if full() { 2000 } else { 200 }).await;
    turns.queued(flood.len()).await;
    let count = flood.len() + create(&client, &quiet, 4).await.len();
    turns.queued(count).await;
    turns.queue().resume();
    turns.are(count).await;

    // Every second turn belongs to the quiet namespace. One in ten deliveries may take the oldest
    // key.
    let runs = turns.runs.lock().unwrap();
    let is_quiet = |key: &ObjectKey| key.namespace() == Some(&quiet);
    let of_quiet = runs.iter().enumerate().filter(|(_, key)| is_quiet(key));
    for (number, (ahead, key)) in of_quiet.enumerate() {
        assert!(ahead <= 2 * number + 2, "{key} had {ahead} runs ahead of it");
    }
}
