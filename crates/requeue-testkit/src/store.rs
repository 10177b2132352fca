//! Stores objects, and the log of their changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

/// Identifies a stored object.
///
/// The order of keys is that of the keys in etcd. Lists return objects in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) plural: String,
    /// The name, after the namespace and a slash if the object has a namespace.
    pub(crate) place: String,
}

impl Key {
    pub(crate) fn new(group: &str, plural: &str, namespace: Option<&str>, name: &str) -> Self {
        let place = match namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Self { group: group.into(), plural: plural.into(), place }
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.place.split_once('/').map(|(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.place.rsplit('/').next().unwrap_or_default()
    }

    pub(crate) fn is_of(&self, group: &str, plural: &str, namespace: Option<&str>) -> bool {
        self.group == group
            && self.plural == plural
            && namespace.is_none_or(|namespace| self.namespace() == Some(namespace))
    }
}

/// A change of one object: its state before and after a version.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Arc<Value>>,
    pub(crate) after: Option<Arc<Value>>,
}

/// The stored objects, by key.
pub(crate) type Objects = BTreeMap<Key, Arc<Value>>;

/// The objects at the current version, and the last changes. Earlier versions are computed
/// from these changes.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    version: u64,
    objects: Objects,
    changes: VecDeque<Change>,
    /// The version before the oldest change in the log. It is the oldest version that can
    /// be computed.
    forgotten: u64,
    /// The maximum number of changes in the log.
    history: usize,
}

impl Store {
    pub(crate) fn new(history: usize) -> Self {
        Self {
            version: 1,
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            forgotten: 1,
            history,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the oldest version from which a watch can start.
    pub(crate) fn oldest(&self) -> u64 {
        self.forgotten
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// Stores an object under the next version. Returns the stored object, which contains
    /// this version.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = self.objects.insert(key.clone(), Arc::clone(&object));
        self.log(key, before, Some(Arc::clone(&object)));
        object
    }

    /// Removes an object. Returns its last state, which contains the version of the
    /// removal.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let before = self.objects.remove(key)?;
        self.version += 1;
        let last = with_version(&before, self.version);
        self.log(key.clone(), Some(before), None);
        Some(last)
    }

    fn log(&mut self, key: Key, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        self.changes.push_back(Change { version: self.version, key, before, after });
        while self.changes.len() > self.history {
            self.forgotten = self.changes.pop_front().map_or(self.forgotten, |old| old.version);
        }
    }

    /// Clears the log of changes, as a compaction of etcd does.
    pub(crate) fn compact(&mut self) {
        self.changes.clear();
        self.forgotten = self.version;
    }

    /// Returns the changes after a version, the oldest first.
    pub(crate) fn changes_after(&self, version: u64) -> impl Iterator<Item = &Change> {
        let start = self.changes.partition_point(|change| change.version <= version);
        self.changes.range(start..)
    }

    /// Returns the objects as they were at a version. Returns `None` if the log begins
    /// after the version, or the version is in the future.
    pub(crate) fn at(&self, version: u64) -> Option<Objects> {
        if version < self.forgotten || version > self.version {
            return None;
        }
        let mut objects = self.objects.clone();
        let start = self.changes.partition_point(|change| change.version <= version);
        for change in self.changes.range(start..).rev() {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Some(objects)
    }
}

/// Returns a copy of an object with another resource version.
pub(crate) fn with_version(object: &Arc<Value>, version: u64) -> Arc<Value> {
    let mut object = Value::clone(object);
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    Arc::new(object)
}
