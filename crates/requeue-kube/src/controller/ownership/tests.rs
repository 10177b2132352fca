//! Tests of controllers whose shards the tests gain and release directly, without a group.

mod api;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../tests/controller/common.rs"]
mod common;
mod handover;
mod late;
mod moves;
mod watching;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, predicates, reflector, watcher};
use tokio::time::sleep;

use self::api::FakeApi;
use self::common::*;
use super::*;
use crate::controller::{Action, Config, Watched};
use crate::range::ShardBy;
use crate::shared::SharedWatch;
use crate::{Controller, ObjectKey, ObjectQueue, policy};

const SHARDS: u32 = 8;

/// Returns a handle with eight shards, by uid. It holds none of them.
fn by_uid() -> ChangingShards {
    ChangingShards::new(SHARDS, Rule::Hash(ShardBy::Uid))
}

/// Returns the shard of the object that the function `map` creates for this name.
fn shard_of(name: &str) -> u32 {
    (crate::range::fnv1a(format!("uid of {name}").as_bytes()) >> 61) as u32
}

/// Returns names of objects in this shard. The number is at the beginning of a name, because the last characters of a
/// text hardly change the first bits of its hash.
fn names_in(shard: u32) -> impl Iterator<Item = String> {
    (0..).map(|n| format!("{n}-of-the-maps")).filter(move |name| shard_of(name) == shard)
}

fn name_in(shard: u32) -> String {
    names_in(shard).next().unwrap()
}

fn secret(name: &str) -> Secret {
    Secret { metadata: map(name, 1).metadata, ..Secret::default() }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_unstable();
    names
}

/// A controller of ConfigMaps that uses the API in memory. All of its runs have the same duration.
struct Replica {
    ownership: ChangingShards,
    /// An entry for the beginning and for the end of each run.
    log: Log,
    store: Store<ConfigMap>,
    owned: Feed<Secret>,
    reading: Reading,
}

impl Replica {
    fn start(api: &FakeApi, ownership: ChangingShards, takes: Duration) -> Self {
        Self::with(api, ownership, takes, Config::default().concurrency(4))
    }

    fn with(api: &FakeApi, ownership: ChangingShards, takes: Duration, config: Config) -> Self {
        Self::of(api, ownership, takes, config, |controller| controller)
    }

    fn of(
        api: &FakeApi,
        ownership: ChangingShards,
        takes: Duration,
        config: Config,
        options: fn(Controller<ConfigMap>) -> Controller<ConfigMap>,
    ) -> Self {
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let (owned, owned_events) = Feed::new();
        let controller = Controller::new(api.maps(), watcher::Config::default())
            .name(format!("replica {}", NAMES.fetch_add(1, Ordering::Relaxed)))
            .with_config(config)
            .watch_owned(Watched::stream(owned_events))
            .owning(ownership.clone());
        owned.list(&[]);
        let (store, log) = (controller.store(), Log::new());
        let reconcile = move |object: ObjectRef<ConfigMap>, log: Arc<Log>| async move {
            log.note(format!("{} begins", object.name));
            sleep(takes).await;
            log.note(format!("{} ends", object.name));
            Ok::<_, Infallible>(Action::await_change())
        };
        let stream =
            options(controller).run_refs(reconcile, policy::backoff, Arc::new(log.clone()));
        Self { ownership, log, store, owned, reading: Reading::of(stream) }
    }

    /// Returns the names of the objects whose runs have ended since the last call, in alphabetical order.
    async fn runs(&self) -> Vec<String> {
        sleep(Duration::from_secs(1)).await;
        let log = self.log.names();
        self.log.clear();
        sorted(
            log.iter().filter_map(|entry| entry.strip_suffix(" ends")).map(str::to_owned).collect(),
        )
    }

    fn stored(&self) -> Vec<String> {
        sorted(self.store.state().iter().map(|map| name(&**map)).collect())
    }
}

const QUICK: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_gained_shard_is_listed_and_then_runs_and_the_others_do_not() {
    for honours in [true, false] {
        let all: Vec<_> = (0..SHARDS).flat_map(|shard| names_in(shard).take(2)).collect();
        let api = FakeApi::new(honours, all.iter().map(|name| map(name, 1)));
        let replica = Replica::start(&api, by_uid(), QUICK);
        assert_eq!(replica.runs().await, [""; 0]);
        assert_eq!(api.take_selectors(), [""; 0], "nothing to watch");

        replica.ownership.gain([2]);
        let of = |shard: u32| sorted(names_in(shard).take(2).collect());
        assert_eq!(replica.runs().await, of(2));
        assert_eq!(replica.stored(), of(2));
        replica.ownership.gain([2, 3, 5]);
        assert_eq!(
            replica.runs().await,
            sorted([of(3), of(5)].concat()),
            "shard 2 has not changed"
        );
        assert_eq!(replica.stored(), sorted([of(2), of(3), of(5)].concat()));
        let range = |from: u32, to: u32| {
            let hash = |shard: u32| u128::from(shard) << 61;
            format!("shardRange(object.metadata.uid,'{:#018x}','{:#018x}')", hash(from), hash(to))
        };
        assert_eq!(
            api.take_selectors(),
            [range(2, 3), format!("{}||{}", range(2, 4), range(5, 6))]
        );
        drop(replica);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_runs_of_its_shard_and_drops_its_keys() {
    let all: Vec<_> = [1, 6].into_iter().flat_map(|shard| names_in(shard).take(3)).collect();
    let api = FakeApi::new(true, all.iter().map(|name| map(name, 1)));
    let takes = Duration::from_secs(10);
    let replica = Replica::with(&api, by_uid(), takes, Config::default().concurrency(2));
    replica.ownership.gain([1, 6]);
    replica.log.reaches(2).await;
    let running: Vec<_> =
        replica.log.names().iter().map(|entry| entry.replace(" begins", "")).collect();
    let released = shard_of(&running[0]);
    let other = 7 - released;
    let of_it = running.iter().filter(|name| shard_of(name) == released).count();
    let mut release = Box::pin(replica.ownership.release([released]));
    assert!((&mut release).now_or_never().is_none(), "{of_it} are in flight");
    assert_eq!(replica.ownership.held(), BTreeSet::from([other]));
    release.await;
    let ended = replica.log.names().iter().filter(|entry| entry.ends_with(" ends")).count();
    assert!(ended >= of_it);
    sleep(5 * takes).await;
    let log = replica.log.names();
    let runs = |shard: u32| {
        log.iter()
            .filter(|entry| {
                entry.ends_with(" ends") && shard_of(&entry[..entry.len() - 5]) == shard
            })
            .count()
    };
    assert_eq!((runs(released), runs(other)), (of_it, 3), "the other shard goes on");
    assert_eq!(
        replica.stored(),
        sorted(names_in(other).take(3).collect()),
        "it has left the store"
    );
    assert_eq!(log.iter().filter(|entry| entry.ends_with(" begins")).count(), of_it + 3);
}

#[tokio::test(start_paused = true)]
async fn a_lost_shard_stops_its_runs_at_once() {
    let (ours, lost) = (name_in(0), name_in(7));
    let api = FakeApi::new(true, [map(&ours, 1), map(&lost, 1)]);
    let replica = Replica::start(&api, by_uid(), Duration::from_secs(60));
    replica.ownership.gain([0, 7]);
    replica.log.reaches(2).await;
    let begun = tokio::time::Instant::now();
    replica.ownership.lose([7]).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    sleep(Duration::from_secs(100)).await;
    let ends: Vec<_> =
        replica.log.names().into_iter().filter(|entry| entry.ends_with(" ends")).collect();
    assert_eq!(ends, [format!("{ours} ends")]);
    replica.log.clear();
    replica.ownership.lose(0..replica.ownership.count()).await;
    assert!(replica.ownership.held().is_empty());
    sleep(Duration::from_secs(100)).await;
    assert_eq!(replica.log.names(), [""; 0]);
    assert_eq!(replica.stored(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_comes_back_runs_again_although_nothing_has_changed() {
    let name = name_in(3);
    let api = FakeApi::new(true, [map(&name, 1)]);
    // The controller ignores changes that leave the generation unchanged, and the generation never changes.
    let replica = Replica::of(&api, by_uid(), QUICK, config(), |controller| {
        controller.filter(predicates::generation)
    });
    replica.ownership.gain([3]);
    assert_eq!(replica.runs().await, [name.as_str()]);
    // No `await` separates the release from the gain. The watch therefore cannot list in between.
    let release = replica.ownership.release([3]);
    replica.ownership.gain([3]);
    release.await;
    assert_eq!(replica.ownership.held(), BTreeSet::from([3]), "the gain came later");
    assert_eq!(replica.runs().await, [name]);
}

#[tokio::test(start_paused = true)]
async fn owned_objects_belong_to_the_shard_of_their_owner() {
    let (ours, other) = (name_in(1), name_in(2));
    let api = FakeApi::new(true, [map(&ours, 1), map(&other, 1)]);
    let replica = Replica::start(&api, by_uid(), QUICK);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, [ours.as_str()]);
    let child = |owner: &str, version: u32| {
        let mut child = secret(&format!("child of {owner}"));
        child.metadata.resource_version = Some(version.to_string());
        owned_by::<ConfigMap, _>(child, owner)
    };
    replica.owned.apply(&child(&ours, 1));
    replica.owned.apply(&child(&other, 1));
    assert_eq!(replica.runs().await, [ours.as_str()]);
    replica.ownership.gain([2]);
    assert_eq!(replica.runs().await, [other.as_str()]);
    replica.owned.delete(&child(&other, 2));
    assert_eq!(replica.runs().await, [other.as_str()]);
    // The watch of owned objects was disconnected. Its new list contains no child of `other`.
    replica.owned.apply(&child(&other, 3));
    assert_eq!(replica.runs().await, [other.as_str()]);
    replica.owned.list(&[child(&ours, 1)]);
    assert_eq!(replica.runs().await, [other.as_str()]);
    replica.ownership.release([2]).await;
    replica.owned.apply(&child(&other, 4));
    assert_eq!(replica.runs().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_gained_shard_wait_for_its_list() {
    let (ours, other) = (name_in(1), name_in(2));
    let api = FakeApi::new(true, [map(&ours, 1), map(&other, 1)]);
    let replica = Replica::start(&api, by_uid(), QUICK);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, [ours.as_str()]);
    api.lists_take(60);
    replica.ownership.gain([2]);
    sleep(QUICK).await;
    replica.owned.apply(&owned_by::<ConfigMap, _>(secret("child"), &other));
    replica.owned.apply(&owned_by::<ConfigMap, _>(secret("another child"), &ours));
    assert_eq!(replica.runs().await, [ours.as_str()], "the shard that stays goes on");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(replica.runs().await, [other.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn changes_overtake_the_objects_of_a_gained_shard() {
    let (changed, gained) = (name_in(1), names_in(2).take(3));
    let maps: Vec<_> =
        [changed.clone()].into_iter().chain(gained).map(|name| map(&name, 1)).collect();
    let api = FakeApi::new(true, maps);
    let replica = Replica::with(&api, by_uid(), Duration::from_secs(10), Config::default());
    replica.ownership.gain([1]);
    replica.log.reaches(2).await;
    replica.ownership.gain([2]);
    replica.log.reaches(3).await;
    api.change(|maps| maps[0].metadata.resource_version = Some("2".into()));
    replica.log.reaches(10).await;
    let log = replica.log.names();
    let begins: Vec<_> = log.iter().filter_map(|entry| entry.strip_suffix(" begins")).collect();
    assert_eq!((begins.len(), begins[2]), (5, changed.as_str()), "{begins:?}");
}

/// The stream of the user cannot start again, so the controller reads the objects from the user's store.
#[tokio::test(start_paused = true)]
async fn a_stream_of_the_user_lists_a_gained_shard_from_its_store() {
    let (feed, events) = Feed::new();
    let (reader, writer) = reflector::store();
    let (watched, watched_events) = Feed::new();
    let ownership = by_uid();
    let controller = Controller::for_stream(events.reflect(writer), reader)
        .name("a stream of the user")
        .watch_mapped(Watched::stream(watched_events), |secret: Secret| {
            name(&secret).strip_prefix("for ").map(|name| ObjectRef::new(name).within("ns"))
        })
        .owning(ownership.clone());
    let log = Log::new();
    let stream = controller.run_refs(note_ref, policy::backoff, Arc::new(log.clone()));
    let _reading = Reading::of(stream);
    let runs = async || {
        a_moment().await;
        let names = sorted(log.names());
        log.clear();
        names
    };
    let (first, second) = (name_in(4), name_in(5));
    ownership.gain([4]);
    feed.list(&[map(&first, 1), map(&second, 1)]);
    watched.list(&[]);
    assert_eq!(runs().await, [first.as_str()]);
    for name in [&first, &second] {
        feed.apply(&map(name, 2));
        watched.apply(&secret(&format!("for {name}")));
    }
    assert_eq!(runs().await, [first.as_str()]);
    ownership.gain([5]);
    assert_eq!(runs().await, [second.as_str()], "the first has not changed");
    feed.apply(&map(&second, 3));
    assert_eq!(runs().await, [second.as_str()]);
    ownership.release([4]).await;
    for name in [&first, &second] {
        watched.apply(&secret(&format!("for {name}")));
        watched.delete(&secret(&format!("for {name}")));
    }
    feed.delete(&map(&first, 4));
    assert_eq!(runs().await, [second.as_str()], "not even a deletion counts");
}

/// Runs a controller that gains one shard, and then ends its stream. The watch of the other kind continues until the
/// caller drops the first value of the result. The other two values are the names of objects in shards 4 and 5.
async fn after_the_end_of(
    controller: Controller<ConfigMap>,
    feed: Feed<ConfigMap>,
    ownership: &ChangingShards,
) -> (Feed<Secret>, Reading, Log, [String; 2]) {
    let (watched, watched_events) = Feed::new();
    let controller = controller
        .watch_mapped(Watched::stream(watched_events), |_: Secret| None::<ObjectRef<ConfigMap>>)
        .owning(ownership.clone());
    let log = Log::new();
    let reading = Reading::of(controller.run(note, policy::backoff, Arc::new(log.clone())));
    let names = [name_in(4), name_in(5)];
    ownership.gain([4]);
    feed.list(&names.each_ref().map(|name| map(name, 1)));
    watched.list(&[]);
    drop(feed);
    a_moment().await;
    assert_eq!(log.names(), names[..1]);
    (watched, reading, log, names)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_ended_lists_a_gained_shard_while_another_watch_lives() {
    let (feed, events) = Feed::new();
    let (reader, writer) = reflector::store();
    let ownership = by_uid();
    let controller = Controller::for_stream(events.reflect(writer), reader);
    let controller = controller.name("a stream that has ended");
    let (watched, reading, log, names) = after_the_end_of(controller, feed, &ownership).await;
    ownership.gain([5]);
    a_moment().await;
    assert_eq!(log.names(), names);
    drop(watched);
    assert_eq!(reading.end().await.len(), 2, "the controller has ended");
}

#[tokio::test(start_paused = true)]
async fn a_shared_watch_that_has_ended_lists_a_gained_shard_after_the_release_of_all_others() {
    let (feed, events) = Feed::new();
    let shared = SharedWatch::from_stream(events, ());
    let ownership = by_uid();
    let controller = Controller::for_shared(&shared).name("a shared watch that has ended");
    let (_watched, _reading, log, names) = after_the_end_of(controller, feed, &ownership).await;
    ownership.release([4]).await;
    a_moment().await;
    ownership.gain([5]);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(log.names(), names);
}

#[tokio::test(start_paused = true)]
async fn a_function_of_the_user_assigns_objects_to_shards() {
    let rule = Rule::Function(Box::new(|key| u32::from(key.name().starts_with('b'))));
    let api = FakeApi::new(true, ["a", "b"].map(|name| map(name, 1)));
    let replica = Replica::start(&api, ChangingShards::new(2, rule), QUICK);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, ["b"]);
    assert_eq!(api.take_selectors(), [""], "the API server cannot select them");
    replica.ownership.gain([0]);
    assert_eq!(replica.runs().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_function_without_a_shard_for_an_object_ends_the_controller_with_an_error() {
    type ShardOf = fn(&ObjectKey) -> u32;
    let cases: [(ShardOf, &str); 2] = [
        (|key| panic!("no shard of {key}"), "it panicked: no shard of ns/a"),
        (|_| 2, "it returned 2, but there are 2 shards"),
    ];
    for (function, cause) in cases {
        let rule = Rule::Function(Box::new(function));
        let api = FakeApi::new(true, [map("a", 1)]);
        let replica = Replica::start(&api, ChangingShards::new(2, rule), QUICK);
        replica.ownership.gain([0, 1]);
        let items = replica.reading.end().await;
        let expected = format!(
            "runner error: the function that assigns objects to shards failed for ns/a: {cause}; it \
             must return the number of a shard for every object"
        );
        assert_eq!(items, [expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_shard_with_the_same_name_is_not_lost_with_the_former_shard() {
    let name = name_in(1);
    let api = FakeApi::new(true, [map(&name, 1)]);
    let takes = Duration::from_secs(10);
    let replica = Replica::start(&api, by_uid(), takes);
    replica.ownership.gain(0..SHARDS);
    replica.log.reaches(1).await;
    // During the run, an object in another shard gets the same name. The pending run of this object is in the group of
    // the former shard.
    let mut other = map(&name, 2);
    let uid = name_in(2);
    other.metadata.uid = Some(format!("uid of {uid}"));
    api.replace([other]);
    replica.ownership.release([7]).await;
    sleep(Duration::from_secs(1)).await;
    replica.ownership.release([1]).await;
    sleep(5 * takes).await;
    let begins = replica.log.names().iter().filter(|entry| entry.ends_with("begins")).count();
    assert_eq!(begins, 2);
}

#[tokio::test(start_paused = true)]
async fn keys_have_one_group() {
    let api = FakeApi::new(true, []);
    let config = Config::default().fair_namespaces();
    let replica = Replica::with(&api, by_uid(), QUICK, config);
    let items = replica.reading.end().await;
    assert!(items[0].contains("fair namespaces"), "{items:?}");
}

#[test]
fn one_shard_has_all_objects() {
    let one = ChangingShards::new(1, Rule::Hash(ShardBy::Namespace));
    assert_eq!(one.places().shard_of(&ObjectKey::new(Some("any"), "object")), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_gained_shard_is_listed_by_a_consistent_read() {
    let by_function = || ChangingShards::new(SHARDS, Rule::Function(Box::new(|_: &ObjectKey| 1)));
    let old = watcher::Config::default().any_semantic();
    let streaming = watcher::Config::default().streaming_lists();
    let cases = [(by_uid(), old.clone()), (by_function(), old), (by_uid(), streaming)];
    for (number, (ownership, wc)) in cases.into_iter().enumerate() {
        let api = FakeApi::new(true, [map(&name_in(1), 1)]);
        // If the page size is set, kube does not permit a list of an older version.
        let wc = watcher::Config { page_size: None, ..wc };
        let controller = Controller::new(api.maps(), wc)
            .name(format!("consistent {number}"))
            .owning(ownership.clone());
        let log = Log::new();
        let reconcile = async |map: Arc<ConfigMap>, log: Arc<Log>| {
            log.note(name(&*map));
            Ok::<_, Infallible>(Action::await_change())
        };
        let stream = controller.run(reconcile, policy::backoff, Arc::new(log.clone()));
        let _reading = Reading::of(stream);
        ownership.gain([1]);
        log.reaches(1).await;
        assert_eq!(api.stale_lists(), 0);
    }
}

#[test]
fn the_uid_of_a_former_owner_does_not_change_the_shard_of_an_object() {
    let ownership = by_uid();
    ownership.gain([1, 2]);
    let key = ObjectKey::new(Some("any"), "object");
    let uid = |shard| format!("uid of {}", name_in(shard));
    assert_eq!(ownership.learn_shard(&key, &uid(1)), Learned::Held);
    for former in [2, 3] {
        ownership.learn_owner(&key, &uid(former), &ObjectMeta::default());
        assert_eq!(ownership.places().shard_of(&key), Some(1));
    }
    let unknown = ObjectKey::new(Some("any"), "unknown");
    ownership.learn_owner(&unknown, &uid(3), &ObjectMeta::default());
    assert_eq!(ownership.places().shard_of(&unknown), None);
    ownership.learn_owner(&unknown, &uid(2), &ObjectMeta::default());
    assert_eq!(ownership.places().shard_of(&unknown), Some(2));
}
