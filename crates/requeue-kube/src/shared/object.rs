//! The type of the objects in the events of a shared watch.

use std::borrow::{Borrow, Cow};
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;

/// An object in the store of a shared watch, as an item of an event.
#[derive(Debug)]
pub(crate) struct Object<K> {
    pub(crate) object: Arc<K>,
    /// True if the object has changed several times since the last event. Only its last state is
    /// known.
    pub(crate) is_merged: bool,
}

impl<K> From<Arc<K>> for Object<K> {
    fn from(object: Arc<K>) -> Self {
        Self { object, is_merged: false }
    }
}

impl<K> Borrow<K> for Object<K> {
    fn borrow(&self) -> &K {
        &self.object
    }
}

#[expect(clippy::from_over_into, reason = "`From` for an `Arc` is not permitted")]
impl<K> Into<Arc<K>> for Object<K> {
    fn into(self) -> Arc<K> {
        self.object
    }
}

impl<K: Resource + Clone> Resource for Object<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dyntype)
    }

    fn group(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dyntype)
    }

    fn version(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dyntype)
    }

    fn plural(dyntype: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dyntype)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        Arc::make_mut(&mut self.object).meta_mut()
    }
}
