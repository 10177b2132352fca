//! The changes of the objects of a watch, including changes while the watch was disconnected.
//!
//! kube's streams for triggers yield single objects. They do not report an object that was deleted while the watch was
//! disconnected. A [`Watch`] reads the raw [`Event`]s, and stores the last state of each object. At the end of a list,
//! it therefore finds which objects are new, changed, unchanged or deleted. It also stores which other objects each
//! object concerns. If an owned object is deleted, its owner can be reconciled.
//!
//! A `Watch` performs no I/O, reads no clock and never waits. Its input is [`Event`]s, and its output is [`Change`]s.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;

use crate::ObjectKey;

#[cfg(test)]
mod tests;

/// The priority of objects whose runs can wait. These are objects in the first list, unchanged objects in a later list,
/// and all objects that a bulk trigger reconciles.
///
/// controller-runtime has the same value.
pub const LOW_PRIORITY: i32 = -100;

/// Returns the name of a watch in messages, for example `ConfigMap.v1 (owned)`.
pub(crate) fn watch_name<O: Resource>(dyntype: &O::DynamicType, role: &str) -> String {
    let kind = O::kind(dyntype);
    let version = O::version(dyntype);
    let group = O::group(dyntype);
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}.{version}{dot}{group} ({role})")
}

/// The state of an object in one event of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    key: ObjectKey,
    seen: Seen,
}

/// The state of an object that the watch stores. There may be many objects. Values that are only compared are therefore
/// stored as hashes, as in kube's predicates.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    uid: u64,
    /// The resource version as a number, or a hash with the highest bit set if it is not a number. `None` if the object
    /// has no resource version. Such an object is never unchanged.
    resource_version: Option<NonZeroU64>,
    generation: u64,
    property: Option<NonZeroU64>,
    /// The keys of the objects that this object concerns. They are sorted and without duplicates, because a mapper may
    /// return them in any order.
    targets: Box<[ObjectKey]>,
    /// The priorities that the mapper has set. They are in a box, because they are rare, and a `None` then takes only
    /// eight bytes.
    priorities: Option<Box<Priorities>>,
}

type Priorities = BTreeMap<ObjectKey, i32>;

impl Observation {
    /// Creates the observation of the object with this metadata. The object concerns only itself.
    #[must_use]
    pub fn from_meta(meta: &ObjectMeta) -> Self {
        Self {
            key: ObjectKey::from_meta(meta),
            seen: Seen {
                uid: hash(&meta.uid),
                resource_version: meta.resource_version.as_deref().map(version_number),
                generation: hash(&meta.generation),
                property: None,
                targets: Box::default(),
                priorities: None,
            },
        }
    }

    /// Adds objects that this object concerns: its owners, or the objects that a mapper has returned for it.
    #[must_use]
    pub fn concerning(mut self, targets: impl IntoIterator<Item = ObjectKey>) -> Self {
        let mut targets: Vec<_> = self.seen.targets.into_iter().chain(targets).collect();
        targets.sort_unstable();
        targets.dedup();
        self.seen.targets = targets.into();
        self
    }

    /// Sets the priorities of runs of the objects that this object concerns.
    ///
    /// An object that is not in `priorities` has the priority of the [kind of the change](ChangeKind::priority). If an
    /// object occurs several times, it has the highest of its priorities.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::watcher::Event;
    /// use requeue_kube::ObjectKey;
    /// use requeue_kube::watch::{Observation, Watch};
    ///
    /// let (urgent, other) = (ObjectKey::new(None, "urgent"), ObjectKey::new(None, "other"));
    /// let changes = Watch::new().event(Event::Apply(ConfigMap::default()), |map| {
    ///     Observation::from_meta(&map.metadata)
    ///         .concerning([urgent.clone(), other.clone()])
    ///         .priorities([(urgent.clone(), 10)])
    /// });
    /// assert_eq!(changes[0].priority_of(&urgent), 10);
    /// assert_eq!(changes[0].priority_of(&other), 0);
    /// ```
    #[must_use]
    pub fn priorities(mut self, priorities: impl IntoIterator<Item = (ObjectKey, i32)>) -> Self {
        for (key, priority) in priorities {
            let highest =
                self.seen.priorities.get_or_insert_default().entry(key).or_insert(priority);
            *highest = priority.max(*highest);
        }
        self
    }

    /// Sets the result of a [predicate](kube::runtime::Predicate) for this object.
    ///
    /// If the object changes, but neither this result nor its targets change, the watch reports no [`Change`]. With
    /// `None`, the watch reports every change.
    #[must_use]
    pub fn property(mut self, property: Option<u64>) -> Self {
        self.seen.property = property.as_ref().map(nonzero_hash);
        self
    }
}

impl Seen {
    /// Returns true if both versions are numbers, and this one is smaller. Numbers of different objects of one resource
    /// can also be compared.
    fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.resource_version.filter(|it| it.get() & HASHED == 0);
        number(self).zip(number(other)).is_some_and(|(this, other)| this < other)
    }

    /// Removes the version, so that the next event of the object is reported as a change.
    fn without_version(mut self) -> Self {
        (self.resource_version, self.property) = (None, None);
        self
    }

    /// Returns the kind of change since `before`, or `None` if the predicate ignores the change.
    fn change_since(&self, before: &Self) -> Option<ChangeKind> {
        let concerns_the_same = self.targets == before.targets;
        let is_same_version =
            self.resource_version.is_some() && self.resource_version == before.resource_version;
        if self.uid != before.uid {
            Some(ChangeKind::Created)
        } else if self.property.is_some() && self.property == before.property && concerns_the_same {
            None
        } else if self.generation != before.generation {
            Some(ChangeKind::NewGeneration)
        } else if is_same_version && concerns_the_same {
            Some(ChangeKind::Unchanged)
        } else {
            Some(ChangeKind::Updated)
        }
    }
}

pub(crate) fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Returns a hash that is never zero, so that an `Option` of the hash takes only eight bytes.
fn nonzero_hash(of: &impl Hash) -> NonZeroU64 {
    NonZeroU64::new(hash(of)).unwrap_or(NonZeroU64::MIN)
}

const HASHED: u64 = 1 << 63;

fn version_number(text: &str) -> NonZeroU64 {
    let number = text.parse().ok().filter(|number: &NonZeroU64| number.get() & HASHED == 0);
    number.unwrap_or_else(|| nonzero_hash(&text) | HASHED)
}

/// The kind of a change that a watch reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChangeKind {
    /// The object is in the first list of the watch.
    Listed,
    /// A later list, for example after `410 Gone`, contains the object with the same uid, the same resource version and
    /// the same targets.
    Unchanged,
    /// The object or its targets have changed, but its generation is the same, or it has no generation. An object
    /// without a resource version is reported as `Updated`, never as [`Unchanged`](Self::Unchanged).
    Updated,
    /// The object has a new generation, which means that its desired state has changed.
    NewGeneration,
    /// The object is new. It may have the name of a deleted object, but it has another uid.
    Created,
    /// The object no longer exists.
    Deleted,
}

impl ChangeKind {
    /// Returns the priority of a change of this kind, which is 0 or [`LOW_PRIORITY`].
    #[must_use]
    pub const fn priority(self) -> i32 {
        match self {
            Self::Listed | Self::Unchanged => LOW_PRIORITY,
            Self::Updated | Self::NewGeneration | Self::Created | Self::Deleted => 0,
        }
    }
}

/// Writes the words that follow the kind of the object in a text, such as `created` in `Pod created`.
impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listed => "listed",
            Self::Unchanged => "seen unchanged",
            Self::Updated => "updated",
            Self::NewGeneration => "has a new generation",
            Self::Created => "created",
            Self::Deleted => "deleted",
        })
    }
}

/// A change of an object that a watch has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The key of the changed object.
    pub key: ObjectKey,
    /// The objects that the changed object concerns now, and those that it concerned before the change. They are sorted
    /// and without duplicates.
    pub targets: Vec<ObjectKey>,
    /// The kind of this change, such as a creation or a deletion.
    pub kind: ChangeKind,
    /// The priorities that the mapper returned for the last state of the object.
    priorities: Priorities,
}

impl Change {
    fn new(kind: ChangeKind, key: &ObjectKey, now: Option<&Seen>, before: Option<&Seen>) -> Self {
        let seen = now.into_iter().chain(before);
        let mut targets: Vec<_> = seen.flat_map(|seen| seen.targets.iter()).cloned().collect();
        targets.sort_unstable();
        targets.dedup();
        let latest = now.or(before).and_then(|seen| seen.priorities.as_deref());
        let priorities = latest.cloned().unwrap_or_default();
        Self { key: key.clone(), targets, kind, priorities }
    }

    /// Returns the priority of a run of `target`. It is the [priority of the target](Observation::priorities), or
    /// otherwise the priority of the [kind of this change](ChangeKind::priority).
    #[must_use]
    pub fn priority_of(&self, target: &ObjectKey) -> i32 {
        self.priorities.get(target).copied().unwrap_or(self.kind.priority())
    }
}

/// The last state of all objects of one watch. It finds the changes that an event shows.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::runtime::watcher::Event;
/// use requeue_kube::watch::{Observation, Watch, ChangeKind};
///
/// let map = |name: &str| {
///     let mut map = ConfigMap::default();
///     map.metadata.name = Some(name.into());
///     map
/// };
/// let mut watch = Watch::new();
/// let mut events = |event| watch.event(event, |map: ConfigMap| Observation::from_meta(&map.metadata));
///
/// assert!(events(Event::Init).is_empty());
/// assert!(events(Event::InitApply(map("a"))).is_empty());
/// assert_eq!(events(Event::InitDone)[0].kind, ChangeKind::Listed);
///
/// // The watch was disconnected. Its next list no longer contains `a`.
/// events(Event::Init);
/// let changes = events(Event::InitDone);
/// assert_eq!((changes[0].key.name(), changes[0].kind), ("a", ChangeKind::Deleted));
/// ```
#[derive(Clone, Default, Debug)]
pub struct Watch {
    /// True if a list was complete at least once.
    listed: bool,
    /// The last known state of each object that the watch has reported.
    seen: HashMap<ObjectKey, Seen>,
    /// The objects of the list in progress, so far.
    list: HashMap<ObjectKey, Seen>,
}

impl Watch {
    /// Creates the state of a watch that has received no event.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an event, and returns the changes that it shows.
    ///
    /// The changes of a list are returned at the end of the list. Deleted objects come first, and all other objects
    /// follow. Both parts are sorted by key. If a list is interrupted and starts again, its first part is dropped
    /// without any change.
    ///
    /// A list may be older than the stored states, if the API server answers from an old cache. The watch detects this
    /// if at least one object in the list has an older version than its stored state. It then keeps the stored objects
    /// that the list does not contain, and reports them as changed in their next event. If no object in the list has an
    /// older version, the watch cannot detect an old list, because events do not contain the version of the list.
    #[must_use = "the changes name the objects that need a run"]
    pub fn event<O>(
        &mut self,
        event: Event<O>,
        observe: impl FnOnce(O) -> Observation,
    ) -> Vec<Change> {
        let change = match event {
            Event::Init => {
                self.list.clear();
                None
            }
            Event::InitApply(object) => {
                let Observation { key, seen } = observe(object);
                self.list.insert(key, seen);
                None
            }
            Event::InitDone => return self.end_list(),
            Event::Apply(object) => self.apply_observation(observe(object)),
            Event::Delete(object) => Some(self.delete_observed(&observe(object))),
        };
        change.into_iter().collect()
    }

    /// Keeps the stored state of an object that a list contains, but that cannot be decoded.
    ///
    /// The watch then reports the object as unchanged, and not as deleted.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::watcher::Event;
    /// use requeue_kube::ObjectKey;
    /// use requeue_kube::watch::{Observation, Watch, ChangeKind};
    ///
    /// let mut watch = Watch::new();
    /// let mut events = |watch: &mut Watch, event| {
    ///     watch.event(event, |map: ConfigMap| Observation::from_meta(&map.metadata))
    /// };
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("a".into());
    /// events(&mut watch, Event::Apply(map));
    ///
    /// events(&mut watch, Event::Init);
    /// watch.keep(&ObjectKey::new(None, "a"));
    /// let changes = events(&mut watch, Event::InitDone);
    /// assert!(changes.iter().all(|change| change.kind != ChangeKind::Deleted));
    /// ```
    pub fn keep(&mut self, key: &ObjectKey) {
        if let Some((key, seen)) = self.seen.get_key_value(key) {
            self.list.insert(key.clone(), seen.clone());
        }
    }

    /// Forgets the objects for which `is_gone` returns true, without reporting their deletion. If an event shows such
    /// an object again, it is reported as new.
    pub(crate) fn forget_objects(&mut self, is_gone: impl Fn(&ObjectKey) -> bool) {
        self.seen.retain(|key, _| !is_gone(key));
    }

    fn apply_observation(&mut self, Observation { key, seen }: Observation) -> Option<Change> {
        match self.seen.entry(key) {
            Entry::Vacant(entry) => {
                let change = Change::new(ChangeKind::Created, entry.key(), Some(&seen), None);
                entry.insert(seen);
                Some(change)
            }
            Entry::Occupied(mut entry) => {
                let before = entry.insert(seen);
                let now = entry.get();
                // The key is cloned from the map, so that all copies share one text.
                Some(Change::new(now.change_since(&before)?, entry.key(), Some(now), Some(&before)))
            }
        }
    }

    fn delete_observed(&mut self, Observation { key, seen }: &Observation) -> Change {
        let before = self.seen.remove(key);
        Change::new(ChangeKind::Deleted, key, Some(seen), before.as_ref())
    }

    fn end_list(&mut self) -> Vec<Change> {
        let mut before = std::mem::replace(&mut self.seen, std::mem::take(&mut self.list));
        let is_older = |(key, now): (&_, &Seen)| {
            before.get(key).is_some_and(|before| now.is_older_than(before))
        };
        // An old list does not contain objects that were created after it. Missing objects are therefore not reported
        // as deleted.
        let missing: Vec<_> = match self.seen.iter().any(is_older) {
            true => before.extract_if(|key, _| !self.seen.contains_key(key)).collect(),
            false => Vec::new(),
        };
        let first = !std::mem::replace(&mut self.listed, true);
        let gone = before.iter().filter(|(key, _)| !self.seen.contains_key(*key));
        let gone = gone.map(|(key, seen)| Change::new(ChangeKind::Deleted, key, None, Some(seen)));
        let here = self.seen.iter().filter_map(|(key, seen)| {
            let before = before.get(key);
            let kind = match before {
                None if first => Some(ChangeKind::Listed),
                None => Some(ChangeKind::Created),
                Some(before) => seen.change_since(before),
            };
            Some(Change::new(kind?, key, Some(seen), before))
        });
        let mut changes: Vec<_> = gone.chain(here).collect();
        // Deletions come first. The sort also makes the order independent of the random order of the maps.
        changes.sort_unstable_by(|a, b| {
            let here = |change: &Change| change.kind != ChangeKind::Deleted;
            here(a).cmp(&here(b)).then_with(|| a.key.cmp(&b.key))
        });
        self.seen.extend(missing.into_iter().map(|(key, seen)| (key, seen.without_version())));
        changes
    }
}
