//! The keys of objects in a controller's queue. A key consists of a namespace and a name.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{Lookup, ObjectRef};

/// The key of an object in a controller's queue: the object's name, and its namespace if it has one.
///
/// The key contains nothing else, so an object has the same key after each change. A clone needs no allocation. The
/// order of keys is that of Kubernetes lists: by namespace, then by name. The text form is `namespace/name` or `name`.
/// Neither part can contain a slash, because Kubernetes forbids it.
///
/// ```
/// use requeue_kube::ObjectKey;
///
/// let key = ObjectKey::new(Some("default"), "web");
/// assert_eq!((key.namespace(), key.name()), (Some("default"), "web"));
/// assert_eq!(key.to_string(), "default/web");
/// assert_eq!("default/web".parse(), Ok(key));
/// assert_eq!(ObjectKey::new(None, "node-1").namespace(), None);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

/// A kind whose objects can be in a store of kube-rs.
pub(crate) trait ObjectKind:
    Resource<DynamicType: Eq + Hash + Clone> + Clone + Send + Sync + 'static
{
}

impl<K> ObjectKind for K where
    K: Resource<DynamicType: Eq + Hash + Clone> + Clone + Send + Sync + 'static
{
}

/// The queue of a [`Controller`](crate::Controller).
///
/// The queue hashes its keys with SipHash. Users who can create objects choose the names of the objects. With a weaker
/// hash, they could choose many names with equal hashes, which would slow the queue down for all objects.
pub type ObjectQueue = requeue::Queue<ObjectKey, RandomState>;

impl ObjectKey {
    /// Creates the key of an object.
    ///
    /// An empty namespace has the same meaning as `None`.
    #[must_use]
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self(match namespace {
            Some(namespace) if !namespace.is_empty() => join_parts(namespace, name),
            _ => name.into(),
        })
    }

    /// Creates the key of `object`.
    ///
    /// # Examples
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Node;
    /// use requeue_kube::ObjectKey;
    ///
    /// let mut node = Node::default();
    /// node.metadata.name = Some("node-1".to_owned());
    /// assert_eq!(ObjectKey::from_object(&node), ObjectKey::new(None, "node-1"));
    /// ```
    #[must_use]
    pub fn from_object(object: &impl Resource) -> Self {
        Self::from_meta(object.meta())
    }

    /// Creates the key of the object with this metadata. The method is hidden, because only requeue's own crates have
    /// metadata without an object.
    #[doc(hidden)]
    #[must_use]
    pub fn from_meta(meta: &ObjectMeta) -> Self {
        // The API server gives each object a name, so the default is never used.
        Self::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
    }

    /// Returns the namespace, or `None` if the object has no namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Returns a reference to the object of kind `K` with this key. The reference contains no uid and no resource
    /// version.
    ///
    /// # Examples
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::runtime::reflector::ObjectRef;
    /// use requeue_kube::ObjectKey;
    ///
    /// let object = ObjectKey::new(Some("default"), "web").to_ref::<ConfigMap>(());
    /// assert_eq!(object, ObjectRef::new("web").within("default"));
    /// ```
    #[must_use]
    pub fn to_ref<K: Lookup>(&self, dyntype: K::DynamicType) -> ObjectRef<K> {
        let object = ObjectRef::new_with(self.name(), dyntype);
        match self.namespace() {
            Some(namespace) => object.within(namespace),
            None => object,
        }
    }
}

/// Returns the text `namespace/name`. It is allocated only once, because this function is called for each event.
fn join_parts(namespace: &str, name: &str) -> Arc<str> {
    thread_local! {
        static JOINED: RefCell<String> = const { RefCell::new(String::new()) };
    }
    // The buffer is reused by all calls on this thread, so only the `Arc` is allocated.
    JOINED.with_borrow_mut(|joined| {
        joined.clear();
        for part in [namespace, "/", name] {
            joined.push_str(part);
        }
        Arc::from(joined.as_str())
    })
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

impl FromStr for ObjectKey {
    type Err = ParseKeyError;

    /// Parses `name` or `namespace/name`, which is the format of [`Display`](fmt::Display).
    ///
    /// # Errors
    ///
    /// Returns an error if a part is empty, or if the text has more than two parts.
    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            return Err(ParseKeyError(text.to_owned()));
        }
        Ok(Self::new(namespace, name))
    }
}

/// The error for a text that is not the text form of an [`ObjectKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid object key {0:?}: expected `name` or `namespace/name`")]
pub struct ParseKeyError(String);

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;

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

    #[test]
    fn what_is_no_key_is_named() {
        for text in ["", "/", "/name", "namespace/", "a/b/c", "a//b", "//"] {
            let error = text.parse::<ObjectKey>().unwrap_err();
            let expected =
                format!("invalid object key {text:?}: expected `name` or `namespace/name`");
            assert_eq!(error.to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(
            namespace in proptest::option::of("[^/]{1,20}"),
            name in "[^/]{1,20}",
        ) {
            let key = ObjectKey::new(namespace.as_deref(), &name);
            let read: ObjectKey = key.to_string().parse().unwrap();
            prop_assert_eq!(&read, &key);
            prop_assert_eq!((read.namespace(), read.name()), (namespace.as_deref(), &*name));
        }

        /// A text is either the text form of the key that it is parsed to, or it is rejected.
        #[test]
        fn what_can_be_read_is_written_so(text in "[a/]{0,5}") {
            match text.parse::<ObjectKey>() {
                Ok(key) => prop_assert_eq!(key.to_string(), text),
                Err(_) => {
                    let parts: Vec<_> = text.split('/').collect();
                    prop_assert!(parts.len() > 2 || parts.contains(&""));
                }
            }
        }
    }
}
