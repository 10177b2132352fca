//! Indexes of the objects of a shared watch.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::ObjectKey;

/// The objects of a [`SharedWatch`](super::SharedWatch) by the values of a function of them.
///
/// It is created by [`SharedWatch::by_index`](super::SharedWatch::by_index), and has the objects of the
/// watch's store. It is updated just after the store, and before the subscribers receive the event. It
/// is cheap to clone.
///
/// A look-up takes constant time, plus the time for its result. It does not wait for the watch, except
/// while an update is being written. For each object and value, the index keeps two copies of the
/// object's key, which share their text, and two of the value: about 150 bytes, and what the value
/// allocates. The objects themselves are those of the store.
pub struct Index<V, K>(Arc<RwLock<Entries<V, K>>>);

struct Entries<V, K> {
    objects: HashMap<V, BTreeMap<ObjectKey, Arc<K>>>,
    /// The values of each object that has any.
    values: HashMap<ObjectKey, Vec<V>>,
}

impl<V: Hash + Eq + Clone, K> Index<V, K> {
    pub(super) fn new() -> Self {
        Self(Arc::new(RwLock::new(Entries { objects: HashMap::new(), values: HashMap::new() })))
    }

    /// Returns the objects with this value, in the order of their keys.
    #[must_use]
    pub fn get<Q>(&self, value: &Q) -> Vec<Arc<K>>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entries = self.read();
        entries
            .objects
            .get(value)
            .map(|found| found.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Returns the keys of the objects with this value, in order.
    #[must_use]
    pub fn keys<Q>(&self, value: &Q) -> Vec<ObjectKey>
    where
        V: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entries = self.read();
        entries.objects.get(value).map(|found| found.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns the number of different values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Returns true if no object has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries<V, K>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries<V, K>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Hash + Eq + Clone, K> Entries<V, K> {
    fn insert(&mut self, key: &ObjectKey, values: Vec<V>, object: &Arc<K>) {
        for value in &values {
            let objects = self.objects.entry(value.clone()).or_default();
            objects.insert(key.clone(), Arc::clone(object));
        }
        if !values.is_empty() {
            self.values.insert(key.clone(), values);
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
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

/// The updates of an index, whose type of values is not known to the watch.
pub(super) trait Update<K>: Send {
    fn put(&mut self, key: &ObjectKey, object: &Arc<K>);
    fn remove(&mut self, key: &ObjectKey);
    /// Replaces all objects.
    fn replace(&mut self, objects: &[(ObjectKey, Arc<K>)]);
}

/// An index, and its function.
pub(super) struct Indexed<V, K, F>(pub(super) Index<V, K>, pub(super) F);

impl<V, K, F, I> Update<K> for Indexed<V, K, F>
where
    V: Hash + Eq + Clone + Send + Sync,
    K: Send + Sync,
    F: Fn(&K) -> I + Send,
    I: IntoIterator<Item = V>,
{
    fn put(&mut self, key: &ObjectKey, object: &Arc<K>) {
        // The function of the user is not called under the lock.
        let values = (self.1)(object).into_iter().collect();
        let mut entries = self.0.write();
        entries.remove(key);
        entries.insert(key, values, object);
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.0.write().remove(key);
    }

    fn replace(&mut self, objects: &[(ObjectKey, Arc<K>)]) {
        let mut fresh = Entries { objects: HashMap::new(), values: HashMap::new() };
        for (key, object) in objects {
            fresh.insert(key, (self.1)(object).into_iter().collect(), object);
        }
        *self.0.write() = fresh;
    }
}

impl<V, K> Clone for Index<V, K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<V, K> fmt::Debug for Index<V, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}
