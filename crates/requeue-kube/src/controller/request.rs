//! Requests to reconcile an object. A request has a reference to the object, and may have a reason and a priority.

use std::fmt;

use educe::Educe;
use kube::Resource;
use kube::runtime::controller::{ReconcileReason, ReconcileRequest};
use kube::runtime::reflector::ObjectRef;

use super::reason::Reason;
use crate::ObjectKey;

/// An object to reconcile. A mapper of [`watches`](crate::Controller::watches) or the stream of
/// [`reconcile_on`](crate::Controller::reconcile_on) returns requests.
///
/// Both methods also accept kube's [`ObjectRef`] and [`ReconcileRequest`]. Only a `Request` can have a priority:
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
/// use kube::ResourceExt;
/// use kube::runtime::reflector::ObjectRef;
/// use requeue_kube::controller::Request;
///
/// // Pods of the system run before other pods.
/// let mapper = |pod: Pod| {
///     let namespace = pod.namespace().unwrap_or_default();
///     let request = Request::new(ObjectRef::<ConfigMap>::new("settings").within(&namespace));
///     Some(if namespace == "kube-system" { request.priority(10) } else { request })
/// };
/// # drop(mapper);
/// ```
#[derive(Educe)]
#[educe(Clone(bound(K::DynamicType: Clone)), Debug(bound(K::DynamicType: fmt::Debug)))]
#[must_use = "a request does nothing until it is returned by a mapper or a stream"]
pub struct Request<K: Resource> {
    object: ObjectRef<K>,
    reason: Option<String>,
    priority: Option<i32>,
}

impl<K: Resource> Request<K> {
    /// Creates a request for `object`, without a priority.
    pub const fn new(object: ObjectRef<K>) -> Self {
        Self { object, reason: None, priority: None }
    }

    /// Sets the priority of the object's run.
    ///
    /// Ready objects with higher priorities run first. Without this setting, the priority is 0 for a change of a
    /// watched object, for a trigger, and for the objects of a kind that was installed after the start. It is
    /// [low](crate::controller::LOW_PRIORITY) for objects in the first list of a watch. If several requests name an
    /// object, the object has the highest of their priorities.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Returns the key and the priority. A watch stores them for each object that it has seen.
    pub(super) fn target(&self) -> (ObjectKey, Option<i32>) {
        (ObjectKey::from(&self.object), self.priority)
    }

    /// Returns the key, the priority and the reason with which the enqueuer adds the object.
    pub(super) fn into_add(self) -> (ObjectKey, i32, Reason) {
        let (key, priority) = self.target();
        (key, priority.unwrap_or(0), self.reason.map_or(Reason::Unknown, Reason::Custom))
    }
}

impl<K: Resource> From<ObjectRef<K>> for Request<K> {
    fn from(object: ObjectRef<K>) -> Self {
        Self::new(object)
    }
}

impl<K: Resource> From<ReconcileRequest<K>> for Request<K> {
    fn from(request: ReconcileRequest<K>) -> Self {
        let reason = match request.reason {
            ReconcileReason::Custom { reason } => Some(reason),
            _ => None,
        };
        Self { object: request.obj_ref, reason, priority: None }
    }
}
