//! Controllers that share the shards of a group: they join, shut down and are dropped while objects
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, Config, Error, HeldShards, RunnerError};
use requeue_kube::membership::{MembershipError, ShardGroup};
use requeue_kube::{Controller, ObjectKey, policy};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

const OBJECTS: usize = 60;

/// The objects as the runs of all controllers have seen them.
#[derive(Default)]
struct World {
    running: BTreeSet<String>,
    /// The resource version of each object in its last complete run.
    seen: BTreeMap<String, String>,
    overlaps: Vec<String>,
    /// The runs of objects whose shard the controller did not hold.
    not_held: Vec<String>,
}

/// A run in flight. A run that is cancelled is dropped.
struct Running<'a>(&'a Mutex<World>, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().running.remove(&self.1);
    }
}

struct Context {
    world: Arc<Mutex<World>>,
    held: HeldShards,
}

async fn reconcile(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let name = map.name_any();
    let held = context.held.for_object(&ObjectKey::from_meta(&map.metadata));
    {
        let mut world = context.world.lock().unwrap();
        if !world.running.insert(name.clone()) {
            world.overlaps.push(name.clone());
        }
        if held.is_none() {
            world.not_held.push(name.clone());
        }
    }
    let running = Running(&context.world, name);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..50))).await;
    let version = map.resource_version().unwrap();
    running.0.lock().unwrap().seen.insert(running.1.clone(), version);
    Ok(Action::await_change())
}

/// Returns a group with a lease duration of 3 s, a renew deadline of 2 s and a retry period of 0.5
/// s.
fn group(namespace: &str) -> ShardGroup {
    ShardGroup::new("maps", namespace).count(16).lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(3));
        lease.renew_deadline(Duration::from_secs(2)).retry_period(Duration::from_millis(500))
    })
}

fn controller(
    client: &Client,
    namespace: &str,
    name: &str,
    shards: ShardGroup,
) -> Controller<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // An old cache of the API server must have no effect on a gained shard.
    let wc = watcher::Config { page_size: None, ..watcher::Config::default().any_semantic() };
    Controller::new(maps, wc)
        .name(format!("{namespace}-{name}"))
        .with_config(Config::default().concurrency(8))
        .shard_group(shards)
}

type Ended = Vec<RunnerError>;

struct Replica {
    held: HeldShards,
    stop: oneshot::Sender<()>,
    task: AbortOnDropHandle<Ended>,
}

impl Replica {
    fn start(client: &Client, namespace: &str, name: &str, world: &Arc<Mutex<World>>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let controller = controller(client, namespace, name, group(namespace));
        let held = controller.held_shards();
        let context = Arc::new(Context { world: Arc::clone(world), held: held.clone() });
        let stream = controller.graceful_shutdown_on(async { _ = stopped.await }).run(
            reconcile,
            policy::backoff,
            context,
        );
        let errors = stream.filter_map(async |result| match result {
            Err(Error::RunnerError(error)) => Some(error),
            _ => None,
        });
        Self { held, stop, task: AbortOnDropHandle::new(tokio::spawn(errors.collect())) }
    }

    fn shards(&self) -> usize {
        self.held.all().len()
    }
}

/// Changes each object, and waits until the last state of each object was reconciled. Calls
/// `during` in the middle of the changes.
async fn all_changes_run(
    maps: &Api<ConfigMap>,
    world: &Mutex<World>,
    round: &str,
    during: impl Future<Output = ()>,
) {
    let change = async |half: &str| {
        join_all((0..OBJECTS).map(async |number| {
            let data = Patch::Merge(json!({ "data": { "change": format!("{round}, {half}") } }));
            let name = format!("map-{number}");
            let map = maps.patch(&name, &PatchParams::default(), &data).await.unwrap();
            (name, map.resource_version().unwrap())
        }))
        .await
    };
    change("first").await;
    let (expected, ()) = futures_util::join!(change("second"), during);
    until(round, async || {
        let seen = &world.lock().unwrap().seen;
        expected.iter().all(|(name, version)| seen.get(name) == Some(version))
    })
    .await;
}

async fn replicas_share_all_objects(server: &Server) {
    let namespace = &server.namespace("groups").await;
    let admin = server.client().await;
    let maps: Api<ConfigMap> = Api::namespaced(admin, namespace);
    join_all((0..OBJECTS).map(async |number| {
        let metadata = ObjectMeta { name: Some(format!("map-{number}")), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap();
    }))
    .await;
    let verbs = ["get", "list", "watch", "create", "update", "delete"];
    let account = server.access().service_account(namespace, "controller");
    let rules = json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"] },
    ]);
    account.allow(rules).await;
    let client = account.client().await;
    let world = Arc::default();
    let start = |name| Replica::start(&client, namespace, name, &world);

    let first = start("first");
    all_changes_run(&maps, &world, "one replica", async {}).await;
    assert_eq!(first.shards(), 16);

    let (mut second, mut third) = (None, None);
    all_changes_run(&maps, &world, "two replicas join", async {
        (second, third) = (Some(start("second")), Some(start("third")));
    })
    .await;
    let (second, third) = (second.unwrap(), third.unwrap());
    until("each replica has its share", async || {
        [&first, &second, &third].iter().all(|replica| (5..=6).contains(&replica.shards()))
    })
    .await;

    let refused = controller(&client, namespace, "refused", group(namespace).count(32));
    let reconcile = async |_, _| Ok::<_, kube::Error>(Action::await_change());
    let results: Vec<_> = refused.run(reconcile, policy::backoff, Arc::new(())).collect().await;
    let [Err(Error::RunnerError(RunnerError::Membership(error, _)))] = &results[..] else {
        panic!("{results:?}");
    };
    assert!(matches!(error, MembershipError::Config(_)), "{error}");
    assert!(error.to_string().contains("has 16 shards, not 32"), "{error}");

    all_changes_run(&maps, &world, "one replica shuts down", async {
        first.stop.send(()).unwrap();
        assert_eq!(first.task.await.unwrap(), []);
        assert_eq!(first.held.all().len(), 0);
    })
    .await;
    assert_eq!((second.shards(), third.shards()), (8, 8));

    all_changes_run(&maps, &world, "one replica is dropped", async { drop(second) }).await;
    until("the last replica has all shards", async || third.shards() == 16).await;
    third.stop.send(()).unwrap();
    assert_eq!(third.task.await.unwrap(), []);

    let world = world.lock().unwrap();
    assert_eq!(world.overlaps, [""; 0], "objects that had two runs at the same time");
    assert_eq!(world.not_held, [""; 0], "objects that ran without their shard");
}

#[tokio::test]
async fn replicas_share_all_objects_if_the_server_selects_shards() {
    let gate = "--feature-gates=ShardedListAndWatch=true";
    let Some(server) = Server::start_with(&[gate]).await else { return };
    replicas_share_all_objects(&server).await;
}

#[tokio::test]
async fn replicas_share_all_objects_if_the_server_ignores_the_selector() {
    let Some(server) = Server::shared().await else { return };
    replicas_share_all_objects(server).await;
}
