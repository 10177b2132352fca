//! Two controllers of one process, which share one watch for each kind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, Watched};
use requeue_kube::{Controller, Manager, policy};
use serde_json::json;
use tokio::sync::oneshot;

/// The versions of a ConfigMap and of the Secret of the same name.
type State = (Option<String>, Option<String>);

/// The states that a controller has found, and the number of its runs for each object.
#[derive(Default)]
struct Found {
    states: BTreeMap<String, State>,
    runs: BTreeMap<String, usize>,
}

struct World {
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    found: Mutex<[Found; 2]>,
}

impl World {
    async fn look(&self, name: &str) -> Result<State, kube::Error> {
        let map = self.maps.get_opt(name).await?.and_then(|map| map.resource_version());
        let secret = self.secrets.get_opt(name).await?.and_then(|secret| secret.resource_version());
        Ok((map, secret))
    }

    async fn create(&self, number: usize) {
        let metadata = ObjectMeta { name: Some(format!("a-{number}")), ..ObjectMeta::default() };
        let map = ConfigMap { metadata: metadata.clone(), ..ConfigMap::default() };
        let map = self.maps.create(&PostParams::default(), &map).await.unwrap();
        let owner_references = Some(vec![map.owner_ref(&()).unwrap()]);
        let metadata = ObjectMeta { owner_references, ..metadata };
        let secret = Secret { metadata, ..Secret::default() };
        self.secrets.create(&PostParams::default(), &secret).await.unwrap();
    }

    /// Waits until both controllers know the states of all objects.
    async fn is_known(&self) {
        for number in 0..10 {
            let name = format!("a-{number}");
            until(&format!("both controllers know {name}"), async || {
                let Ok(state) = self.look(&name).await else { return false };
                let found = self.found.lock().unwrap();
                found.iter().all(|found| found.states.get(&name) == Some(&state))
            })
            .await;
        }
    }

    fn runs(&self, name: &str) -> [usize; 2] {
        self.found.lock().unwrap().each_ref().map(|found| found.runs[name])
    }
}

async fn note(controller: usize, name: String, world: Arc<World>) -> Result<Action, kube::Error> {
    let state = world.look(&name).await?;
    let found = &mut world.found.lock().unwrap()[controller];
    found.states.insert(name.clone(), state);
    *found.runs.entry(name).or_default() += 1;
    Ok(Action::await_change())
}

type Requests = Arc<Mutex<BTreeMap<(bool, String), usize>>>;

/// Returns a client like `client` that counts its lists and watches by path.
fn counting(client: Client) -> (Client, Requests) {
    let (requests, namespace) = (Requests::default(), client.default_namespace().to_owned());
    let counted = Arc::clone(&requests);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let uri = request.uri();
        let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        let resource = uri.path().rsplit_once('/').unwrap().1.to_owned();
        *counted.lock().unwrap().entry((is_watch, resource)).or_default() += 1;
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, namespace), requests)
}

#[tokio::test]
async fn two_controllers_list_and_watch_each_kind_once_and_miss_nothing_in_an_outage() {
    let Some(server) = Server::start_with(&["--watch-cache=false"]).await else { return };
    let (client, namespace) = (server.client().await, server.namespace("manager").await);
    let world = Arc::new(World {
        maps: Api::namespaced(client.clone(), &namespace),
        secrets: Api::namespaced(client, &namespace),
        found: Mutex::default(),
    });
    join_all((0..10).map(|number| world.create(number))).await;
    let account = server.access().service_account(&namespace, "controller");
    let rules = ["configmaps", "secrets"].map(|resource| {
        json!({ "apiGroups": [""], "resources": [resource], "verbs": ["list", "watch"] })
    });
    account.allow(json!(rules)).await;
    let proxy = server.proxy().await;
    let (limited, requests) = counting(account.through(&proxy).client().await);

    let (stop, stopped) = oneshot::channel::<()>();
    let mut manager = Manager::new().graceful_shutdown_on(async { _ = stopped.await });
    // The API server creates a ConfigMap in each namespace.
    let wc = watcher::Config::default().fields("metadata.name!=kube-root-ca.crt");
    let maps = manager.watch(Api::<ConfigMap>::namespaced(limited.clone(), &namespace), wc.clone());
    let secrets = manager.watch(Api::<Secret>::namespaced(limited, &namespace), wc);
    let of_maps =
        Controller::for_shared(&maps).watch_owned(Watched::shared(&secrets)).name("manager: maps");
    let of_secrets = Controller::for_shared(&secrets)
        .watch_mapped(Watched::shared(&maps), |map| {
            let namespace = map.namespace().unwrap_or_default();
            Some(ObjectRef::new(&map.name_any()).within(&namespace))
        })
        .name("manager: secrets");
    let [first, second] = [Arc::clone(&world), Arc::clone(&world)];
    let of_map = |map: ObjectRef<ConfigMap>, world| note(0, map.name, world);
    let of_secret = |secret: ObjectRef<Secret>, world| note(1, secret.name, world);
    manager.add(of_maps, move |it| it.run_refs(of_map, policy::backoff, first));
    manager.add(of_secrets, move |it| it.run_refs(of_secret, policy::backoff, second));
    let running = tokio::spawn(manager.run());
    world.is_known().await;
    let count = |is_watch, resource: &str| {
        let requests = requests.lock().unwrap();
        requests.get(&(is_watch, resource.to_owned())).copied().unwrap_or(0)
    };
    for resource in ["configmaps", "secrets"] {
        until(&format!("{resource} are watched"), async || count(true, resource) > 0).await;
        assert_eq!((count(false, resource), count(true, resource)), (1, 1), "{resource}");
    }

    let unchanged = world.runs("a-9");
    proxy.down();
    until("all connections are closed", async || proxy.connections() == 0).await;
    let delete = DeleteParams::default();
    for name in ["a-0", "a-1"] {
        world.maps.delete(name, &delete).await.unwrap();
        world.secrets.delete(name, &delete).await.ok();
    }
    world.secrets.delete("a-2", &delete).await.unwrap();
    let data = Patch::Merge(json!({ "data": { "changed": "yes" } }));
    world.maps.patch("a-3", &PatchParams::default(), &data).await.unwrap();
    until("the Secrets of deleted ConfigMaps are gone", async || {
        let secrets = world.secrets.list_metadata(&ListParams::default()).await.unwrap();
        secrets.items.len() == 7
    })
    .await;
    server.compact().await;
    proxy.up();
    world.is_known().await;
    assert_eq!(world.runs("a-9"), unchanged, "it has not changed");
    for resource in ["configmaps", "secrets"] {
        assert_eq!(count(false, resource), 2, "{resource}: one list after the outage");
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok(()));
}
