//! ConfigMaps, the Secrets that they own, ConfigMaps that concern them, and a controller that
//! records their states. In the end, its records must equal the actual states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use requeue::limiter::ExponentialFailure;
use requeue_e2e::{Access, Server, until};
use requeue_kube::controller::{Action, Config, Error};
use requeue_kube::{Controller, policy};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The versions of an object, of the objects that it owns, and of the objects that concern it.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    main: Option<String>,
    owned: BTreeMap<String, String>,
    watched: Option<String>,
}

/// The states that the controller has found, and the number of times that one object had concurrent
/// runs.
#[derive(Default)]
pub(crate) struct Found {
    states: Mutex<BTreeMap<String, State>>,
    running: Mutex<BTreeSet<String>>,
    pub(crate) overlaps: AtomicUsize,
    pub(crate) runs: AtomicUsize,
    /// The number of lists that were necessary because a version was too old.
    pub(crate) gone: AtomicUsize,
}

/// The account of the controllers. The account has only the permissions in the crate's
/// documentation, and the permissions that the reconciler needs.
const ACCOUNT: &str = "controller";

#[derive(Clone)]
pub(crate) struct World {
    maps: Api<ConfigMap>,
    secrets: Api<Secret>,
    pub(crate) found: Arc<Found>,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl World {
    pub(crate) async fn new(server: &Server, prefix: &str) -> Self {
        let world = Self::of(server.client().await, &server.namespace(prefix).await);
        let rules = json!([
            // The reconciler reads main and watched objects by name.
            { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch", "get"] },
            { "apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"] },
        ]);
        world.access(server).allow(rules).await;
        world
    }

    /// Returns the access of controllers.
    pub(crate) fn access<'a>(&self, server: &'a Server) -> Access<'a> {
        server.access().service_account(self.namespace(), ACCOUNT)
    }

    pub(crate) fn namespace(&self) -> &str {
        self.maps.namespace().unwrap()
    }

    pub(crate) fn of(client: Client, namespace: &str) -> Self {
        Self {
            maps: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client, namespace),
            found: Arc::default(),
            names: Arc::default(),
        }
    }

    /// Returns the same world, accessed through another client.
    fn through(&self, client: Client) -> Self {
        let namespace = self.namespace();
        Self {
            found: Arc::clone(&self.found),
            names: Arc::clone(&self.names),
            ..Self::of(client, namespace)
        }
    }

    pub(crate) async fn create(&self, name: &str) {
        self.names.lock().unwrap().insert(name.to_owned());
        let main = self.maps.create(&PostParams::default(), &map(name, "main")).await.unwrap();
        let owner_references = Some(vec![main.owner_ref(&()).unwrap()]);
        let metadata = ObjectMeta {
            name: Some(format!("{name}-1")),
            labels: label("owner", name),
            owner_references,
            ..ObjectMeta::default()
        };
        let secret = Secret { metadata, ..Secret::default() };
        self.secrets.create(&PostParams::default(), &secret).await.unwrap();
        let watched = map(&format!("w-{name}"), "watched");
        self.maps.create(&PostParams::default(), &watched).await.unwrap();
    }

    pub(crate) async fn change(&self, name: &str, number: u32) {
        let data = json!({ "data": { "number": number.to_string() } });
        self.maps.patch(name, &PatchParams::default(), &Patch::Merge(data)).await.unwrap();
    }

    pub(crate) async fn delete_main(&self, name: &str) {
        self.maps.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn delete_owned(&self, name: &str) {
        self.secrets.delete(&format!("{name}-1"), &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn delete_watched(&self, name: &str) {
        self.maps.delete(&format!("w-{name}"), &DeleteParams::default()).await.unwrap();
    }

    /// Returns the actual state of an object.
    pub(crate) async fn look(&self, name: &str) -> Result<State, kube::Error> {
        let version = |map: ConfigMap| map.resource_version().unwrap();
        let owned = ListParams::default().labels(&format!("owner={name}"));
        let owned = self.secrets.list(&owned).await?;
        Ok(State {
            main: self.maps.get_opt(name).await?.map(version),
            owned: owned.iter().map(|s| (s.name_any(), s.resource_version().unwrap())).collect(),
            watched: self.maps.get_opt(&format!("w-{name}")).await?.map(version),
        })
    }

    /// Waits until the controller knows the state of every object.
    pub(crate) async fn is_known(&self) {
        self.is_known_by(|name| self.found.states.lock().unwrap().get(name).cloned()).await;
        assert_eq!(self.found.overlaps.load(Ordering::SeqCst), 0, "overlapping runs");
    }

    /// Waits until `known` returns the actual state of every object.
    pub(crate) async fn is_known_by(&self, known: impl Fn(&str) -> Option<State>) {
        let names = self.names.lock().unwrap().clone();
        for name in names {
            until(&format!("the controller knows how {name} is"), async || {
                let Ok(state) = self.look(&name).await else { return false };
                known(&name) == Some(state)
            })
            .await;
        }
    }

    /// Starts a controller that uses `client`.
    pub(crate) fn control(&self, name: &str, client: Client) -> Running {
        let world = self.through(client);
        let (stop, stopped) = oneshot::channel::<()>();
        let stream = world
            .controller()
            .name(name)
            .with_config(config().reconcile_timeout(Duration::from_secs(5)))
            .graceful_shutdown_on(async { _ = stopped.await })
            .run_refs(note, policy::backoff, Arc::new(world.clone()));
        let found = Arc::clone(&world.found);
        let task = tokio::spawn(stream.for_each(move |result| {
            if let Err(Error::QueueError(watcher::Error::WatchError(status))) = result
                && status.code == 410
            {
                found.gone.fetch_add(1, Ordering::SeqCst);
            }
            std::future::ready(())
        }));
        Running { stop: Some(stop), task }
    }

    pub(crate) fn controller(&self) -> Controller<ConfigMap> {
        let role = |role: &str| watcher::Config::default().labels(&format!("role={role}"));
        let mapper = |map: ConfigMap| {
            let name = map.name_any();
            let main = ObjectRef::new(name.strip_prefix("w-").unwrap_or(&name));
            Some(main.within(&map.namespace().unwrap_or_default()))
        };
        Controller::new(self.maps.clone(), role("main"))
            .owns(self.secrets.clone(), watcher::Config::default())
            .watches(self.maps.clone(), role("watched"), mapper)
    }
}

/// Returns a configuration with short backoffs, because the tests wait for retries.
pub(crate) fn config() -> Config {
    let limiter = || ExponentialFailure::new(Duration::from_millis(5), Duration::from_secs(1));
    Config::default().concurrency(4).rate_limiter(limiter)
}

fn label(key: &str, value: &str) -> Option<BTreeMap<String, String>> {
    Some([(key.to_owned(), value.to_owned())].into())
}

fn map(name: &str, role: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: label("role", role),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// Records the state of an object.
async fn note(object: ObjectRef<ConfigMap>, world: Arc<World>) -> Result<Action, kube::Error> {
    let found = &world.found;
    let _here = Here::new(found, &object.name);
    let state = world.look(&object.name).await?;
    found.states.lock().unwrap().insert(object.name.clone(), state);
    found.runs.fetch_add(1, Ordering::SeqCst);
    Ok(Action::await_change())
}

/// A run of an object, whose end is also recorded if it is cut off.
struct Here<'a>(&'a Found, &'a str, bool);

impl<'a> Here<'a> {
    fn new(found: &'a Found, name: &'a str) -> Self {
        let alone = found.running.lock().unwrap().insert(name.to_owned());
        if !alone {
            found.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        Self(found, name, alone)
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if self.2 {
            self.0.running.lock().unwrap().remove(self.1);
        }
    }
}

/// A controller that runs until this value is dropped.
pub(crate) struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    /// Shuts the controller down gracefully.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
