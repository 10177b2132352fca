//! The user's reconciler, error policy and context, as one value.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use futures_util::{TryFuture, TryFutureExt};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;

use super::action::Action;
use crate::key::ObjectKind;

/// A kind whose objects a controller can reconcile.
pub(super) trait OwnKind: ObjectKind<DynamicType: Debug> + Debug {}

impl<K: ObjectKind<DynamicType: Debug> + Debug> OwnKind for K {}

/// The user's reconciler, with its error policy and its context.
pub(super) trait Reconcile<K: OwnKind>: Send + Sync + 'static {
    /// The type of the reconciler's first argument: the object, or a reference to it.
    type Target: Send;
    type Error: std::error::Error + Send + 'static;

    /// Returns true if the reconciler is also called for objects that have been deleted.
    fn runs_gone(&self) -> bool;

    /// Returns the first argument for the reconciler, or `None` if it cannot be called. `found` is the object in the
    /// store, if any.
    fn target_of(&self, object: &ObjectRef<K>, found: Option<Arc<K>>) -> Option<Self::Target>;

    /// Calls the reconciler. If it fails, calls the error policy.
    fn reconcile(
        &self,
        target: Self::Target,
    ) -> impl Future<Output = Result<Action, (Self::Error, Action)>> + Send;
}

/// The arguments of [`run`](crate::Controller::run) or [`run_refs`](crate::Controller::run_refs), as one value.
pub(super) struct Reconciler<K: Resource, T, F, P, C> {
    pub(super) to_target: fn(&ObjectRef<K>, Option<Arc<K>>) -> Option<T>,
    pub(super) runs_gone: bool,
    pub(super) reconcile: F,
    pub(super) error_policy: P,
    pub(super) context: Arc<C>,
}

impl<K, T, F, P, C, Fut> Reconcile<K> for Reconciler<K, T, F, P, C>
where
    K: OwnKind,
    T: Clone + Send + 'static,
    F: Fn(T, Arc<C>) -> Fut + Send + Sync + 'static,
    P: Fn(T, &Fut::Error, Arc<C>) -> Action + Send + Sync + 'static,
    C: Send + Sync + 'static,
    Fut: TryFuture<Ok = Action> + Send + 'static,
    Fut::Error: std::error::Error + Send + 'static,
{
    type Target = T;
    type Error = Fut::Error;

    fn runs_gone(&self) -> bool {
        self.runs_gone
    }

    fn target_of(&self, object: &ObjectRef<K>, found: Option<Arc<K>>) -> Option<T> {
        (self.to_target)(object, found)
    }

    async fn reconcile(&self, target: T) -> Result<Action, (Fut::Error, Action)> {
        // Both functions are called without a lock, because all workers call them at the same time.
        let reconciling = (self.reconcile)(target.clone(), Arc::clone(&self.context));
        TryFutureExt::into_future(reconciling).await.map_err(|error| {
            let action = (self.error_policy)(target, &error, Arc::clone(&self.context));
            (error, action)
        })
    }
}
