//! Objects that are deleted while they are reconciled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use requeue_e2e::{Server, full, until};
use requeue_kube::controller::{Action, Config};
use requeue_kube::finalizer::{self, Event, finalizer};
use requeue_kube::{Controller, policy};
use serde_json::json;
use tokio::sync::Semaphore;

/// The number of objects that are reconciled and deleted at the same time.
const AT_ONCE: usize = 32;

/// The observations about an object.
#[derive(Default)]
struct Fate {
    running: AtomicBool,
    /// Opens when a run of the object has begun, so that the test can delete the object.
    begun: Gate,
    deleted: Gate,
    /// The number of runs that have observed that the object does not exist or is being deleted.
    ends: AtomicUsize,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Gate {
    fn open(&self) {
        self.0.add_permits(1);
    }

    async fn pass(&self) {
        // The semaphore is never closed, and the gate stays open.
        drop(self.0.acquire().await.unwrap());
    }
}

struct Context {
    maps: Api<ConfigMap>,
    fates: BTreeMap<String, Fate>,
    overlaps: AtomicUsize,
}

impl Context {
    /// Reconciles an existing object. The test deletes the object during this run.
    async fn keep_until_deleted(&self, name: &str) {
        let fate = &self.fates[name];
        fate.begun.open();
        fate.deleted.pass().await;
    }

    /// Records a run until the returned value is dropped.
    fn run(&self, name: &str) -> Run<'_> {
        let fate = &self.fates[name];
        if fate.running.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        Run(fate)
    }
}

struct Run<'a>(&'a Fate);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::SeqCst);
    }
}

async fn look(object: ObjectRef<ConfigMap>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let run = context.run(&object.name);
    if context.maps.get_opt(&object.name).await?.is_some() {
        context.keep_until_deleted(&object.name).await;
    } else {
        run.0.ends.fetch_add(1, Ordering::SeqCst);
    }
    Ok(Action::await_change())
}

async fn finalize(
    map: Arc<ConfigMap>,
    context: Arc<Context>,
) -> Result<Action, finalizer::Error<kube::Error>> {
    let name = map.name_any();
    let run = context.run(&name);
    finalizer(&context.maps, "example.com/deletes", map, async |event| {
        match event {
            Event::Apply(_) => context.keep_until_deleted(&name).await,
            Event::Cleanup(_) => _ = run.0.ends.fetch_add(1, Ordering::SeqCst),
        }
        Ok(Action::await_change())
    })
    .await
}

/// Deletes each object during its run, and waits until runs have observed the deletion of all
/// objects.
async fn delete_amid(prefix: &str, run: impl AsyncFn(Controller<ConfigMap>, Arc<Context>)) {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace(prefix).await;
    let account = server.access().service_account(&namespace, "controller");
    let verbs = ["list", "watch", "get", "patch"];
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }]);
    account.allow(rules).await;
    let maps = Api::<ConfigMap>::namespaced(account.client().await, &namespace);
    let count = if full() { 1000 } else { 32 };
    let context = Arc::new(Context {
        maps: maps.clone(),
        fates: (0..count).map(|number| (format!("map-{number}"), Fate::default())).collect(),
        overlaps: AtomicUsize::new(0),
    });
    let wc = watcher::Config::default().labels("e2e=deletes");
    let controller = Controller::new(maps, wc)
        .name(prefix)
        .with_config(Config::default().concurrency(AT_ONCE as u16));
    let controlling = run(controller, Arc::clone(&context));

    let maps = &Api::<ConfigMap>::namespaced(server.client().await, &namespace);
    let deleting =
        stream::iter(&context.fates).for_each_concurrent(AT_ONCE, async |(name, fate)| {
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                labels: Some([("e2e".to_owned(), "deletes".to_owned())].into()),
                ..ObjectMeta::default()
            };
            let map = ConfigMap { metadata, ..ConfigMap::default() };
            maps.create(&PostParams::default(), &map).await.unwrap();
            fate.begun.pass().await;
            maps.delete(name, &DeleteParams::default()).await.unwrap();
            fate.deleted.open();
            let ended = async || fate.ends.load(Ordering::SeqCst) > 0;
            until(&format!("the end of {name} is seen"), ended).await;
            until("the object is gone", async || maps.get_opt(name).await.unwrap().is_none()).await;
        });
    tokio::select! {
        () = controlling => panic!("the controller has ended"),
        () = deleting => {}
    }
    let ends: usize = context.fates.values().map(|fate| fate.ends.load(Ordering::SeqCst)).sum();
    let overlaps = context.overlaps.load(Ordering::SeqCst);
    println!("{prefix}: {count} were deleted, {ends} ends seen, {overlaps} overlaps");
    assert_eq!(overlaps, 0);
}

#[tokio::test]
async fn what_is_deleted_while_it_is_reconciled_is_seen_to_be_gone() {
    delete_amid("deletes", async |controller, context| {
        let stream = controller.run_refs(look, policy::backoff, context);
        stream.for_each(async |_| ()).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_deleted_while_it_is_reconciled_is_finalized() {
    delete_amid("finalized", async |controller, context| {
        let stream = controller.run(finalize, policy::backoff, context);
        stream.for_each(async |_| ()).await;
    })
    .await;
}
