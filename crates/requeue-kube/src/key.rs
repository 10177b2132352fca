//! What is in a controller's queue: a namespace and a name.

use std::fmt;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{Lookup, ObjectRef};

/// The namespace, if there is one, and the name of an object: nothing else of it, so that one
/// object has one key whatever was seen of it, and by whom.
///
/// Cheap to copy, and ordered as Kubernetes lists objects: by namespace, then by name. It shows as
/// `namespace/name`; Kubernetes allows a slash in neither.
///
/// ```
/// use requeue_kube::ObjectKey;
///
/// let key = ObjectKey::new(Some("default"), "web");
/// assert_eq!((key.namespace(), key.name()), (Some("default"), "web"));
/// assert_eq!(key.to_string(), "default/web");
/// assert_eq!(ObjectKey::new(None, "node-1").namespace(), None);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// The key of an object. An empty namespace is none.
    #[must_use]
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self(match namespace {
            Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}").into(),
            _ => name.into(),
        })
    }

    /// The key of `object`.
    #[must_use]
    pub fn of(object: &impl Resource) -> Self {
        Self::of_meta(object.meta())
    }

    pub(crate) fn of_meta(meta: &ObjectMeta) -> Self {
        // What the API server sends has a name.
        Self::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
    }

    /// The namespace; none for an object of the cluster.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// The reference to the object of kind `K` that has this key, without uid and version.
    #[must_use]
    pub fn to_ref<K: Lookup>(&self, dyntype: K::DynamicType) -> ObjectRef<K> {
        let object = ObjectRef::new_with(self.name(), dyntype);
        match self.namespace() {
            Some(namespace) => object.within(namespace),
            None => object,
        }
    }
}

impl<K: Lookup> From<&ObjectRef<K>> for ObjectKey {
    fn from(object: &ObjectRef<K>) -> Self {
        Self::new(object.namespace.as_deref(), &object.name)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn a_key_is_a_reference_and_back() {
        for key in [ObjectKey::new(Some("ns"), "a"), ObjectKey::new(None, "a")] {
            let mut object = key.to_ref::<ConfigMap>(());
            object.extra.uid = Some("uid".into());
            assert_eq!(ObjectKey::from(&object), key);
        }
        assert_eq!(ObjectKey::new(Some(""), "a"), ObjectKey::new(None, "a"));
    }
}
