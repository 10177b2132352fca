//! A reconciler that counts children in the store of its controller's own watch, and creates
//! missing children.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use requeue_e2e::{Server, full, until};
use requeue_kube::controller::{Action, Config, Watched, Writes};
use requeue_kube::{Controller, ObjectQueue, policy};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

/// The number of children that each owner wants.
const CHILDREN: usize = 3;

struct Context {
    secrets: Api<Secret>,
    store: Store<Secret>,
    writes: Option<Writes>,
}

fn is_owned_by(secret: &Secret, owner: &ConfigMap) -> bool {
    secret.owner_references().iter().any(|reference| Some(&reference.uid) == owner.uid().as_ref())
}

async fn reconcile(owner: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let children = context.store.state();
    if children.iter().filter(|secret| is_owned_by(secret, &owner)).count() >= CHILDREN {
        return Ok(Action::await_change());
    }
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", owner.name_any())),
        owner_references: Some(vec![owner.owner_ref(&()).unwrap()]),
        ..ObjectMeta::default()
    };
    let child = Secret { metadata, ..Secret::default() };
    let created = context.secrets.create(&PostParams::default(), &child).await?;
    if let Some(writes) = &context.writes {
        writes.record(&created);
    }
    Ok(Action::requeue_after(Duration::ZERO))
}

/// Runs the controller until no work is left, and returns the number of children.
async fn children(server: &Server, owners: usize, records: bool) -> usize {
    let client = server.client().await;
    let namespace = &server.namespace("writes").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let account = server.access().service_account(namespace, "controller");
    let rules = ["configmaps", "secrets"].map(|resource| {
        json!({ "apiGroups": [""], "resources": [resource], "verbs": ["list", "watch"] })
    });
    account.allow(json!(rules)).await;
    // The proxy delays the watches, so that they show the writes late.
    let proxy = server.proxy().await;
    proxy.delay(Duration::from_millis(50));
    let watched = account.through(&proxy).client().await;

    let (store, writer) = reflector::store();
    let config = watcher::Config::default();
    let events =
        watcher(Api::namespaced(watched.clone(), namespace), config.clone()).reflect(writer);
    let queue = Arc::new(OnceLock::<ObjectQueue>::new());
    let handed = Arc::clone(&queue);
    let controller = Controller::new(Api::namespaced(watched, namespace), config)
        .watch_owned(Watched::stream(events))
        .name(namespace)
        .queue_on_start(move |queue| _ = handed.set(queue))
        .with_config(Config::default().concurrency(8));
    let writes = records.then(|| controller.writes());
    let context = Context { secrets: secrets.clone(), store, writes };
    let stream = controller.run(reconcile, policy::backoff, Arc::new(context));
    let _running = AbortOnDropHandle::new(tokio::spawn(stream.for_each(async |_| ())));
    join_all((0..owners).map(async |number| {
        let metadata =
            ObjectMeta { name: Some(format!("owner-{number}")), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap();
    }))
    .await;
    let count = async || secrets.list_metadata(&ListParams::default()).await.unwrap().items.len();
    until("every owner has its children", async || count().await >= CHILDREN * owners).await;
    until("no owner runs or waits", async || {
        queue.get().is_some_and(|queue| queue.states().total() == 0)
    })
    .await;
    count().await
}

#[tokio::test]
async fn an_owner_that_counts_its_children_in_the_store_creates_no_child_too_many() {
    let Some(server) = Server::shared().await else { return };
    let (owners, runs) = if full() { (100, 20) } else { (30, 1) };
    for run in 0..runs {
        assert_eq!(children(server, owners, true).await, CHILDREN * owners, "run {run}");
    }
    if full() {
        let without = children(server, owners, false).await;
        assert!(without > CHILDREN * owners, "the watches are not behind: {without}");
    }
}
