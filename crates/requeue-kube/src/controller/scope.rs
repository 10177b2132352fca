//! The scope of a kind, which says whether the objects of the kind have namespaces.

use std::any::TypeId;
use std::sync::OnceLock;

use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use kube::{Resource, discovery};

use crate::ObjectKey;

/// The scope of a kind. The controller needs it because a namespaced object can have an owner
/// without a namespace. All objects with this owner must lead to the same key.
///
/// If the kind is known only at run time, the first object that a watch reports determines the
/// scope.
pub(crate) struct Scope(OnceLock<discovery::Scope>);

impl Scope {
    pub(crate) fn from_type<K: Resource + 'static>() -> Self {
        let scope = TypeId::of::<K::Scope>();
        if scope == TypeId::of::<ClusterResourceScope>() {
            Self::from_discovery(&discovery::Scope::Cluster)
        } else if scope == TypeId::of::<NamespaceResourceScope>() {
            Self::from_discovery(&discovery::Scope::Namespaced)
        } else {
            Self(OnceLock::new())
        }
    }

    pub(crate) fn from_discovery(scope: &discovery::Scope) -> Self {
        Self(OnceLock::from(scope.clone()))
    }

    /// Sets the scope of the kind to that of this object, unless the scope is already known.
    pub(crate) fn learn_from(&self, object: &impl Resource) {
        // The first object suffices, because all objects of a kind have the same scope.
        self.0.get_or_init(|| match object.meta().namespace {
            Some(_) => discovery::Scope::Namespaced,
            None => discovery::Scope::Cluster,
        });
    }

    /// Returns true if the scope is known, and the objects of the kind have no namespaces.
    pub(crate) fn is_cluster(&self) -> bool {
        self.0.get() == Some(&discovery::Scope::Cluster)
    }

    /// Returns the key of the object that `key` means. If the kind has no namespaces, the result
    /// has no namespace.
    pub(crate) fn normalize(&self, key: ObjectKey) -> ObjectKey {
        match key.namespace() {
            Some(_) if self.is_cluster() => ObjectKey::new(None, key.name()),
            _ => key,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Node};
    use kube::core::{ApiResource, DynamicObject};

    use super::*;

    #[test]
    fn an_object_of_the_cluster_has_one_key() {
        let scope = Scope::from_type::<Node>();
        let keys = ["a", "b"].map(|ns| scope.normalize(ObjectKey::new(Some(ns), "node")));
        assert_eq!(keys, [ObjectKey::new(None, "node"), ObjectKey::new(None, "node")]);
        let scope = Scope::from_type::<ConfigMap>();
        let key = ObjectKey::new(Some("ns"), "a");
        assert_eq!(scope.normalize(key.clone()), key);
    }

    #[test]
    fn who_knows_where_a_kind_lives_may_say_so() {
        let key = ObjectKey::new(Some("ns"), "a");
        let cluster = Scope::from_discovery(&discovery::Scope::Cluster);
        assert_eq!(cluster.normalize(key.clone()), ObjectKey::new(None, "a"));
        let namespaced = Scope::from_discovery(&discovery::Scope::Namespaced);
        assert_eq!(namespaced.normalize(key.clone()), key);
    }

    #[test]
    fn the_first_object_tells_where_its_kind_lives() {
        let key = ObjectKey::new(Some("ns"), "a");
        for (namespace, normal) in [(None, ObjectKey::new(None, "a")), (Some("ns"), key.clone())] {
            let scope = Scope::from_type::<DynamicObject>();
            assert_eq!(scope.normalize(key.clone()), key);
            let mut object = DynamicObject::new("a", &ApiResource::erase::<ConfigMap>(&()));
            object.metadata.namespace = namespace.map(str::to_owned);
            scope.learn_from(&object);
            assert_eq!(scope.normalize(key.clone()), normal);
        }
    }
}
