//! Tests in which subscribers read at any time. Their events and the indexes must agree with the
//! store.

use std::collections::BTreeMap;

use futures_util::stream;
use k8s_openapi::api::core::v1::ConfigMap;
use proptest::prelude::*;

use super::*;

fn map(name: u8, version: u32) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_string());
    map.metadata.uid = Some("uid".to_owned());
    map.metadata.resource_version = Some(version.to_string());
    map
}

fn version(map: &ConfigMap) -> u32 {
    map.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}

fn shared() -> SharedWatch<ConfigMap> {
    SharedWatch::from_stream(stream::pending(), ())
}

/// Reads the next events of a subscriber as texts. `+3` means that an object was put with version
/// 3, and `-3` that it was deleted. `++3` is an event that combines several changes.
fn read(shared: &SharedWatch<ConfigMap>, number: u64) -> Vec<String> {
    let events = shared.lock_fanout().take_events(number);
    let text = |event: watcher::Result<Event<Object<ConfigMap>>>| match event.unwrap() {
        Event::Init => "init".to_owned(),
        Event::InitDone => "done".to_owned(),
        Event::InitApply(object) | Event::Apply(object) => {
            let plus = if object.is_merged { "++" } else { "+" };
            format!("{plus}{}", version(&object.object))
        }
        Event::Delete(object) => format!("-{}", version(&object.object)),
    };
    events.into_iter().map(text).collect()
}

fn list(shared: &SharedWatch<ConfigMap>, objects: impl IntoIterator<Item = ConfigMap>) {
    let mut fanout = shared.lock_fanout();
    fanout.apply_event(Event::Init);
    objects.into_iter().for_each(|object| fanout.apply_event(Event::InitApply(object)));
    fanout.apply_event(Event::InitDone);
}

#[test]
fn a_slow_subscriber_reads_the_latest_state_of_each_object_once() {
    let shared = shared();
    let (fast, _) = shared.lock_fanout().add_subscriber();
    let (slow, _) = shared.lock_fanout().add_subscriber();
    assert!(read(&shared, fast).is_empty(), "nothing is listed yet");
    list(&shared, [map(0, 1)]);
    for subscriber in [fast, slow] {
        assert_eq!(read(&shared, subscriber), ["init", "+1", "done"]);
    }
    for version in 2..100 {
        shared.lock_fanout().apply_event(Event::Apply(map(0, version)));
        assert_eq!(read(&shared, fast), [format!("+{version}")]);
    }
    shared.lock_fanout().apply_event(Event::Apply(map(1, 100)));
    assert_eq!(shared.lock_fanout().subscribers[&slow].order.len(), 2);
    assert_eq!(read(&shared, slow), ["++99"]);
    assert_eq!(read(&shared, slow), ["+100"]);
    assert!(read(&shared, slow).is_empty());
}

#[test]
fn a_deletion_is_read_even_if_the_object_was_created_again() {
    let shared = shared();
    let (subscriber, _) = shared.lock_fanout().add_subscriber();
    list(&shared, [map(0, 1)]);
    read(&shared, subscriber);
    for event in [Event::Delete(map(0, 2)), Event::Apply(map(0, 3)), Event::Apply(map(0, 4))] {
        shared.lock_fanout().apply_event(event);
    }
    assert_eq!(read(&shared, subscriber), ["-2", "++4"]);
    for event in [Event::Delete(map(0, 5)), Event::Apply(map(0, 6)), Event::Delete(map(0, 7))] {
        shared.lock_fanout().apply_event(event);
    }
    assert_eq!(read(&shared, subscriber), ["-7"]);
}

#[test]
fn a_list_replaces_the_changes_that_were_not_read() {
    let shared = shared();
    let (subscriber, _) = shared.lock_fanout().add_subscriber();
    list(&shared, [map(0, 1), map(1, 1)]);
    shared.lock_fanout().apply_event(Event::Apply(map(0, 2)));
    list(&shared, [map(0, 3)]);
    assert_eq!(read(&shared, subscriber), ["init", "+3", "done"]);
    assert!(read(&shared, subscriber).is_empty());
    // A subscriber that is added later first receives the objects in the store.
    let (late, _) = shared.lock_fanout().add_subscriber();
    assert_eq!(read(&shared, late), ["init", "+3", "done"]);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    /// The watch lists its objects. Before the list, it has missed that these objects were put
    /// (true) or deleted (false).
    List(Vec<(u8, bool)>),
    Subscribe,
    Unsubscribe(usize),
    Read(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8).prop_map(Step::Put),
        4 => (0..4u8).prop_map(Step::Delete),
        1 => prop::collection::vec((0..4u8, any::<bool>()), 0..4).prop_map(Step::List),
        1 => Just(Step::Subscribe),
        1 => (0..4usize).prop_map(Step::Unsubscribe),
        6 => (0..4usize).prop_map(Step::Read),
    ]
}

/// The state of the store, as a subscriber can infer it from its events.
#[derive(Default)]
struct Replica {
    known: BTreeMap<ObjectKey, u32>,
    list: BTreeMap<ObjectKey, u32>,
}

impl Replica {
    fn apply(&mut self, event: Event<Object<ConfigMap>>) {
        match event {
            Event::Init => self.list.clear(),
            Event::InitApply(map) => {
                self.list.insert(ObjectKey::from_object(&map), version(&map.object));
            }
            Event::InitDone => self.known = std::mem::take(&mut self.list),
            Event::Apply(map) => {
                self.known.insert(ObjectKey::from_object(&map), version(&map.object));
            }
            Event::Delete(map) => {
                self.known.remove(&ObjectKey::from_object(&map));
            }
        }
    }

    /// Reads the next events. Returns false if the subscriber has read all events.
    fn read(&mut self, shared: &SharedWatch<ConfigMap>, number: u64) -> bool {
        let events = shared.lock_fanout().take_events(number);
        let is_some = !events.is_empty();
        events.into_iter().for_each(|event| self.apply(event.unwrap()));
        is_some
    }
}

proptest! {
    #[test]
    fn every_subscriber_and_every_index_ends_with_the_state_of_the_store(
        steps in prop::collection::vec(any_step(), 0..80)
    ) {
        let shared = shared();
        let by_parity = |map: &ConfigMap| Some(version(map) % 2);
        let early = shared.by_index(by_parity);
        let (mut cluster, mut now) = (BTreeMap::<u8, ConfigMap>::new(), 0);
        let mut subscribers = Vec::new();
        list(&shared, []);
        for step in steps {
            now += 1;
            match step {
                Step::Put(name) => {
                    cluster.insert(name, map(name, now));
                    shared.lock_fanout().apply_event(Event::Apply(map(name, now)));
                }
                Step::Delete(name) => {
                    if cluster.remove(&name).is_some() {
                        shared.lock_fanout().apply_event(Event::Delete(map(name, now)));
                    }
                }
                Step::List(missed) => {
                    for (name, put) in missed {
                        match put {
                            true => drop(cluster.insert(name, map(name, now))),
                            false => drop(cluster.remove(&name)),
                        }
                    }
                    list(&shared, cluster.values().cloned());
                }
                Step::Subscribe => {
                    let (number, _) = shared.lock_fanout().add_subscriber();
                    subscribers.push((number, Replica::default()));
                }
                Step::Unsubscribe(number) => if number < subscribers.len() {
                    let (number, _) = subscribers.swap_remove(number);
                    shared.lock_fanout().subscribers.remove(&number);
                }
                Step::Read(number) => if let Some((number, replica)) = subscribers.get_mut(number) {
                    replica.read(&shared, *number);
                }
            }
        }
        let late = shared.by_index(by_parity);
        let truth: BTreeMap<_, _> =
            cluster.values().map(|map| (ObjectKey::from_object(map), version(map))).collect();
        for (number, mut replica) in subscribers {
            while replica.read(&shared, number) {}
            prop_assert_eq!(&replica.known, &truth);
        }
        for index in [early, late] {
            let found = [0, 1].map(|parity| index.get(&parity));
            for (parity, maps) in found.iter().enumerate() {
                let keys: Vec<_> = maps.iter().map(|map| ObjectKey::from_object(&**map)).collect();
                prop_assert_eq!(index.keys(&(parity as u32)), keys);
                prop_assert!(maps.iter().all(|map| version(map) as usize % 2 == parity));
            }
            let found: BTreeMap<_, _> =
                found.iter().flatten().map(|map| (ObjectKey::from_object(&**map), version(map))).collect();
            prop_assert_eq!(&found, &truth);
            let parities = truth.values().map(|version| version % 2);
            prop_assert_eq!(index.count_values(), parities.collect::<std::collections::BTreeSet<_>>().len());
        }
    }
}
