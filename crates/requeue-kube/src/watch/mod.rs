//! The changes of objects that a watch has seen, also while it was disconnected.
//!
//! kube's trigger streams yield single objects, so they never report a deletion that happened while the watch was
//! disconnected. A [`Watch`] reads the raw [`Event`]s instead, and remembers the state of each object. When a new list
//! arrives, the watch reports which objects are new, changed, unchanged or deleted. The watch also remembers which
//! other objects each object concerns, so that an owner is notified when an owned object is deleted.
//!
//! A watch performs no I/O, reads no clock, and never waits. Its input is events, and its output is [`Change`]s.

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

/// The priority of objects that can wait: objects in the first list, unchanged objects in a later list, and objects
/// that are reconciled in bulk.
///
/// controller-runtime uses the same value.
pub const LOW_PRIORITY: i32 = -100;

/// Returns the name of a watch, for example `ConfigMap.v1 (owned)`.
pub(crate) fn watch_name<O: Resource>(dyntype: &O::DynamicType, role: &str) -> String {
    let kind = O::kind(dyntype);
    let version = O::version(dyntype);
    let group = O::group(dyntype);
    let dot = if group.is_empty() { "" } else { "." };
    format!("{kind}.{version}{dot}{group} ({role})")
}

/// The state of an object when it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    key: ObjectKey,
    seen: Seen,
}

/// The remembered state of an object. Values that are only compared are stored as hashes, as in
/// kube's predicates, because there can be many objects.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    uid: u64,
    /// The version as a number, or a hash with the highest bit set if the version is not a number. `None` for an object
    /// without a resource version, which never counts as unchanged.
    resource_version: Option<NonZeroU64>,
    generation: u64,
    property: Option<NonZeroU64>,
    /// The keys of the targets, sorted and without duplicates, because a mapper may return them in
    /// any order.
    targets: Box<[ObjectKey]>,
    /// The priorities of targets that have a priority. Priorities are rare, so they are boxed, and
    /// `None` needs only eight bytes.
    priorities: Option<Box<Priorities>>,
}

type Priorities = BTreeMap<ObjectKey, i32>;

impl Observation {
    /// Creates the observation of an object with this metadata, which concerns only itself.
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

    /// Adds the objects that this object concerns: its owners, or the objects that a mapper returns
    /// for it.
    #[must_use]
    pub fn concerning(mut self, targets: impl IntoIterator<Item = ObjectKey>) -> Self {
        let mut targets: Vec<_> = self.seen.targets.into_iter().chain(targets).collect();
        targets.sort_unstable();
        targets.dedup();
        self.seen.targets = targets.into();
        self
    }

    /// Sets the priorities of objects that this object concerns.
    ///
    /// All other objects have the priority of the [kind of the change](ChangeKind::priority). If an object has several
    /// priorities, the highest priority counts.
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

    /// Sets the result of a [predicate](kube::runtime::Predicate) for the object.
    ///
    /// If an object changes, but neither this result nor the objects that it concerns change, there
    /// is no [`Change`]. With `None`, every change counts.
    #[must_use]
    pub fn property(mut self, property: Option<u64>) -> Self {
        self.seen.property = property.as_ref().map(nonzero_hash);
        self
    }
}

impl Seen {
    /// Returns true if this version is older than the version of `other`. Versions of one resource are compared as
    /// integers, also between different objects.
    fn is_older_than(&self, other: &Self) -> bool {
        let number = |seen: &Self| seen.resource_version.filter(|it| it.get() & HASHED == 0);
        number(self).zip(number(other)).is_some_and(|(this, other)| this < other)
    }

    /// Forgets the version, so that the object counts as changed when it is seen again.
    fn without_version(mut self) -> Self {
        (self.resource_version, self.property) = (None, None);
        self
    }

    /// Returns the kind of change since `before`, or `None` if the change does not count.
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

/// Returns a hash that is not zero, so that an `Option` of the hash needs only eight bytes.
fn nonzero_hash(of: &impl Hash) -> NonZeroU64 {
    NonZeroU64::new(hash(of)).unwrap_or(NonZeroU64::MIN)
}

const HASHED: u64 = 1 << 63;

fn version_number(text: &str) -> NonZeroU64 {
    let number = text.parse().ok().filter(|number: &NonZeroU64| number.get() & HASHED == 0);
    number.unwrap_or_else(|| nonzero_hash(&text) | HASHED)
}

/// The kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChangeKind {
    /// The object is in the first list.
    Listed,
    /// The object was seen again, for example in a list after `410 Gone`. The object has the same uid and the same
    /// resource version, and concerns the same objects.
    Unchanged,
    /// The object has changed, or concerns other objects. Its generation, if any, is the same. An object without a
    /// resource version is never [`Unchanged`](Self::Unchanged), but `Updated`.
    Updated,
    /// The object has a new generation: its desired state has changed.
    NewGeneration,
    /// The object is new, or another object (by its uid) replaces a deleted object of the same name.
    Created,
    /// The object was deleted.
    Deleted,
}

impl ChangeKind {
    /// Returns the priority of such a change: 0, or [`LOW_PRIORITY`].
    #[must_use]
    pub const fn priority(self) -> i32 {
        match self {
            Self::Listed | Self::Unchanged => LOW_PRIORITY,
            Self::Updated | Self::NewGeneration | Self::Created | Self::Deleted => 0,
        }
    }
}

/// Writes the change as words that follow the kind of an object, as in `Pod created`.
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

/// A change of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The object.
    pub key: ObjectKey,
    /// The objects that the changed object concerns, or concerned before, sorted and without
    /// duplicates.
    pub targets: Vec<ObjectKey>,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The priorities in the latest known state.
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

    /// Returns the priority of a run of `target`: its [own priority](Observation::priorities), or the priority of the
    /// [kind](ChangeKind::priority) of this change.
    #[must_use]
    pub fn priority_of(&self, target: &ObjectKey) -> i32 {
        self.priorities.get(target).copied().unwrap_or(self.kind.priority())
    }
}

/// Remembers the objects that one watch has seen, and finds their changes.
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
/// // The watch is disconnected. When it lists again, `a` is gone.
/// events(Event::Init);
/// let changes = events(Event::InitDone);
/// assert_eq!((changes[0].key.name(), changes[0].kind), ("a", ChangeKind::Deleted));
/// ```
#[derive(Clone, Default, Debug)]
pub struct Watch {
    /// True if a list has been completed.
    listed: bool,
    /// The objects as they were last seen.
    seen: HashMap<ObjectKey, Seen>,
    /// The objects of the list in progress.
    list: HashMap<ObjectKey, Seen>,
}

impl Watch {
    /// Creates a watch that has seen no objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles an event, and returns the changes of objects.
    ///
    /// The changes of a list are returned at its end: first the deleted objects, then all other
    /// objects, both in the order of their keys. A list that is interrupted and starts again
    /// returns no changes for the interrupted part.
    ///
    /// A list may be older than the state that the watch has seen, if the API server answers from an old cache. The
    /// watch recognizes an old list by an object whose version is older than the version already seen. Objects that are
    /// missing in an old list are kept, and count as changed when they are seen again. An old list without such an
    /// object is not recognized, because the version of the list itself is not part of the events.
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

    /// Keeps the state of an object in a list that cannot be decoded.
    ///
    /// Such an object counts as unchanged if it was seen before, and not as deleted.
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

    /// Forgets the objects for which `is_gone` returns true. No deletion is reported for these
    /// objects. When they are seen again, they are new.
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
                // The key from the map is used, so that its text is stored only once.
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
        // An old list lacks the objects that were created after it, so a missing object does not count as deleted.
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
        // Deletions come first, because only they are certain. The sort also removes the random
        // order of the maps.
        changes.sort_unstable_by(|a, b| {
            let here = |change: &Change| change.kind != ChangeKind::Deleted;
            here(a).cmp(&here(b)).then_with(|| a.key.cmp(&b.key))
        });
        self.seen.extend(missing.into_iter().map(|(key, seen)| (key, seen.without_version())));
        changes
    }
}
