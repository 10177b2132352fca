//! Managers whose controllers share one membership.

use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, HeldShards};
use requeue_kube::{Controller, Manager, ManagerError, policy};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::members::group;

/// The number of objects of each kind.
const OBJECTS: usize = 40;

/// The names of the objects that were reconciled, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// A replica with a controller of ConfigMaps and a controller of Secrets.
struct Replica {
    held: [HeldShards; 2],
    log: Log,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), ManagerError>>,
}

impl Replica {
    fn start(client: &Client, namespace: &str, number: usize) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let mut manager = Manager::new()
            .shard_group(group(namespace))
            .graceful_shutdown_on(async { _ = stopped.await });
        let log = Log::default();
        let held = [
            add(
                &mut manager,
                Api::<ConfigMap>::namespaced(client.clone(), namespace),
                number,
                &log,
            ),
            add(&mut manager, Api::<Secret>::namespaced(client.clone(), namespace), number, &log),
        ];
        Self { held, log, stop, ended: tokio::spawn(manager.run()) }
    }

    /// Returns the number of shards that both controllers hold.
    fn shards(&self) -> usize {
        let [maps, secrets] =
            self.held.each_ref().map(|held| held.all().iter().map(|it| it.index()).collect());
        let (maps, secrets): (Vec<_>, Vec<_>) = (maps, secrets);
        maps.iter().filter(|shard| secrets.contains(shard)).count()
    }

    /// Returns the names of the objects that were reconciled, in order of the names, and forgets
    /// them.
    fn take_ran(&self) -> Vec<String> {
        let mut log = std::mem::take(&mut *self.log.lock().unwrap());
        log.sort_unstable();
        log
    }
}

fn add<K>(manager: &mut Manager, api: Api<K>, number: usize, log: &Log) -> HeldShards
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let reconcile = async |object: Arc<K>, log: Log| {
        log.lock().unwrap().push(object.name_any());
        Ok::<_, Infallible>(Action::await_change())
    };
    // The API server's controllers also create objects.
    let ours = watcher::Config::default().labels("test=manager");
    let controller =
        Controller::new(api, ours).name(format!("{} of replica {number}", K::kind(&())));
    let (held, log) = (controller.held_shards(), Arc::clone(log));
    manager.add(controller, move |it| it.run(reconcile, policy::backoff, log));
    held
}

async fn create<K>(client: &Client, namespace: &str, prefix: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug + Default,
    K: Serialize + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    join_all((0..OBJECTS).map(async |number| {
        let mut object = K::default();
        let name = Some(format!("{prefix}-{number}"));
        let labels = Some([("test".to_owned(), "manager".to_owned())].into());
        *object.meta_mut() = ObjectMeta { name, labels, ..ObjectMeta::default() };
        api.create(&PostParams::default(), &object).await.unwrap();
    }))
    .await;
}

#[tokio::test]
async fn the_controllers_of_a_manager_share_one_membership() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("manager").await;
    let client = server.client().await;
    create::<ConfigMap>(&client, &namespace, "map").await;
    create::<Secret>(&client, &namespace, "secret").await;
    let leases = Api::<Lease>::namespaced(client.clone(), &namespace);
    let leases = async || leases.list(&ListParams::default()).await.unwrap().items.len();

    let first = Replica::start(&client, &namespace, 1);
    let ran = async |replica: &Replica, count: usize| {
        until("all objects of a replica have run", async || {
            replica.log.lock().unwrap().len() >= count
        })
        .await;
        replica.take_ran()
    };
    let all = ran(&first, 2 * OBJECTS).await;
    assert!(all.iter().zip(&all[1..]).all(|(name, next)| name != next), "twice: {all:?}");
    assert_eq!(leases().await, 2, "the group and one member");

    let second = Replica::start(&client, &namespace, 2);
    until("the replicas share the shards", async || (first.shards(), second.shards()) == (8, 8))
        .await;
    assert_eq!(leases().await, 3);
    first.stop.send(()).unwrap();
    assert_eq!(first.ended.await.unwrap(), Ok(()));
    until("the second replica holds all shards", async || second.shards() == 16).await;
    // Each object has run once more, after the first or the second move of shards.
    assert_eq!(ran(&second, 2 * OBJECTS).await, all);
    assert_eq!(leases().await, 2);
    second.stop.send(()).unwrap();
    assert_eq!(second.ended.await.unwrap(), Ok(()));
    assert_eq!(leases().await, 1, "the object of the group");
}
