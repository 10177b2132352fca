//! Tests that compare a watch with a simple model, and with a cluster that changes while the watch
//! is disconnected.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use proptest::prelude::*;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(Some("ns"), name)
}

fn observation(name: &str, uid: u8, version: u32) -> Observation {
    Observation::from_meta(&meta(name, uid, version))
}

fn meta(name: &str, uid: u8, version: u32) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("ns".into()),
        name: Some(name.into()),
        uid: Some(uid.to_string()),
        resource_version: Some(version.to_string()),
        ..ObjectMeta::default()
    }
}

/// Applies events whose objects are observations. Returns the key and the kind of each change.
fn feed(
    watch: &mut Watch,
    events: impl IntoIterator<Item = Event<Observation>>,
) -> Vec<(String, ChangeKind)> {
    let changes =
        events.into_iter().flat_map(|event| watch.event(event, |observation| observation));
    changes.map(|change| (change.key.name().to_owned(), change.kind)).collect()
}

fn list(observations: impl IntoIterator<Item = Observation>) -> Vec<Event<Observation>> {
    let observations = observations.into_iter().map(Event::InitApply);
    [Event::Init].into_iter().chain(observations).chain([Event::InitDone]).collect()
}

fn unversioned(name: &str) -> Observation {
    Observation::from_meta(&ObjectMeta { resource_version: None, ..meta(name, 1, 1) })
}

fn became(changes: &[(&str, ChangeKind)]) -> Vec<(String, ChangeKind)> {
    changes.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect()
}

#[test]
fn the_first_list_is_of_low_priority() {
    let mut watch = Watch::new();
    assert!(!watch.listed);
    let changes = feed(&mut watch, list([observation("b", 1, 1), observation("a", 1, 2)]));
    assert_eq!(changes, became(&[("a", ChangeKind::Listed), ("b", ChangeKind::Listed)]));
    assert_eq!(ChangeKind::Listed.priority(), LOW_PRIORITY);
    assert!(watch.listed);
}

#[test]
fn nothing_is_said_before_a_list_is_complete() {
    let mut watch = Watch::new();
    assert_eq!(feed(&mut watch, [Event::Init, Event::InitApply(observation("a", 1, 1))]), []);
    // The list was interrupted. It starts again, and no longer contains `a`.
    assert_eq!(
        feed(&mut watch, list([observation("b", 1, 1)])),
        became(&[("b", ChangeKind::Listed)])
    );
}

#[test]
fn a_later_list_tells_what_is_gone_new_changed_and_as_it_was() {
    let mut watch = Watch::new();
    let first = ["gone", "same", "changed", "another"].map(|name| observation(name, 1, 1));
    feed(&mut watch, list(first));
    let second =
        [observation("another", 2, 9), observation("changed", 1, 2), observation("new", 3, 8)];
    let changes = feed(&mut watch, list(second.into_iter().chain([observation("same", 1, 1)])));
    let expected = [
        ("gone", ChangeKind::Deleted),
        ("another", ChangeKind::Created),
        ("changed", ChangeKind::Updated),
        ("new", ChangeKind::Created),
        ("same", ChangeKind::Unchanged),
    ];
    assert_eq!(changes, became(&expected));
    let low: Vec<_> = expected.iter().filter(|(_, kind)| kind.priority() < 0).collect();
    assert_eq!(low, [&("same", ChangeKind::Unchanged)]);
}

#[test]
fn a_list_that_is_older_than_what_was_seen_deletes_nothing() {
    let mut watch = Watch::new();
    feed(&mut watch, list([observation("a", 1, 1), observation("gone", 1, 2)]));
    feed(
        &mut watch,
        [Event::Apply(observation("new", 1, 3)), Event::Apply(observation("a", 1, 4))],
    );
    // The list is older than the creation of `new`, so it does not contain `new`.
    let changes = feed(&mut watch, list([observation("a", 1, 1), observation("gone", 1, 2)]));
    let seen = [("a", ChangeKind::Updated), ("gone", ChangeKind::Unchanged)];
    assert_eq!((changes, watch.seen.len()), (became(&seen), 3));
    // In the meantime, a store does not contain the object. It must therefore be reported as
    // changed when an event shows it again.
    let changes = feed(&mut watch, [Event::Apply(observation("new", 1, 3))]);
    assert_eq!(changes, became(&[("new", ChangeKind::Updated)]));
    let changes = feed(&mut watch, list([observation("a", 1, 4), observation("new", 1, 3)]));
    let seen =
        [("gone", ChangeKind::Deleted), ("a", ChangeKind::Updated), ("new", ChangeKind::Unchanged)];
    assert_eq!(changes, became(&seen));
}

#[test]
fn versions_that_are_no_numbers_show_no_order() {
    let at = |version: &str| {
        Observation::from_meta(&ObjectMeta {
            resource_version: Some(version.into()),
            ..meta("a", 1, 0)
        })
    };
    for (first, second) in [("b", "a"), ("18446744073709551615", "1"), ("0", "1"), ("1", "0")] {
        let mut watch = Watch::new();
        feed(&mut watch, list([at(first), observation("gone", 1, 5)]));
        let changes = feed(&mut watch, list([at(second)]));
        let seen = [("gone", ChangeKind::Deleted), ("a", ChangeKind::Updated)];
        assert_eq!(changes, became(&seen), "{first}, {second}");
    }
}

#[test]
fn an_object_is_unchanged_only_if_nothing_of_it_is_known_to_differ() {
    let cases = [
        (observation("a", 1, 1), observation("a", 1, 1), ChangeKind::Unchanged),
        (observation("a", 1, 1), observation("a", 1, 2), ChangeKind::Updated),
        // The object was deleted and created again with the same version. This is possible if etcd
        // was restored from a backup.
        (observation("a", 1, 1), observation("a", 2, 1), ChangeKind::Created),
        (unversioned("a"), unversioned("a"), ChangeKind::Updated),
        (observation("a", 1, 1), unversioned("a"), ChangeKind::Updated),
        (
            observation("a", 1, 1),
            observation("a", 1, 1).concerning([key("x")]),
            ChangeKind::Updated,
        ),
        (
            observation("a", 1, 1).concerning([key("x")]),
            observation("a", 1, 1),
            ChangeKind::Updated,
        ),
        // A mapper may return the same keys in another order, and one key several times.
        (
            observation("a", 1, 1).concerning(["x", "y"].map(key)),
            observation("a", 1, 1).concerning(["y", "x", "y"].map(key)),
            ChangeKind::Unchanged,
        ),
    ];
    for (before, after, kind) in cases {
        for relists in [false, true] {
            let mut watch = Watch::new();
            feed(&mut watch, list([before.clone()]));
            let again = match relists {
                false => vec![Event::Apply(after.clone())],
                true => list([after.clone()]),
            };
            assert_eq!(feed(&mut watch, again), became(&[("a", kind)]), "{before:?}, {after:?}");
        }
    }
}

#[test]
fn the_owners_of_what_went_unseen_hear_of_it() {
    let mut watch = Watch::new();
    let owned = observation("a", 1, 1).concerning([key("y"), key("x")]);
    feed(&mut watch, list([owned]));
    let mut changes = watch.event(Event::Init, |observation: Observation| observation);
    changes.extend(watch.event(Event::InitDone, |observation: Observation| observation));
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].kind, &changes[0].targets),
        (ChangeKind::Deleted, &vec![key("x"), key("y")])
    );
}

#[test]
fn who_is_no_longer_concerned_hears_of_it() {
    let mut watch = Watch::new();
    feed(&mut watch, list([observation("a", 1, 1).concerning([key("old"), key("both")])]));
    let moved = observation("a", 1, 2).concerning([key("both"), key("new")]);
    let changes = watch.event(Event::Apply(moved), |observation| observation);
    assert_eq!(changes[0].targets, [key("both"), key("new"), key("old")]);
}

#[test]
fn a_target_keeps_its_priority_until_the_object_is_gone() {
    let mut watch = Watch::new();
    let at = |version| {
        let concerned = observation("a", 1, version).concerning(["x", "y"].map(key));
        concerned.priorities([(key("x"), 5), (key("x"), 7), (key("x"), 6)])
    };
    let changes = |watch: &mut Watch, events: Vec<Event<Observation>>| {
        let changes =
            events.into_iter().flat_map(|event| watch.event(event, |observation| observation));
        changes
            .map(|change| (change.priority_of(&key("x")), change.priority_of(&key("y"))))
            .collect::<Vec<_>>()
    };
    assert_eq!(changes(&mut watch, list([at(1)])), [(7, LOW_PRIORITY)]);
    assert_eq!(changes(&mut watch, vec![Event::Apply(at(2))]), [(7, 0)]);
    // The object was deleted while the watch was disconnected.
    assert_eq!(changes(&mut watch, list([])), [(7, 0)]);
    // The priorities are those of the latest state of the object.
    assert_eq!(changes(&mut watch, list([at(3)])), [(7, 0)]);
    assert_eq!(changes(&mut watch, vec![Event::Apply(observation("a", 1, 4))]), [(0, 0)]);
}

#[test]
fn a_new_generation_is_told_from_other_changes() {
    let at = |version, generation| {
        Observation::from_meta(&ObjectMeta {
            generation: Some(generation),
            ..meta("a", 1, version)
        })
    };
    let mut watch = Watch::new();
    feed(&mut watch, list([at(1, 1)]));
    let changes = feed(&mut watch, [Event::Apply(at(2, 1)), Event::Apply(at(3, 2))]);
    assert_eq!(changes, became(&[("a", ChangeKind::Updated), ("a", ChangeKind::NewGeneration)]));
}

#[test]
fn a_change_of_something_else_is_none() {
    let at = |version, property| observation("a", 1, version).property(property);
    let mut watch = Watch::new();
    feed(&mut watch, list([at(1, Some(7))]));
    assert_eq!(feed(&mut watch, [Event::Apply(at(2, Some(7)))]), []);
    assert_eq!(feed(&mut watch, list([at(3, Some(7))])), []);
    let changes = feed(&mut watch, [Event::Apply(at(4, Some(8))), Event::Apply(at(5, None))]);
    assert_eq!(changes, became(&[("a", ChangeKind::Updated), ("a", ChangeKind::Updated)]));
    // The watch reports a change whenever the result of the predicate differs, also between `None`
    // and `Some`.
    let changes = feed(&mut watch, [Event::Apply(at(5, Some(0))), Event::Apply(at(5, Some(1)))]);
    assert_eq!(changes, became(&[("a", ChangeKind::Unchanged), ("a", ChangeKind::Unchanged)]));
    feed(&mut watch, [Event::Apply(at(5, Some(8)))]);
    // If the object concerns another object, the watch reports a change, even if the result of the
    // predicate is the same.
    let moved = at(6, Some(8)).concerning([key("owner")]);
    feed(&mut watch, [Event::Apply(at(6, Some(8)))]);
    assert_eq!(feed(&mut watch, [Event::Apply(moved)]), became(&[("a", ChangeKind::Updated)]));
    // The watch always reports another object under the same name, and its deletion, even if the
    // result of the predicate is the same.
    feed(&mut watch, [Event::Apply(at(6, Some(8)))]);
    let another = observation("a", 2, 7).property(Some(8));
    let changes = feed(&mut watch, [Event::Apply(another.clone()), Event::Delete(another)]);
    assert_eq!(changes, became(&[("a", ChangeKind::Created), ("a", ChangeKind::Deleted)]));
}

#[test]
fn the_metadata_of_an_object_is_what_is_remembered() {
    let mut object = ConfigMap::default();
    object.metadata.name = Some("a".into());
    object.metadata.generation = Some(3);
    let observation = Observation::from_meta(&object.metadata);
    assert_eq!(
        (observation.key, observation.seen.generation),
        (ObjectKey::new(None, "a"), hash(&Some(3_i64)))
    );
}

/// The model: a list of all observations of each object. It is searched from the beginning each
/// time.
#[derive(Default)]
struct Model {
    seen: Vec<Observation>,
    list: Vec<Observation>,
    listed: bool,
}

impl Model {
    fn event(&mut self, event: Event<Observation>) -> Vec<Change> {
        let mut changes = Vec::new();
        match event {
            Event::Init => self.list.clear(),
            Event::InitApply(observation) => self.list.push(observation),
            Event::Apply(observation) => {
                self.change(&mut changes, Some(&observation), false);
                self.seen.push(observation);
            }
            Event::Delete(observation) => {
                self.gone(&mut changes, &observation.key, Some(&observation));
                self.seen.retain(|seen| seen.key != observation.key);
            }
            Event::InitDone => {
                let now = |key: &ObjectKey| {
                    self.list.iter().rev().find(|observation| observation.key == *key)
                };
                let keys =
                    |of: &[Observation]| of.iter().map(|s| s.key.clone()).collect::<BTreeSet<_>>();
                // A generated version is a number with one digit. 0 stands for an object without a
                // version.
                let number = |observation: &Observation| {
                    observation.seen.resource_version.map(|it| it.get()).filter(|it| *it < 10)
                };
                let is_old = keys(&self.list).iter().any(|key| {
                    let versions = now(key).and_then(number).zip(self.last(key).and_then(number));
                    versions.is_some_and(|(now, before)| now < before)
                });
                let mut kept = Vec::new();
                for key in keys(&self.seen).difference(&keys(&self.list)) {
                    if is_old {
                        kept.extend(self.last(key).cloned().map(|mut observation| {
                            (observation.seen.resource_version, observation.seen.property) =
                                (None, None);
                            observation
                        }));
                    } else {
                        self.gone(&mut changes, key, None);
                    }
                }
                for key in keys(&self.list) {
                    self.change(&mut changes, now(&key), !self.listed);
                }
                self.seen = std::mem::take(&mut self.list);
                self.seen.extend(kept);
                self.listed = true;
            }
        }
        changes
    }

    fn last(&self, key: &ObjectKey) -> Option<&Observation> {
        self.seen.iter().rev().find(|observation| observation.key == *key)
    }

    fn change(&self, changes: &mut Vec<Change>, now: Option<&Observation>, first: bool) {
        let Some(now) = now else { return };
        let before = self.last(&now.key);
        let kind = match before {
            None => [ChangeKind::Created, ChangeKind::Listed][usize::from(first)],
            Some(before) if before.seen.uid != now.seen.uid => ChangeKind::Created,
            Some(before)
                if now.seen.property.is_some()
                    && before.seen.property == now.seen.property
                    && before.seen.targets == now.seen.targets =>
            {
                return;
            }
            Some(before) if before.seen.generation != now.seen.generation => {
                ChangeKind::NewGeneration
            }
            Some(before)
                if now.seen.resource_version.is_some()
                    && before.seen.resource_version == now.seen.resource_version
                    && before.seen.targets == now.seen.targets =>
            {
                ChangeKind::Unchanged
            }
            Some(_) => ChangeKind::Updated,
        };
        self.push(changes, kind, &now.key, before.into_iter().chain([now]));
    }

    fn gone(&self, changes: &mut Vec<Change>, key: &ObjectKey, last: Option<&Observation>) {
        self.push(changes, ChangeKind::Deleted, key, self.last(key).into_iter().chain(last));
    }

    fn push<'a>(
        &self,
        changes: &mut Vec<Change>,
        kind: ChangeKind,
        key: &ObjectKey,
        observations: impl Iterator<Item = &'a Observation>,
    ) {
        let targets: BTreeSet<_> =
            observations.flat_map(|observation| observation.seen.targets.clone()).collect();
        let (targets, priorities) = (targets.into_iter().collect(), BTreeMap::new());
        changes.push(Change { key: key.clone(), targets, kind, priorities });
    }
}

fn any_sight() -> impl Strategy<Value = Observation> {
    let targets = prop::collection::vec(0..3u8, 0..3);
    let version = prop::option::weighted(0.9, 0..3u32);
    (0..4u8, 0..2u8, version, prop::option::of(0..2i64), prop::option::of(0..2u64), targets)
        .prop_map(|(name, uid, version, generation, property, targets)| {
            let resource_version = version.map(|version| version.to_string());
            let meta = meta(&name.to_string(), uid, 0);
            let meta = ObjectMeta { generation, resource_version, ..meta };
            let targets = targets.iter().map(|target| key(&target.to_string()));
            Observation::from_meta(&meta).property(property).concerning(targets)
        })
}

fn any_event() -> impl Strategy<Value = Event<Observation>> {
    prop_oneof![
        1 => Just(Event::Init),
        3 => any_sight().prop_map(Event::InitApply),
        2 => Just(Event::InitDone),
        3 => any_sight().prop_map(Event::Apply),
        2 => any_sight().prop_map(Event::Delete),
    ]
}

/// A step of a test: a change of the cluster, or an event of its watch.
#[derive(Clone, Debug)]
enum Step {
    /// An object is created or changed. It then concerns these objects.
    Put(u8, Vec<u8>),
    Remove(u8),
    /// The watch is disconnected. It receives no events until it lists again.
    Cut,
    /// The watch lists its objects. If there are more objects than this number, the list is
    /// interrupted after this number, and starts again.
    List(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4u8, prop::collection::vec(0..3u8, 0..3)).prop_map(|(n, to)| Step::Put(n, to)),
        3 => (0..4u8).prop_map(Step::Remove),
        1 => Just(Step::Cut),
        2 => (0..6usize).prop_map(Step::List),
    ]
}

proptest! {
    #[test]
    fn a_watch_says_what_a_plain_model_of_it_says(
        events in prop::collection::vec(any_event(), 0..60)
    ) {
        let (mut watch, mut model) = (Watch::new(), Model::default());
        for event in events {
            prop_assert_eq!(watch.event(event.clone(), |observation| observation), model.event(event));
            prop_assert_eq!(watch.listed, model.listed);
            let keys: BTreeSet<_> = model.seen.iter().map(|observation| &observation.key).collect();
            prop_assert_eq!(watch.seen.len(), keys.len());
        }
    }

    /// At each notification, a target stores the versions of the objects that concern it. After
    /// each event without an interruption, the stored versions must be the current ones.
    #[test]
    fn whoever_is_concerned_hears_of_it_whatever_was_missed(
        steps in prop::collection::vec(any_step(), 0..60)
    ) {
        let mut cluster = BTreeMap::<u8, Observation>::new();
        let mut known = BTreeMap::<ObjectKey, Vec<Observation>>::new();
        let mut watch = Watch::new();
        let (mut version, mut connected) = (0, false);
        for step in steps {
            version += 1;
            let mut events = Vec::new();
            match step {
                Step::Put(name, targets) => {
                    let targets = targets.iter().map(|target| key(&target.to_string()));
                    let put = observation(&name.to_string(), 0, version).concerning(targets);
                    cluster.insert(name, put.clone());
                    events.push(Event::Apply(put));
                }
                Step::Remove(name) => events.extend(cluster.remove(&name).map(Event::Delete)),
                Step::Cut => connected = false,
                Step::List(breaks_off) => {
                    events = list(cluster.values().cloned());
                    connected = breaks_off + 2 >= events.len();
                    events.truncate(if connected { usize::MAX } else { breaks_off + 1 });
                    for event in events.drain(..) {
                        let changes = watch.event(event, |observation| observation);
                        hear(&mut known, &cluster, changes);
                    }
                }
            }
            for event in events.into_iter().filter(|_| connected) {
                let changes = watch.event(event, |observation| observation);
                hear(&mut known, &cluster, changes);
            }
            if connected {
                for target in 0..3u8 {
                    let target = key(&target.to_string());
                    let truth = concerning(&cluster, &target);
                    prop_assert_eq!(known.get(&target).cloned().unwrap_or_default(), truth);
                }
            }
        }
    }
}

fn concerning(cluster: &BTreeMap<u8, Observation>, target: &ObjectKey) -> Vec<Observation> {
    cluster
        .values()
        .filter(|observation| observation.seen.targets.contains(target))
        .cloned()
        .collect()
}

fn hear(
    known: &mut BTreeMap<ObjectKey, Vec<Observation>>,
    cluster: &BTreeMap<u8, Observation>,
    changes: Vec<Change>,
) {
    for target in changes.into_iter().flat_map(|change| change.targets) {
        known.insert(target.clone(), concerning(cluster, &target));
    }
}
