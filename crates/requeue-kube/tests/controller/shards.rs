//! Controllers that share the objects of a kind.

use std::sync::Arc;

use futures_util::stream;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt, reflector};
use requeue_kube::controller::Watched;
use requeue_kube::range::{Shard, ShardBy};
use requeue_kube::shared::SharedWatch;
use requeue_kube::{Controller, policy};

use super::common::*;

/// The feeds and the log of a controller of ConfigMaps with this shard.
struct Sharded {
    maps: Feed<ConfigMap>,
    owned: Feed<Secret>,
    watched: Feed<Secret>,
    log: Log,
    _reading: Reading,
}

impl Sharded {
    fn new(shard: Shard) -> Self {
        let (maps, events) = Feed::new();
        let (reader, writer) = reflector::store();
        let (owned, owned_events) = Feed::new();
        let (watched, watched_events) = Feed::new();
        // The store contains the objects of all shards, so the controller must filter them.
        let controller = Controller::for_stream(events.reflect(writer), reader)
            .name(format!("{shard:?} {}", fastrand::u64(..)))
            .watch_owned(Watched::stream(owned_events))
            .watch_mapped(Watched::stream(watched_events), |secret: Secret| {
                name(&secret).strip_prefix("for ").map(|name| ObjectRef::new(name).within("ns"))
            })
            .reconcile_on(stream::pending::<ObjectRef<ConfigMap>>())
            .shard(shard);
        let log = Log::new();
        let stream = controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone()));
        Self { maps, owned, watched, log, _reading: Reading::of(stream) }
    }

    /// Returns the names of the runs so far, in order.
    async fn runs(&self) -> Vec<String> {
        a_moment().await;
        let mut names = self.log.names();
        self.log.clear();
        names.sort_unstable();
        names
    }
}

/// Returns the name of an object. The number comes first, because the last characters of a text
/// hardly change the first bits of its hash. The uids of an API server differ in all positions.
fn numbered(number: usize) -> String {
    format!("{number}-of-the-maps")
}

fn secret(name: &str) -> Secret {
    Secret { metadata: map(name, 1).metadata, ..Secret::default() }
}

#[tokio::test(start_paused = true)]
async fn each_object_and_its_changes_are_in_one_shard() {
    let names: Vec<_> = (0..20).map(numbered).collect();
    let maps: Vec<_> = names.iter().map(|name| map(name, 1)).collect();
    let shards = [0, 1, 2].map(|index| Shard::new(index, 3).unwrap());
    for (shard, sharded) in shards.map(|shard| (shard, Sharded::new(shard))) {
        let mut ours: Vec<_> =
            maps.iter().filter(|map| shard.contains(&map.metadata)).map(name).collect();
        ours.sort_unstable();
        assert!((1..20).contains(&ours.len()));
        sharded.maps.list(&maps);
        sharded.owned.list(&[]);
        sharded.watched.list(&[]);
        assert_eq!(sharded.runs().await, ours, "the first list");
        for name in &names {
            sharded.maps.apply(&map(name, 2));
        }
        assert_eq!(sharded.runs().await, ours, "changes");
        for name in &names {
            sharded.owned.apply(&owned_by::<ConfigMap, _>(secret(&format!("of {name}")), name));
        }
        assert_eq!(sharded.runs().await, ours, "owned objects");
        for name in &names {
            sharded.watched.apply(&secret(&format!("for {name}")));
        }
        sharded.watched.apply(&secret("for no map"));
        assert_eq!(sharded.runs().await, ours, "mapped objects");
        for name in &names {
            sharded.maps.delete(&map(name, 3));
        }
        assert_eq!(sharded.runs().await, ours, "deletions");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bulk_run_leaves_out_the_objects_of_other_shards_that_a_shared_store_has() {
    let shard = Shard::new(0, 2).unwrap();
    let maps: Vec<_> = (0..20).map(|number| map(&numbered(number), 1)).collect();
    let ours = maps.iter().filter(|map| shard.contains(&map.metadata)).count();
    let (feed, events) = Feed::new();
    let watch = SharedWatch::from_stream(events, ());
    let (start, started) = tokio::sync::oneshot::channel::<()>();
    let (bulk, trigger) = tokio::sync::mpsc::unbounded_channel();
    let trigger = stream::unfold(trigger, async |mut it| Some((it.recv().await?, it)));
    let controller = Controller::for_shared(&watch)
        .name("bulk runs of a shard")
        .shard(shard)
        .start_on(async { _ = started.await })
        .reconcile_all_on(trigger);
    let log = Log::new();
    let stream = controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone()));
    let _reading = Reading::of(stream);
    feed.list(&maps);
    a_moment().await;
    assert_eq!((watch.store().len(), log.names().len()), (20, 0));
    start.send(()).unwrap();
    a_moment().await;
    assert_eq!(log.names().len(), ours, "the end of the standby");
    bulk.send(()).unwrap();
    a_moment().await;
    assert_eq!(log.names().len(), 2 * ours, "a bulk run");
}

#[tokio::test(start_paused = true)]
async fn an_owned_object_that_changes_its_owner_runs_the_owner_that_it_has_lost() {
    let shards = [0, 1].map(|index| Shard::new(index, 2).unwrap());
    let owner_in = |shard: Shard| {
        let maps = (0..).map(|number| map(&numbered(number), 1));
        maps.into_iter().find(|map| shard.contains(&map.metadata)).unwrap()
    };
    let owners = shards.map(owner_in);
    let sharded = Sharded::new(shards[0]);
    sharded.maps.list(&owners);
    let child = |owner: &ConfigMap| owned_by::<ConfigMap, _>(secret("child"), &name(owner));
    sharded.owned.list(&[child(&owners[0])]);
    sharded.watched.list(&[]);
    assert_eq!(sharded.runs().await, [name(&owners[0])]);
    sharded.owned.apply(&child(&owners[1]));
    assert_eq!(sharded.runs().await, [name(&owners[0])]);
    sharded.owned.apply(&child(&owners[1]));
    assert_eq!(sharded.runs().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_without_a_namespace_runs_for_children_in_any_namespace() {
    let mut runs = Vec::new();
    for index in 0..2 {
        let (nodes, controller) = controller::<Node>();
        let (children, events) = Feed::new();
        let shard = Shard::new(index, 2).unwrap().by(ShardBy::Namespace);
        let controller = controller.watch_owned(Watched::stream(events)).shard(shard);
        let log = Log::new();
        let _reading =
            Reading::of(controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone())));
        let mut node = Node { metadata: map("node", 1).metadata, ..Node::default() };
        node.metadata.namespace = None;
        nodes.list(&[node]);
        children.list(&[]);
        a_moment().await;
        for number in 0..10 {
            let mut child = secret(&format!("child-{number}"));
            child.metadata.namespace = Some(numbered(number));
            children.apply(&owned_by::<Node, _>(child, "node"));
            a_moment().await;
        }
        runs.push(log.names().len());
    }
    runs.sort_unstable();
    assert_eq!(runs, [0, 11], "one shard has the node, and all of its children");
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_a_namespace_are_in_one_shard() {
    let shards = [0, 1].map(|index| Shard::new(index, 2).unwrap().by(ShardBy::Namespace));
    let maps: Vec<_> = (0..40)
        .map(|number| in_namespace(&format!("ns-{}", number % 4), &format!("map-{number}"), 1))
        .collect();
    let mut all = 0;
    for (shard, sharded) in shards.map(|shard| (shard, Sharded::new(shard))) {
        sharded.maps.list(&maps);
        sharded.owned.list(&[]);
        sharded.watched.list(&[]);
        let runs = sharded.runs().await;
        assert_eq!(runs.len() % 10, 0, "whole namespaces");
        assert_eq!(runs.len(), maps.iter().filter(|map| shard.contains(&map.metadata)).count());
        all += runs.len();
    }
    assert_eq!(all, maps.len());
}
