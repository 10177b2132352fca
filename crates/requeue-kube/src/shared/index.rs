//! Indexes, which find the objects of a shared watch by the result of a function.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use educe::Educe;
use kube::Resource;
use parking_lot::{Mutex, RwLock};

use crate::ObjectKey;

/// An index of the objects of a [`SharedWatch`](super::SharedWatch). A function of the user returns the values of each
/// object. The index finds all objects that have a given value.
///
/// [`SharedWatch::by_index`](super::SharedWatch::by_index) creates an index of all objects in the watch's store. The
/// watch updates the store, then the index, and then notifies its subscribers of the change. A clone of the index
/// shares its content.
///
/// The time of a look-up depends only on the size of its result. A look-up waits only while a change is being written
/// to the index. For each object and value, the index has two copies of the key, which share their text, and two copies
/// of the value. This takes about 150 bytes, plus the memory that the value allocates. The objects are shared with the
/// store.
#[derive(Educe)]
#[educe(Clone(bound()), Debug(bound()))]
pub struct Index<V, K>(#[educe(Debug(ignore))] Arc<RwLock<Entries<V, K>>>);

struct Entries<V, K> {
    objects: HashMap<V, BTreeMap<ObjectKey, Arc<K>>>,
    /// The values of each object that has at least one value.
    values: HashMap<ObjectKey, Vec<V>>,
}

impl<V: Hash + Eq + Clone, K> Index<V, K> {
    pub(super) fn new() -> Self {
        Self(Arc::new(RwLock::new(Entries { objects: HashMap::new(), values: HashMap::new() })))
    }

    /// Returns the objects that have this value, sorted by key.
    #[must_use]
    pub fn get<Q>(&self, value: &Q) -> Vec<Arc<K>>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entries = self.0.read();
        entries
            .objects
            .get(value)
            .map(|found| found.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Returns the sorted keys of the objects that have this value.
    #[must_use]
    pub fn keys<Q>(&self, value: &Q) -> Vec<ObjectKey>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entries = self.0.read();
        entries.objects.get(value).map(|found| found.keys().cloned().collect()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn count_values(&self) -> usize {
        self.0.read().objects.len()
    }
}

impl<V: Hash + Eq + Clone, K> Entries<V, K> {
    fn insert_object(&mut self, key: &ObjectKey, values: Vec<V>, object: &Arc<K>) {
        for value in &values {
            let objects = self.objects.entry(value.clone()).or_default();
            objects.insert(key.clone(), Arc::clone(object));
        }
        if !values.is_empty() {
            self.values.insert(key.clone(), values);
        }
    }

    fn remove_object(&mut self, key: &ObjectKey) {
        for value in self.values.remove(key).into_iter().flatten() {
            if let Some(objects) = self.objects.get_mut(&value) {
                objects.remove(key);
                if objects.is_empty() {
                    self.objects.remove(&value);
                }
            }
        }
    }
}

/// An index that a watch updates. The trait hides the type of the index's values from the watch.
///
/// The user's function may be slow. [`prepare_object`](Self::prepare_object) calls it before the watch acquires its
/// lock. The other methods call it only for objects that were not prepared.
pub(super) trait Update<K>: Send + Sync {
    /// Computes and stores the values of an object that the watch will insert, alone or in a list.
    fn prepare_object(&self, key: &ObjectKey, object: &K);
    /// Drops computed values that no insertion has used, because another list begins.
    fn begin_list(&self);
    fn put_object(&self, key: &ObjectKey, object: &Arc<K>);
    fn remove_object(&self, key: &ObjectKey);
    /// Replaces all objects in the index by these objects.
    fn replace_objects(&self, objects: &[(ObjectKey, Arc<K>)]);
}

/// An index with the user's function that computes its values.
pub(super) struct Indexed<V, K, F> {
    index: Index<V, K>,
    reader: Mutex<Reader<V, F>>,
}

/// The user's function, and its results for objects that are not in the index yet. Each result is stored with the
/// resource version of its object.
struct Reader<V, F> {
    function: F,
    prepared: HashMap<ObjectKey, (Option<String>, Vec<V>)>,
}

impl<V, F> Reader<V, F> {
    /// Calls the user's function for an object. If the function panics, the object has no values.
    fn read_values<K, I>(&self, key: &ObjectKey, object: &K) -> Vec<V>
    where
        F: Fn(&K) -> I,
        I: IntoIterator<Item = V>,
    {
        let read = || (self.function)(object).into_iter().collect();
        catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            tracing::error!(object = %key, "the function of an index panicked");
            Vec::new()
        })
    }

    fn take_values<K, I>(&mut self, key: &ObjectKey, object: &K) -> Vec<V>
    where
        K: Resource,
        F: Fn(&K) -> I,
        I: IntoIterator<Item = V>,
    {
        match self.prepared.remove(key) {
            Some((version, values)) if version == object.meta().resource_version => values,
            _ => self.read_values(key, object),
        }
    }
}

impl<V, K, F> Indexed<V, K, F> {
    pub(super) fn new(index: Index<V, K>, function: F) -> Self {
        Self { index, reader: Mutex::new(Reader { function, prepared: HashMap::new() }) }
    }
}

impl<V, K, F, I> Update<K> for Indexed<V, K, F>
where
    V: Hash + Eq + Clone + Send + Sync,
    K: Resource + Send + Sync,
    F: Fn(&K) -> I + Send,
    I: IntoIterator<Item = V>,
{
    fn prepare_object(&self, key: &ObjectKey, object: &K) {
        let mut reader = self.reader.lock();
        let values = reader.read_values(key, object);
        reader.prepared.insert(key.clone(), (object.meta().resource_version.clone(), values));
    }

    fn begin_list(&self) {
        self.reader.lock().prepared.clear();
    }

    fn put_object(&self, key: &ObjectKey, object: &Arc<K>) {
        // The values are computed before the index is locked. Otherwise, look-ups would wait for the user's function.
        let values = self.reader.lock().take_values(key, &**object);
        let mut entries = self.index.0.write();
        entries.remove_object(key);
        entries.insert_object(key, values, object);
    }

    fn remove_object(&self, key: &ObjectKey) {
        self.index.0.write().remove_object(key);
    }

    fn replace_objects(&self, objects: &[(ObjectKey, Arc<K>)]) {
        // Look-ups see the old entries until all new entries are complete.
        let mut fresh = Entries { objects: HashMap::new(), values: HashMap::new() };
        let mut reader = self.reader.lock();
        for (key, object) in objects {
            fresh.insert_object(key, reader.take_values(key, &**object), object);
        }
        reader.prepared = HashMap::new();
        *self.index.0.write() = fresh;
    }
}
