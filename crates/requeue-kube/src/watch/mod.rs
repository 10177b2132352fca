//! What the events of a watch mean for the keys that are to be reconciled.
//!
//! kube's trigger streams pass objects on one by one, so that whatever was deleted while a watch
//! was cut off is never heard of. A [`Watch`] reads the raw [`Event`]s instead and remembers of each
//! object what it needs to tell, when a list comes, what is new, what has changed, what is as it was
//! and what is gone; and whom each of them concerns, so that the owner of something hears of its end.
//!
//! It is a plain structure: events in, [`Change`]s out. It reads no clock, and waits for nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;

use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;

use crate::ObjectKey;

#[cfg(test)]
mod tests;

/// The priority of objects that can wait: those in the first list, those that a later list shows
/// unchanged, and those that are reconciled in bulk. controller-runtime's number.
pub const LOW_PRIORITY: i32 = -100;

/// An object as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sight {
    key: ObjectKey,
    seen: Seen,
}

/// What is remembered of an object, of which there may be many: of what is only compared, a hash, as
/// kube's predicates do.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    uid: u64,
    /// `None` for an object without one. Nothing then shows that it has not changed.
    resource_version: Option<NonZeroU64>,
    generation: u64,
    property: Option<NonZeroU64>,
    /// Sorted, without duplicates: a mapper may return them in any order.
    targets: Box<[ObjectKey]>,
}

impl Sight {
    /// Of an object with this metadata, which concerns nobody but itself.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            key: ObjectKey::of_meta(meta),
            seen: Seen {
                uid: hash(&meta.uid),
                resource_version: meta.resource_version.as_ref().map(nonzero_hash),
                generation: hash(&meta.generation),
                property: None,
                targets: Box::default(),
            },
        }
    }

    /// Whom the object concerns: its owners, or what it is mapped to.
    #[must_use]
    pub fn concerning(mut self, targets: impl IntoIterator<Item = ObjectKey>) -> Self {
        let mut targets: Vec<_> = self.seen.targets.into_iter().chain(targets).collect();
        targets.sort_unstable();
        targets.dedup();
        self.seen.targets = targets.into();
        self
    }

    /// What a [predicate](kube::runtime::Predicate) makes of the object: an object that changes, but
    /// neither in this nor in whom it concerns, is no [`Change`]. With `None` every one is.
    #[must_use]
    pub fn property(mut self, property: Option<u64>) -> Self {
        self.seen.property = property.as_ref().map(nonzero_hash);
        self
    }
}

impl Seen {
    /// What has become of the object, if that is anybody's business.
    fn since(&self, before: &Self) -> Option<What> {
        let concerns_the_same = self.targets == before.targets;
        let is_same_version =
            self.resource_version.is_some() && self.resource_version == before.resource_version;
        if self.uid != before.uid {
            Some(What::Created)
        } else if self.property.is_some() && self.property == before.property && concerns_the_same {
            None
        } else if self.generation != before.generation {
            Some(What::NewGeneration)
        } else if is_same_version && concerns_the_same {
            Some(What::Unchanged)
        } else {
            Some(What::Updated)
        }
    }
}

pub(crate) fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A hash that leaves room for `None` in the same eight bytes.
fn nonzero_hash(of: &impl Hash) -> NonZeroU64 {
    NonZeroU64::new(hash(of)).unwrap_or(NonZeroU64::MIN)
}

/// What has become of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum What {
    /// It is in the first list.
    Listed,
    /// It was seen again, as in a list after `410 Gone`, with the uid and the resource version that
    /// it had, and concerns the same objects.
    Unchanged,
    /// It has changed, or concerns other objects, but has the same generation, if it has one. An
    /// object without a resource version is never [`Unchanged`](Self::Unchanged), but `Updated`.
    Updated,
    /// It has a new generation: somebody wants something else of it.
    NewGeneration,
    /// It is new, or another one (by its uid) under the name of one that is gone.
    Created,
    /// It is gone.
    Deleted,
}

impl What {
    /// The priority that such a change has: 0, or [`LOW_PRIORITY`].
    #[must_use]
    pub const fn priority(self) -> i32 {
        match self {
            Self::Listed | Self::Unchanged => LOW_PRIORITY,
            Self::Updated | Self::NewGeneration | Self::Created | Self::Deleted => 0,
        }
    }
}

/// Something that has become of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The object.
    pub key: ObjectKey,
    /// Whom it concerns, or did before: each once, in order.
    pub targets: Vec<ObjectKey>,
    /// What has become of it.
    pub what: What,
}

impl Change {
    fn new(what: What, key: &ObjectKey, now: Option<&Seen>, before: Option<&Seen>) -> Self {
        let seen = now.into_iter().chain(before);
        let mut targets: Vec<_> = seen.flat_map(|seen| seen.targets.iter()).cloned().collect();
        targets.sort_unstable();
        targets.dedup();
        Self { key: key.clone(), targets, what }
    }
}

/// What one watch has seen.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::runtime::watcher::Event;
/// use requeue_kube::watch::{Sight, Watch, What};
///
/// let map = |name: &str| {
///     let mut map = ConfigMap::default();
///     map.metadata.name = Some(name.into());
///     map
/// };
/// let mut watch = Watch::new();
/// let mut events = |event| watch.event(event, |map: ConfigMap| Sight::of(&map.metadata));
///
/// assert!(events(Event::Init).is_empty());
/// assert!(events(Event::InitApply(map("a"))).is_empty());
/// assert_eq!(events(Event::InitDone)[0].what, What::Listed);
///
/// // The watch is cut off; when it lists again, `a` is gone.
/// events(Event::Init);
/// let changes = events(Event::InitDone);
/// assert_eq!((changes[0].key.name(), changes[0].what), ("a", What::Deleted));
/// ```
#[derive(Clone, Default, Debug)]
pub struct Watch {
    /// Whether a list has been complete.
    listed: bool,
    /// What there is.
    seen: HashMap<ObjectKey, Seen>,
    /// What there is by the list that is under way.
    list: HashMap<ObjectKey, Seen>,
}

impl Watch {
    /// A watch that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the first list is complete.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        self.listed
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Takes an event, and says what has become of which objects. A list says so at its end, in the
    /// order of the keys; one that is begun anew before has said nothing.
    #[must_use = "whoever is concerned would not hear of it"]
    pub fn event<O>(&mut self, event: Event<O>, sight: impl FnOnce(O) -> Sight) -> Vec<Change> {
        let change = match event {
            Event::Init => {
                self.list.clear();
                None
            }
            Event::InitApply(object) => {
                let Sight { key, seen } = sight(object);
                self.list.insert(key, seen);
                None
            }
            Event::InitDone => return self.end_list(),
            Event::Apply(object) => self.apply(sight(object)),
            Event::Delete(object) => Some(self.delete(&sight(object))),
        };
        change.into_iter().collect()
    }

    /// The list that is under way has an object of this key that can't be read: it counts as the object
    /// that was seen before, if any, and not as gone.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::watcher::Event;
    /// use requeue_kube::ObjectKey;
    /// use requeue_kube::watch::{Sight, Watch, What};
    ///
    /// let mut watch = Watch::new();
    /// let mut events = |watch: &mut Watch, event| {
    ///     watch.event(event, |map: ConfigMap| Sight::of(&map.metadata))
    /// };
    /// let mut map = ConfigMap::default();
    /// map.metadata.name = Some("a".into());
    /// events(&mut watch, Event::Apply(map));
    ///
    /// events(&mut watch, Event::Init);
    /// watch.keep(&ObjectKey::new(None, "a"));
    /// let changes = events(&mut watch, Event::InitDone);
    /// assert!(changes.iter().all(|change| change.what != What::Deleted));
    /// ```
    pub fn keep(&mut self, key: &ObjectKey) {
        if let Some((key, seen)) = self.seen.get_key_value(key) {
            self.list.insert(key.clone(), seen.clone());
        }
    }

    fn apply(&mut self, Sight { key, seen }: Sight) -> Option<Change> {
        match self.seen.entry(key) {
            Entry::Vacant(entry) => {
                let change = Change::new(What::Created, entry.key(), Some(&seen), None);
                entry.insert(seen);
                Some(change)
            }
            Entry::Occupied(mut entry) => {
                let before = entry.insert(seen);
                let now = entry.get();
                // The key that is kept: the same text is there once.
                Some(Change::new(now.since(&before)?, entry.key(), Some(now), Some(&before)))
            }
        }
    }

    fn delete(&mut self, Sight { key, seen }: &Sight) -> Change {
        let before = self.seen.remove(key);
        Change::new(What::Deleted, key, Some(seen), before.as_ref())
    }

    fn end_list(&mut self) -> Vec<Change> {
        let before = std::mem::replace(&mut self.seen, std::mem::take(&mut self.list));
        let first = !std::mem::replace(&mut self.listed, true);
        let gone = before.iter().filter(|(key, _)| !self.seen.contains_key(*key));
        let gone = gone.map(|(key, seen)| Change::new(What::Deleted, key, None, Some(seen)));
        let here = self.seen.iter().filter_map(|(key, seen)| {
            let before = before.get(key);
            let what = match before {
                None if first => Some(What::Listed),
                None => Some(What::Created),
                Some(before) => seen.since(before),
            };
            Some(Change::new(what?, key, Some(seen), before))
        });
        let mut changes: Vec<_> = gone.chain(here).collect();
        // What is gone first: it is a change for certain. The maps' order is another each time.
        changes.sort_unstable_by(|a, b| {
            let here = |change: &Change| change.what != What::Deleted;
            here(a).cmp(&here(b)).then_with(|| a.key.cmp(&b.key))
        });
        changes
    }
}
