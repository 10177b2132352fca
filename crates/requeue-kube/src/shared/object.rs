//! An object of a shared store, as an item of an event.

use std::borrow::Cow;
use std::sync::Arc;

use kube::Resource;
use kube::core::ObjectMeta;

/// An object that several controllers share.
#[derive(Debug)]
pub(crate) struct Object<K>(pub(crate) Arc<K>);

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
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        Arc::make_mut(&mut self.0).meta_mut()
    }
}
