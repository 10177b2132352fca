//! Controllers that share the objects of a kind, on a server that selects shards, and on a server
//! that does not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use requeue_e2e::{Server, until};
use requeue_kube::controller::{Action, Config};
use requeue_kube::range::{Shard, ShardBy};
use requeue_kube::{Controller, policy};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

const OBJECTS: usize = 60;
const SHARDS: u32 = 3;

/// The shards that have reconciled each object, with the number of runs.
type Runs = Arc<Mutex<BTreeMap<String, BTreeMap<u32, usize>>>>;

fn control(
    client: &Client,
    namespace: &str,
    (index, shard): (u32, Shard),
    runs: &Runs,
) -> AbortOnDropHandle<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let runs = Arc::clone(runs);
    let reconcile = move |object: ObjectRef<ConfigMap>, _: Arc<()>| {
        let mut runs = runs.lock().unwrap();
        *runs.entry(object.name).or_default().entry(index).or_default() += 1;
        async { Ok::<_, kube::Error>(Action::await_change()) }
    };
    let stream = Controller::new(maps, watcher::Config::default())
        .owns(secrets, watcher::Config::default())
        .name(format!("{namespace}-{index}"))
        .with_config(Config::default().concurrency(4))
        .shard(shard)
        .run_refs(reconcile, policy::backoff, Arc::new(()));
    AbortOnDropHandle::new(tokio::spawn(stream.for_each(async |_| ())))
}

/// Lists the names in a shard as the server selects them. Also returns the selector that the server
/// has applied.
async fn listed(client: &Client, namespace: &str, shard: Shard) -> (BTreeSet<String>, Value) {
    listed_by(client, namespace, &shard.selector()).await
}

/// Lists the names that a selector selects.
async fn listed_by(client: &Client, namespace: &str, selector: &str) -> (BTreeSet<String>, Value) {
    let selector = selector.replace(' ', "%20").replace('\'', "%27").replace('|', "%7C");
    let uri = format!("/api/v1/namespaces/{namespace}/configmaps?shardSelector={selector}");
    let request = http::Request::get(uri).body(Vec::new()).unwrap();
    let list: Value = client.request(request).await.unwrap();
    let items = list["items"].as_array().unwrap();
    let names = items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
    (names.collect(), list["metadata"]["shardInfo"]["selector"].clone())
}

async fn shards_share_all_objects(server: &Server, by: ShardBy, is_selected: bool) {
    let client = server.client().await;
    let namespace = &server.namespace("shards").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let create = async |number: usize| {
        let metadata = ObjectMeta { name: Some(format!("map-{number}")), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.unwrap()
    };
    let created = join_all((0..OBJECTS / 2).map(create)).await;
    let shards: Vec<_> =
        (0..SHARDS).map(|index| (index, Shard::new(index, SHARDS).unwrap().by(by))).collect();
    for (_, shard) in &shards {
        let (names, selector) = listed(&client, namespace, *shard).await;
        assert_eq!(selector.is_string(), is_selected, "{selector}");
        if is_selected {
            let ours = created.iter().filter(|map| shard.contains(map.meta()));
            assert_eq!(names, ours.map(ResourceExt::name_any).collect());
        }
    }

    // A controller whose shards change selects the union of several ranges.
    let (first, last) = (shards[0].1, shards[SHARDS as usize - 1].1);
    let union = format!("{} || {}", first.selector(), last.selector());
    let (names, selector) = listed_by(&client, namespace, &union).await;
    assert_eq!(selector.is_string(), is_selected, "{selector}");
    if is_selected {
        let is_in = |map: &&ConfigMap| first.contains(map.meta()) || last.contains(map.meta());
        assert_eq!(names, created.iter().filter(is_in).map(ResourceExt::name_any).collect());
    }

    let runs = Runs::default();
    let account = server.access().service_account(namespace, "controller");
    let rules = ["configmaps", "secrets"].map(|resource| {
        json!({ "apiGroups": [""], "resources": [resource], "verbs": ["list", "watch"] })
    });
    account.allow(json!(rules)).await;
    let limited = account.client().await;
    let _running: Vec<_> =
        shards.iter().map(|shard| control(&limited, namespace, *shard, &runs)).collect();
    let created = [created, join_all((OBJECTS / 2..OBJECTS).map(create)).await].concat();
    let has_run = |expected: usize| {
        let runs = runs.lock().unwrap();
        // The root certificate in each namespace is also a ConfigMap.
        let ours = created.iter().filter_map(|map| runs.get(&map.name_any()));
        ours.filter(|by| by.values().sum::<usize>() >= expected).count() == OBJECTS
    };
    until("every object has run", async || has_run(1)).await;
    runs.lock().unwrap().clear();
    join_all(created.iter().map(async |map| {
        let data = Patch::Merge(json!({ "data": { "changed": "yes" } }));
        maps.patch(&map.name_any(), &PatchParams::default(), &data).await.unwrap();
    }))
    .await;
    until("every change has caused a run", async || has_run(1)).await;
    let owned = join_all(created.iter().map(async |map| {
        let metadata = ObjectMeta {
            name: Some(map.name_any()),
            owner_references: Some(vec![map.owner_ref(&()).unwrap()]),
            ..ObjectMeta::default()
        };
        let secret = Secret { metadata, ..Secret::default() };
        secrets.create(&PostParams::default(), &secret).await.unwrap()
    }));
    owned.await;
    until("every owner has run", async || has_run(2)).await;
    for map in &created {
        let expected = shards.iter().find(|(_, shard)| shard.contains(map.meta())).unwrap().0;
        let runs = runs.lock().unwrap();
        let by: Vec<_> = runs[&map.name_any()].keys().copied().collect();
        assert_eq!(by, [expected], "{}", map.name_any());
    }
}

#[tokio::test]
async fn shards_share_all_objects_if_the_server_selects_them() {
    let gate = "--feature-gates=ShardedListAndWatch=true";
    let Some(server) = Server::start_with(&[gate]).await else { return };
    shards_share_all_objects(&server, ShardBy::Uid, true).await;
    shards_share_all_objects(&server, ShardBy::Namespace, true).await;
}

#[tokio::test]
async fn shards_share_all_objects_if_the_server_ignores_the_selector() {
    let Some(server) = Server::shared().await else { return };
    shards_share_all_objects(server, ShardBy::Uid, false).await;
}
