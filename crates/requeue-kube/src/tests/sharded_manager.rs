//! Tests of managers whose controllers share one shard group.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use requeue_leases::testing::{Api, with_runtime_clock};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::ManagerError;
use crate::controller::{Action, Config, HeldShards, RunnerError, Status};
use crate::leader::{self, LeaderElector};
use crate::membership::{MembershipError, ShardGroup};
use crate::metrics::Metrics;
use crate::range::{Shard, ShardBy};
use crate::{Controller, Manager, ObjectKey, policy};

/// The number of objects of each kind. Each object is in a different namespace.
const OBJECTS: usize = 12;

type Log = Arc<Mutex<Vec<String>>>;

fn group(api: &Api) -> ShardGroup {
    with_runtime_clock(
        ShardGroup::new("things", "ns").count(8).by(ShardBy::Namespace).with_client(api.client()),
    )
}

fn unique(name: &str) -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("{name} {}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Returns a controller whose watch lists the objects, and then reports no changes.
fn controller<K>(name: &str) -> Controller<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + fmt::Debug + DeserializeOwned,
    K: Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let object = |number: usize| {
        let mut object = K::default();
        *object.meta_mut() = ObjectMeta {
            name: Some(format!("{name}-{number}")),
            namespace: Some(format!("{number}-namespace")),
            uid: Some(format!("uid of {name}-{number}")),
            resource_version: Some("1".to_owned()),
            ..ObjectMeta::default()
        };
        Ok(Event::InitApply(object))
    };
    let list: Vec<watcher::Result<Event<K>>> = [Ok(Event::Init)]
        .into_iter()
        .chain((0..OBJECTS).map(object))
        .chain([Ok(Event::InitDone)])
        .collect();
    let events = futures_util::stream::iter(list).chain(futures_util::stream::pending());
    let (reader, writer) = reflector::store();
    Controller::for_stream(events.reflect(writer), reader)
        .with_config(Config::default().concurrency(0).shutdown_timeout(Duration::from_secs(25)))
        .name(unique(name))
}

/// A replica with a controller of ConfigMaps and a controller of Secrets. Its log has an entry for
/// the beginning and the end of each run, with the name of the object.
struct Replica {
    held: [HeldShards; 2],
    status: Status,
    metrics: Registry,
    log: Log,
    stop: oneshot::Sender<()>,
    force: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ManagerError>>,
}

impl Replica {
    /// Starts a replica whose runs of Secrets take the time `takes`. Its runs of ConfigMaps end
    /// immediately.
    fn start(api: &Api, takes: Duration) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (force, forced) = oneshot::channel::<()>();
        let mut metrics = Registry::default();
        let mut manager = Manager::new()
            .shard_group(group(api))
            .metrics(&Metrics::register(&mut metrics))
            .graceful_shutdown_on(async { _ = stopped.await })
            .forced_shutdown_on(Box::pin(async { _ = forced.await }));
        let log = Log::default();
        let (maps, _) = add::<ConfigMap>(&mut manager, "map", Duration::ZERO, &log);
        let (secrets, status) = add::<Secret>(&mut manager, "secret", takes, &log);
        let ended = tokio::spawn(manager.run());
        Self { held: [maps, secrets], status, metrics, log, stop, force, ended }
    }

    /// Returns the names of the objects whose runs have begun since the last call.
    fn take_begun(&self) -> BTreeSet<String> {
        let log = std::mem::take(&mut *self.log.lock().unwrap());
        log.iter().filter_map(|line| line.strip_suffix(" begins")).map(str::to_owned).collect()
    }

    /// Returns the value of a metric in the replica's registry.
    fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &self.metrics).unwrap();
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name} in {text}"))
            .rsplit_once(' ')
            .unwrap()
            .1
            .parse()
            .unwrap()
    }

    fn shards(&self) -> [Vec<u32>; 2] {
        self.held.each_ref().map(|held| held.all().iter().map(|shard| shard.index()).collect())
    }
}

fn add<K>(
    manager: &mut Manager,
    name: &'static str,
    takes: Duration,
    log: &Log,
) -> (HeldShards, Status)
where
    K: Resource<DynamicType = ()> + Default + Clone + fmt::Debug + DeserializeOwned,
    K: Send + Sync + 'static,
{
    let reconcile = move |object: Arc<K>, log: Log| async move {
        let name = object.meta().name.clone().unwrap_or_default();
        log.lock().unwrap().push(format!("{name} begins"));
        sleep(takes).await;
        log.lock().unwrap().push(format!("{name} ends"));
        Ok::<_, Infallible>(Action::await_change())
    };
    let controller = controller::<K>(name);
    let (held, status, log) = (controller.held_shards(), controller.status(), Arc::clone(log));
    manager.add(controller, move |it| it.run(reconcile, policy::backoff, log));
    (held, status)
}

fn all() -> BTreeSet<String> {
    let names = |kind: &'static str| (0..OBJECTS).map(move |number| format!("{kind}-{number}"));
    names("map").chain(names("secret")).collect()
}

/// Waits until a handover is complete, if no runs are in flight.
async fn settle() {
    sleep(Duration::from_secs(8)).await;
}

#[tokio::test(start_paused = true)]
async fn the_controllers_of_a_replica_are_one_member_and_hold_the_same_shards() {
    let api = Api::default();
    let first = Replica::start(&api, Duration::ZERO);
    settle().await;
    assert_eq!(first.take_begun(), all());
    assert_eq!(api.leases().len(), 2, "the group, and one member: {:?}", api.leases());

    let second = Replica::start(&api, Duration::ZERO);
    settle().await;
    assert_eq!(api.leases().len(), 3, "{:?}", api.leases());
    let ([first_maps, first_secrets], [maps, secrets]) = (first.shards(), second.shards());
    assert_eq!((&first_maps, &maps), (&first_secrets, &secrets));
    assert_eq!((first_maps.len(), maps.len()), (4, 4));
    let moved = second.take_begun();
    let is_ours = |name: &String| {
        let (_, number) = name.split_once('-').unwrap();
        let key = ObjectKey::new(Some(&format!("{number}-namespace")), name);
        second.held[0].for_object(&key).is_some()
    };
    assert_eq!(moved, all().into_iter().filter(is_ours).collect());
    assert!(!moved.is_empty() && moved.len() < 2 * OBJECTS);

    first.stop.send(()).unwrap();
    assert_eq!(first.ended.await.unwrap(), Ok(()));
    settle().await;
    assert_eq!(second.take_begun().len(), 2 * OBJECTS - moved.len());
    assert_eq!(api.leases().len(), 2, "the member Lease is deleted: {:?}", api.leases());
}

#[tokio::test(start_paused = true)]
async fn a_shard_moves_when_the_runs_of_all_controllers_have_ended() {
    let api = Api::default();
    let first = Replica::start(&api, Duration::from_secs(20));
    // All runs begin within 1 s, and end within 21 s.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(first.take_begun(), all());
    let second = Replica::start(&api, Duration::ZERO);
    first.stop.send(()).unwrap();
    sleep(Duration::from_secs(15)).await;
    let early = second.take_begun();
    assert!(first.log.lock().unwrap().is_empty(), "the runs go on");
    // So far, only shards without objects have moved.
    assert_eq!(early, BTreeSet::new());
    assert_eq!(first.ended.await.unwrap(), Ok(()));
    settle().await;
    assert_eq!(second.take_begun(), all());
    assert_eq!(first.log.lock().unwrap().len(), OBJECTS, "the ends of all runs");
}

#[tokio::test(start_paused = true)]
async fn the_status_and_the_metrics_show_the_holder_of_each_shard_and_the_moves() {
    let api = Api::default();
    let first = Replica::start(&api, Duration::from_secs(20));
    sleep(Duration::from_secs(2)).await;
    let alone = first.status.shard_group().unwrap();
    assert_eq!((&*alone.group, alone.shards.len()), ("things", 8));
    assert_eq!(first.metric("shard_group_moves_total{name=\"things\",reason=\"first\"}"), 8.0);
    assert!(alone.shards.iter().all(|shard| shard.holder.as_ref() == Some(&alone.member)));
    let held_for = alone.shards[0].held_for.unwrap();
    assert!((0.5..=2.0).contains(&held_for.as_secs_f64()), "{held_for:?}");
    assert_eq!(first.metric("shard_group_shards_held{name=\"things\"}"), 8.0);

    let second = Replica::start(&api, Duration::ZERO);
    sleep(Duration::from_secs(10)).await;
    // The runs of Secrets are in flight. Half of the shards must move.
    let releasing = first.held[1].all().into_iter().filter(|shard| {
        let key = |number: usize| {
            ObjectKey::new(Some(&format!("{number}-namespace")), &format!("secret-{number}"))
        };
        (0..OBJECTS).any(|number| {
            let is_here =
                first.held[1].for_object(&key(number)).map(|it| it.index()) == Some(shard.index());
            let why = first.status.why_waits(&key(number));
            let expected =
                format!("shard {} is being handed over to another replica", shard.index());
            is_here && why == Some(expected)
        })
    });
    assert!(releasing.count() > 0);
    sleep(Duration::from_secs(30)).await;
    for replica in [&first, &second] {
        let status = replica.status.shard_group().unwrap();
        let ours = (0..).zip(&status.shards).filter(|(_, shard)| shard.held_for.is_some());
        let ours: Vec<u32> = ours.map(|(number, _)| number).collect();
        assert_eq!(ours, replica.shards()[0]);
        assert_eq!(ours.len(), 4);
        assert!(status.shards.iter().all(|shard| {
            (shard.holder.as_ref() == Some(&status.member)) == shard.held_for.is_some()
        }));
    }
    assert_eq!(second.status.shard_group().unwrap().handovers, 4);
    let moves = |reason: &str| {
        second.metric(&format!("shard_group_moves_total{{name=\"things\",reason=\"{reason}\"}}"))
    };
    assert_eq!((moves("handover"), moves("takeover")), (4.0, 0.0));

    // When a replica is dropped, it holds no shards. The other replica takes over the shards of the
    // dead member.
    first.ended.abort();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first.metric("shard_group_shards_held{name=\"things\"}"), 0.0);
    let died = first.status.shard_group().unwrap();
    assert!(died.shards.iter().all(|shard| shard.held_for.is_none()));
    sleep(Duration::from_secs(30)).await;
    assert_eq!((moves("handover"), moves("takeover")), (4.0, 4.0));
    let unheld = second.metric("shard_group_unheld_seconds_total");
    assert!((40.0..80.0).contains(&unheld), "{unheld}");
    let events = std::mem::take(&mut api.inner().events);
    let is_takeover = |event: &&serde_json::Value| event["reason"] == "ShardTakeover";
    let takeovers: Vec<_> = events.iter().filter(is_takeover).collect();
    let [event] = &takeovers[..] else { panic!("{events:?}") };
    let note = format!(
        "{} took over 4 shards of {}",
        second.status.shard_group().unwrap().member,
        died.member
    );
    assert_eq!(event["note"], note);
    assert_eq!(event["regarding"]["name"], "things");
}

#[tokio::test(start_paused = true)]
async fn runs_that_exceed_the_shutdown_are_dropped_before_their_shards_move() {
    let api = Api::default();
    let first = Replica::start(&api, Duration::from_secs(1000));
    settle().await;
    first.stop.send(()).unwrap();
    let begun = Instant::now();
    let ended = first.ended.await.unwrap();
    let ManagerError { controller: Some(_), error } = ended.unwrap_err() else { panic!() };
    assert!(matches!(&error, RunnerError::CutOff(keys) if keys.len() == OBJECTS), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(26));
    assert_eq!(api.leases(), ["things"], "the member Lease is released and deleted");
}

#[tokio::test(start_paused = true)]
async fn a_forced_shutdown_that_drops_runs_lets_the_member_lease_expire() {
    let api = Api::default();
    let first = Replica::start(&api, Duration::from_secs(1000));
    settle().await;
    first.stop.send(()).unwrap();
    sleep(Duration::from_secs(1)).await;
    first.force.send(()).unwrap();
    let ended = first.ended.await.unwrap();
    assert!(ended.unwrap_err().controller.is_some());
    assert_eq!(api.leases().len(), 2, "{:?}", api.leases());
    let second = Replica::start(&api, Duration::ZERO);
    sleep(Duration::from_secs(10)).await;
    assert!(second.take_begun().is_empty());
    sleep(Duration::from_secs(15)).await;
    assert_eq!(second.take_begun(), all());
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_membership_drops_the_runs_of_all_controllers() {
    let api = Api::default();
    let replica = Replica::start(&api, Duration::from_secs(1000));
    settle().await;
    assert_eq!(replica.take_begun(), all());
    api.delete("things");
    let error = replica.ended.await.unwrap().unwrap_err();
    let deleted = MembershipError::Deleted("things".to_owned());
    assert_eq!(error, RunnerError::from_membership(deleted).into());
    assert!(error.to_string().contains("was deleted"), "{error}");
    assert!(replica.held.iter().all(|held| held.all().is_empty()));
    assert!(replica.log.lock().unwrap().is_empty(), "no run has ended");
}

#[tokio::test(start_paused = true)]
async fn settings_that_do_not_fit_the_group_of_a_manager_are_refused() {
    let api = Api::default();
    let run = async |mut manager: Manager, controller: Controller<ConfigMap>| {
        let reconcile = async |_, _| Ok::<_, Infallible>(Action::await_change());
        manager.add(controller, move |it| it.run(reconcile, policy::backoff, Arc::new(())));
        manager.run().await.unwrap_err()
    };
    let manager = || Manager::new().shard_group(group(&api));
    let error = run(manager().shard_group(group(&api).count(3)), controller("a")).await;
    assert!(
        matches!(&error.error, RunnerError::Membership(MembershipError::Config(_), _)),
        "{error}"
    );
    assert!(error.to_string().contains("3 shards: use a power of two"), "{error}");

    let error =
        run(Manager::new().shard_group(ShardGroup::new("things", "ns")), controller("a")).await;
    assert!(matches!(error.error, RunnerError::Config(_)), "{error}");
    assert!(error.to_string().contains("ShardGroup::with_client"), "{error}");

    let config = leader::Config::new("ns", "things");
    let elector = LeaderElector::new(api.client(), config).unwrap();
    let error = run(manager().leader_election(elector), controller("a")).await;
    assert_eq!(error, RunnerError::group_conflict("manager", "leader election").into());

    let own = controller("a").shard_group(group(&api));
    let error = run(manager(), own).await;
    let setting = "Controller::shard_group beside Manager::shard_group";
    assert_eq!(error.error, RunnerError::group_conflict("controller", setting));
    assert!(error.controller.is_some());
    assert!(error.to_string().contains("remove one of the two settings"), "{error}");

    let fixed = controller("a").shard(Shard::new(0, 2).unwrap());
    let error = run(manager(), fixed).await.error;
    assert_eq!(error, RunnerError::group_conflict("controller", "Controller::shard"));
    assert_eq!(api.leases(), [""; 0]);
    assert_eq!(api.inner().requests, 0);
}
