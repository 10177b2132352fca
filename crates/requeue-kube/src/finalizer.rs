//! kube's finalizer helper, for reconcilers that return an [`Action`].

use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::{TryFuture, TryFutureExt};
use kube::api::{Api, Resource};
use kube::runtime::controller;
pub use kube::runtime::finalizer::{Error, Event};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::controller::Action;

/// Reconciles an object that needs a cleanup before it is deleted.
///
/// This function calls [kube's function](kube::runtime::finalizer()) of the same name.
///
/// The first run of an object only adds the finalizer. The changed finalizers start the next run, unless a
/// [filter](crate::Controller::filter) ignores the change.
///
/// An API server can remove an object although its finalizer was set, if the deletion and the patch overlap (kubernetes
/// #77988). [`Event::Cleanup`] is then missing. If objects must be cleaned up in any case, also check regularly for
/// remains of deleted objects.
///
/// # Errors
///
/// Returns an error if `reconcile` or the patch of the object's finalizers failed.
///
/// # Cancel safety
///
/// As in kube, `reconcile` may be dropped at any `await`, and must be able to run again.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::Api;
/// use requeue_kube::controller::Action;
/// use requeue_kube::finalizer::{self, Event, finalizer};
///
/// async fn reconcile(
///     map: Arc<ConfigMap>,
///     api: Arc<Api<ConfigMap>>,
/// ) -> Result<Action, finalizer::Error<kube::Error>> {
///     finalizer(&api, "example.com/cleanup", map, async |event| {
///         match event {
///             Event::Apply(_map) => Ok(Action::await_change()),
///             Event::Cleanup(_map) => Ok(Action::await_change()),
///         }
///     })
///     .await
/// }
/// ```
pub async fn finalizer<K, ReconcileFut>(
    api: &Api<K>,
    finalizer_name: &str,
    obj: Arc<K>,
    reconcile: impl FnOnce(Event<K>) -> ReconcileFut,
) -> Result<Action, Error<ReconcileFut::Error>>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
    ReconcileFut: TryFuture<Ok = Action>,
    ReconcileFut::Error: StdError + 'static,
{
    // kube's action cannot be inspected, so the action of this crate does not pass through kube's
    // function.
    let mut action = Action::await_change();
    // kube calls the function at most once, so `action` is the result of that call.
    let said = &mut action;
    let reconcile = |event| {
        reconcile(event).map_ok(|action| {
            *said = action;
            controller::Action::await_change()
        })
    };
    kube::runtime::finalizer(api, finalizer_name, obj, reconcile).await?;
    Ok(action)
}
