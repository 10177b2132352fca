//! What is in a controller's queue: a namespace and a name.

use std::cell::RefCell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;
use kube::runtime::reflector::{Lookup, ObjectRef};

/// The namespace, if there is one, and the name of an object: nothing else of it, so that one
/// object has one key whatever was seen of it, and by whom.
///
/// Cheap to copy, and ordered as Kubernetes lists objects: by namespace, then by name. It shows as
/// `namespace/name`, and is parsed from that; Kubernetes allows a slash in neither.
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

impl ObjectKey {
    /// The key of an object. An empty namespace is none.
    #[must_use]
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        Self(match namespace {
            Some(namespace) if !namespace.is_empty() => join(namespace, name),
            _ => name.into(),
        })
    }

    /// The key of `object`.
    #[must_use]
    pub fn of(object: &impl Resource) -> Self {
        Self::of_meta(object.meta())
    }

    /// The key of the object with this metadata.
    #[must_use]
    pub fn of_meta(meta: &ObjectMeta) -> Self {
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

/// `namespace/name`, in one allocation: each event makes a key.
fn join(namespace: &str, name: &str) -> Arc<str> {
    thread_local! {
        static JOINED: RefCell<String> = const { RefCell::new(String::new()) };
    }
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

    /// Reads what [`Display`](fmt::Display) writes: `name`, or `namespace/name`.
    ///
    /// # Errors
    ///
    /// A part is empty, or there are more than two.
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

/// What was read is the key of no object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseKeyError(String);

impl fmt::Display for ParseKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object is called `name` or `namespace/name`, not {:?}", self.0)
    }
}

impl std::error::Error for ParseKeyError {}

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
            let expected = format!("an object is called `name` or `namespace/name`, not {text:?}");
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

        /// And nothing else is one.
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
