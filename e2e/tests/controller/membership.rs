//! The end of a controller's membership in a shard group, and the end of its runs. The causes are a
//! lost membership, a handover or a shutdown that exceeds its limit, and streams that end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, ResourceExt};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, Config, Error, HeldShards, RunnerError};
use requeue_kube::membership::{MembershipError, ShardGroup};
use requeue_kube::{Controller, ObjectKey, policy};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

const OBJECTS: usize = 30;
const LONG: Duration = Duration::from_secs(600);

/// The runs of all replicas.
#[derive(Default)]
struct World {
    /// The replica that runs an object.
    running: BTreeMap<String, &'static str>,
    overlaps: Vec<String>,
    /// The runs that were dropped and that were completed, with their replicas.
    dropped: BTreeSet<(&'static str, String)>,
    completed: BTreeSet<(&'static str, String)>,
}

impl World {
    fn running_at(&self, replica: &str) -> BTreeSet<String> {
        let runs = self.running.iter().filter(|(_, at)| **at == replica);
        runs.map(|(name, _)| name.clone()).collect()
    }
}

struct Run {
    world: Arc<Mutex<World>>,
    replica: &'static str,
    name: String,
    is_completed: bool,
}

impl Run {
    fn begin(world: &Arc<Mutex<World>>, replica: &'static str, name: String) -> Self {
        let before = world.lock().unwrap().running.insert(name.clone(), replica);
        if let Some(other) = before {
            world.lock().unwrap().overlaps.push(format!("{name} at {replica} and {other}"));
        }
        Self { world: Arc::clone(world), replica, name, is_completed: false }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.running.remove(&self.name);
        let run = (self.replica, self.name.clone());
        match self.is_completed {
            true => world.completed.insert(run),
            false => world.dropped.insert(run),
        };
    }
}

/// Returns a group with a lease duration of 3 s, a renew deadline of 2 s and a retry period of 0.5
/// s.
fn group(namespace: &str) -> ShardGroup {
    ShardGroup::new("maps", namespace).count(16).lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(3));
        lease.renew_deadline(Duration::from_secs(2)).retry_period(Duration::from_millis(500))
    })
}

fn name_of(number: usize) -> String {
    format!("map-{number}")
}

fn names() -> BTreeSet<String> {
    (0..OBJECTS).map(name_of).collect()
}

async fn create(client: &Client, namespace: &str) -> Vec<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    join_all((0..OBJECTS).map(async |number| {
        let metadata = ObjectMeta { name: Some(name_of(number)), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap()
    }))
    .await
}

struct Replica {
    held: HeldShards,
    stop: oneshot::Sender<()>,
    task: AbortOnDropHandle<Vec<RunnerError>>,
}

impl Replica {
    /// Starts a controller of the namespace's objects, whose runs take the time `takes`.
    fn start(
        client: &Client,
        namespace: &str,
        replica: &'static str,
        shards: ShardGroup,
        takes: Duration,
        world: &Arc<Mutex<World>>,
    ) -> Self {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let controller = Controller::new(maps, watcher::Config::default());
        Self::of(controller, namespace, replica, shards, takes, world)
    }

    fn of(
        controller: Controller<ConfigMap>,
        namespace: &str,
        replica: &'static str,
        shards: ShardGroup,
        takes: Duration,
        world: &Arc<Mutex<World>>,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let config = Config::default().concurrency(100).shutdown_timeout(Duration::from_secs(1));
        let controller = controller
            .name(format!("{namespace}-{replica}"))
            .with_config(config)
            .shard_group(shards)
            .graceful_shutdown_on(async move {
                // A replica that is dropped is not stopped gracefully.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            });
        let held = controller.held_shards();
        let world = Arc::clone(world);
        let reconcile = move |map: Arc<ConfigMap>, world: Arc<Arc<Mutex<World>>>| async move {
            let mut run = Run::begin(&world, replica, map.name_any());
            tokio::time::sleep(takes).await;
            run.is_completed = true;
            Ok::<_, kube::Error>(Action::await_change())
        };
        let errors = controller.run(reconcile, policy::backoff, Arc::new(world)).filter_map(
            async |result| match result {
                Err(Error::RunnerError(error)) => Some(error),
                _ => None,
            },
        );
        Self { held, stop, task: AbortOnDropHandle::new(tokio::spawn(errors.collect())) }
    }

    fn shards(&self) -> usize {
        self.held.all().len()
    }
}

fn keys(namespace: &str, names: &BTreeSet<String>) -> Vec<ObjectKey> {
    let mut keys: Vec<_> = names.iter().map(|name| ObjectKey::new(Some(namespace), name)).collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn a_controller_that_loses_its_membership_drops_its_runs_and_another_one_can_join() {
    let Some(server) = Server::shared().await else { return };
    let (namespace, client) = (&server.namespace("lost").await, server.client().await);
    create(&client, namespace).await;
    let world = Arc::default();
    let lost = Replica::start(&client, namespace, "lost", group(namespace), LONG, &world);
    let running = |replica| names().is_subset(&world.lock().unwrap().running_at(replica));
    until("all objects run", async || running("lost")).await;

    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let members = leases.list(&Default::default()).await.unwrap();
    let member = members.iter().find(|lease| lease.name_any() != "maps").unwrap().name_any();
    leases.delete(&member, &Default::default()).await.unwrap();
    let errors = lost.task.await.unwrap();
    let [RunnerError::Membership(MembershipError::Lost(_), cut_off)] = &errors[..] else {
        panic!("{errors:?}");
    };
    // The root certificate in each namespace is also a ConfigMap.
    let ours = keys(namespace, &names());
    assert!(ours.iter().all(|key| cut_off.contains(key)), "{cut_off:?}");
    assert_eq!(lost.held.all().len(), 0);
    assert_eq!(world.lock().unwrap().running.len(), 0, "the runs were dropped");

    let next = Replica::start(&client, namespace, "next", group(namespace), LONG, &world);
    until("all objects run at the next controller", async || running("next")).await;
    assert_eq!(next.shards(), 16);
    assert_eq!(world.lock().unwrap().overlaps, [""; 0]);
}

#[tokio::test]
async fn a_run_that_exceeds_the_limit_of_a_handover_is_dropped_and_the_others_go_on() {
    let Some(server) = Server::shared().await else { return };
    let (namespace, client) = (&server.namespace("handover").await, server.client().await);
    create(&client, namespace).await;
    let world: Arc<Mutex<World>> = Arc::default();
    let shards = || group(namespace).handover_timeout(Duration::from_secs(1));
    let first = Replica::start(&client, namespace, "first", shards(), LONG, &world);
    let running = |replica| world.lock().unwrap().running_at(replica);
    until("all objects run", async || names().is_subset(&running("first"))).await;

    let second = Replica::start(&client, namespace, "second", shards(), LONG, &world);
    until("each replica runs its share", async || {
        (first.shards(), second.shards()) == (8, 8)
            && names().is_subset(&running("first").union(&running("second")).cloned().collect())
    })
    .await;
    let (at_first, at_second) = (running("first"), running("second"));
    assert!(!at_first.is_empty() && !at_second.is_empty());
    let world = world.lock().unwrap();
    let dropped: BTreeSet<_> = world.dropped.iter().cloned().collect();
    let expected: BTreeSet<_> = at_second.into_iter().map(|name| ("first", name)).collect();
    assert_eq!(dropped, expected, "only the runs of the shards that moved");
    assert_eq!(world.overlaps, [""; 0]);
}

#[tokio::test]
async fn a_shutdown_that_exceeds_its_limit_drops_the_runs_and_hands_the_shards_over() {
    let Some(server) = Server::shared().await else { return };
    let (namespace, client) = (&server.namespace("shutdown").await, server.client().await);
    create(&client, namespace).await;
    let world: Arc<Mutex<World>> = Arc::default();
    let hour = Duration::from_secs(3600);
    // A takeover after a crash would take an hour, so the second replica waits for a handover.
    let shards = || group(namespace).lease(|it| it.lease_duration(hour).renew_deadline(hour / 2));
    let first = Replica::start(&client, namespace, "first", shards(), LONG, &world);
    let running = |replica| world.lock().unwrap().running_at(replica);
    until("all objects run", async || names().is_subset(&running("first"))).await;
    let at_first = running("first");

    first.stop.send(()).unwrap();
    assert_eq!(first.task.await.unwrap(), [RunnerError::CutOff(keys(namespace, &at_first))]);
    let second = Replica::start(&client, namespace, "second", shards(), LONG, &world);
    until("all objects run", async || names().is_subset(&running("second"))).await;
    assert_eq!(second.shards(), 16);
    assert_eq!(world.lock().unwrap().overlaps, [""; 0]);
}

/// The stream may end before the group has assigned any shards.
#[tokio::test]
async fn objects_run_after_the_end_of_the_stream_that_listed_them() {
    let Some(server) = Server::shared().await else { return };
    let (namespace, client) = (&server.namespace("ended").await, server.client().await);
    let maps = create(&client, namespace).await;
    let listed = maps.into_iter().map(Event::InitApply);
    let events: Vec<_> =
        [Event::Init].into_iter().chain(listed).chain([Event::InitDone]).map(Ok).collect();
    let world: Arc<Mutex<World>> = Arc::default();
    let (reader, writer) = reflector::store();
    let controller = Controller::for_stream(stream::iter(events).reflect(writer), reader);
    let takes = Duration::from_millis(200);
    let shards = group(namespace).with_client(client.clone());
    let replica = Replica::of(controller, namespace, "ended", shards, takes, &world);
    assert_eq!(replica.task.await.unwrap(), []);
    let completed: BTreeSet<_> = names().into_iter().map(|name| ("ended", name)).collect();
    assert_eq!(world.lock().unwrap().completed, completed);

    // The member has left the group, so the next member does not have to wait for its Lease.
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    assert_eq!(leases.list(&Default::default()).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_function_assigns_the_objects_to_the_replicas() {
    let Some(server) = Server::shared().await else { return };
    let (namespace, client) = (&server.namespace("function").await, server.client().await);
    create(&client, namespace).await;
    let world: Arc<Mutex<World>> = Arc::default();
    let shards = || group(namespace).shard_of(|_, name| u32::from(name.ends_with('7')));
    let start = |name| Replica::start(&client, namespace, name, shards(), LONG, &world);
    let running = |replica| world.lock().unwrap().running_at(replica);
    let sevens: BTreeSet<_> = names().into_iter().filter(|name| name.ends_with('7')).collect();
    let shard_of =
        |replica: &Replica, shard: u32| replica.held.all().iter().any(|held| held.index() == shard);

    let first = start("first");
    until("all objects run", async || names().is_subset(&running("first"))).await;
    assert_eq!(first.shards(), 16);
    drop(first);
    let replicas = [start("second"), start("third")];
    until("the replicas have shared the shards", async || {
        replicas.iter().all(|replica| replica.shards() == 8)
    })
    .await;
    until("all objects run", async || {
        let running: BTreeSet<_> = running("second").union(&running("third")).cloned().collect();
        names().is_subset(&running)
    })
    .await;
    for (replica, name) in replicas.iter().zip(["second", "third"]) {
        let running: BTreeSet<_> = running(name).intersection(&names()).cloned().collect();
        let others: BTreeSet<_> = names().difference(&sevens).cloned().collect();
        let expected = match (shard_of(replica, 0), shard_of(replica, 1)) {
            (true, true) => names(),
            (true, false) => others,
            (false, true) => sevens.clone(),
            (false, false) => BTreeSet::new(),
        };
        assert_eq!(running, expected, "{name}");
    }
    assert_eq!(world.lock().unwrap().overlaps, [""; 0]);
}
