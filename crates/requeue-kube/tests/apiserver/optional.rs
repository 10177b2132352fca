//! Kinds that are installed later, or removed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{predicates, watcher};
use requeue_kube::controller::{Action, Readiness, Watched};
use requeue_kube::shared::SharedWatch;
use requeue_kube::{Controller, policy};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::server::{DEFINITIONS, MAPS, Server, THINGS};

/// The way in which the controller watches the optional kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Owned,
    OwnedFiltered,
    OwnedShared,
    Mapped,
    MappedFiltered,
    MappedShared,
}

use Way::{Mapped, MappedFiltered, MappedShared, Owned, OwnedFiltered, OwnedShared};

/// A controller of ConfigMaps, with a watch of owned or mapped objects of the kind `Thing`.
struct World {
    server: Server,
    runs: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<Vec<String>>>,
    readiness: Readiness,
    _running: AbortOnDropHandle<()>,
}

impl World {
    fn new(name: &str, way: Way, server: Server) -> Self {
        server.put(MAPS, "owner", json!({}));
        let client = server.client();
        let mut things =
            ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Thing"));
        things.plural = "things".to_owned();
        let api = Api::<DynamicObject>::all_with(client.clone(), &things);
        let wc = watcher::Config::default();
        let controller = Controller::new(Api::<ConfigMap>::all(client), wc.clone()).name(name);
        let owner = || Some(ObjectRef::new("owner").within("ns"));
        let metadata =
            || Watched::metadata_with(api.clone(), wc.clone(), things.clone()).optional();
        let whole = || Watched::new_with(api.clone(), wc.clone(), things.clone()).optional();
        let shared = || SharedWatch::optional(api.clone(), wc.clone(), things.clone());
        let controller = match way {
            Owned => controller.watch_owned(metadata()),
            OwnedFiltered => controller.watch_owned(metadata().filter(predicates::labels)),
            OwnedShared => controller.watch_owned(Watched::shared(&shared())),
            Mapped => controller.watch_mapped(whole(), move |_| owner()),
            MappedFiltered => {
                controller.watch_mapped(whole().filter(predicates::labels), move |_| owner())
            }
            MappedShared => controller.watch_mapped(Watched::shared(&shared()), move |_| owner()),
        };
        let readiness = controller.readiness();
        let (runs, errors) = (Arc::default(), Arc::default());
        let reconcile = async |map: Arc<ConfigMap>, runs: Arc<Mutex<Vec<String>>>| {
            runs.lock().unwrap().push(map.metadata.name.clone().unwrap());
            Ok::<_, kube::Error>(Action::await_change())
        };
        let reported = Arc::<Mutex<Vec<String>>>::clone(&errors);
        let stream = controller.run(reconcile, policy::backoff, Arc::clone(&runs));
        let running = tokio::spawn(stream.for_each(move |item| {
            reported.lock().unwrap().extend(item.err().map(|error| error.to_string()));
            async {}
        }));
        Self { server, runs, errors, readiness, _running: AbortOnDropHandle::new(running) }
    }

    fn thing(&self, name: &str) {
        let mut metadata = self.server.owned_by("owner");
        // Each call changes the object.
        metadata["annotations"] =
            json!({ "changed": self.server.with(|cluster| cluster.version()).to_string() });
        self.server.put(THINGS, name, metadata);
    }

    /// Waits for the next run, and returns the time until its start.
    async fn run(&self) -> Duration {
        let begun = Instant::now();
        let before = self.runs.lock().unwrap().len();
        let run = async {
            while self.runs.lock().unwrap().len() == before {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(120), run).await.unwrap();
        begun.elapsed()
    }

    fn count(&self) -> usize {
        self.runs.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_installed_later_is_watched_and_again_after_its_removal() {
    for way in [Owned, OwnedFiltered, OwnedShared, Mapped, MappedFiltered, MappedShared] {
        let server = Server::new();
        let world = World::new(&format!("optional: {way:?}"), way, server);
        assert!(world.run().await < Duration::from_secs(1), "the start does not wait for the kind");
        assert!(world.readiness.is_ready());
        for round in 0..2 {
            sleep(Duration::from_secs(600)).await;
            // The kind is served shortly after its definition was created.
            world.server.refuse(THINGS, 404);
            world.server.define_things();
            sleep(Duration::from_millis(500)).await;
            world.server.serve(THINGS);
            world.thing("a");
            assert!(world.run().await < Duration::from_secs(2), "{way:?}, round {round}");
            world.thing("b");
            assert!(world.run().await < Duration::from_secs(1), "{way:?}, round {round}");
            // This update changes no label, so the filter drops it.
            let runs = world.count();
            world.thing("b");
            sleep(Duration::from_secs(60)).await;
            let is_filtered = matches!(way, OwnedFiltered | MappedFiltered);
            assert_eq!(world.count() == runs, is_filtered, "{way:?}, round {round}");
            // If the kind is removed while the watch is disconnected, its objects count as deleted.
            let runs = world.count();
            world.server.end_watches();
            world.server.delete(DEFINITIONS, THINGS);
            world.run().await;
            sleep(Duration::from_secs(60)).await;
            assert_eq!(world.count(), runs + 1);
        }
        let errors = world.errors.lock().unwrap();
        assert!(errors.is_empty(), "{errors:?}");
        assert!(world.server.count("list", THINGS) < 120, "at most each 15 s, with jitter");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_permission_to_watch_definitions_the_kind_is_found_by_the_backoff() {
    let server = Server::new();
    server.refuse(DEFINITIONS, 403);
    let world = World::new("optional, forbidden", Owned, server);
    world.run().await;
    sleep(Duration::from_secs(600)).await;
    world.server.define_things();
    world.thing("a");
    assert!(world.run().await <= Duration::from_secs(61));
    assert_eq!(world.server.count("list", DEFINITIONS), 1, "it asks once");
    let errors = world.errors.lock().unwrap();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_there_is_listed_before_the_start() {
    let server = Server::new();
    server.define_things();
    let world = World::new("optional, present", Owned, server);
    world.run().await;
    world.thing("a");
    assert!(world.run().await < Duration::from_secs(1));
    assert_eq!(world.server.count("list", DEFINITIONS), 0);
}

#[tokio::test(start_paused = true)]
async fn the_start_does_not_wait_for_a_kind_that_fails() {
    let server = Server::new();
    server.refuse(THINGS, 403);
    let world = World::new("optional, failing", Owned, server);
    assert!(world.run().await < Duration::from_secs(10));
    let errors = world.errors.lock().unwrap();
    assert!(errors.iter().all(|error| error.contains("event queue error")), "{errors:?}");
    assert!(!errors.is_empty());
}
