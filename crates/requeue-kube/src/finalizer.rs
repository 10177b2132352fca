//! A replacement of kube's finalizer function, for reconcilers that return this crate's [`Action`].

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

/// Reconciles an object, or cleans up after it before it is deleted.
///
/// The function calls [kube's function](kube::runtime::finalizer()) of the same name.
///
/// The first run of an object only adds the finalizer. This change of the object starts the next run, unless the
/// controller's [filter](crate::Controller::filter) ignores it.
///
/// An API server may remove an object although its finalizer was just added, if the delete request and the patch
/// overlap (kubernetes #77988). In this case, the reconciler never receives [`Event::Cleanup`] for the object. If every
/// object must be cleaned up, also search regularly for the remains of deleted objects.
///
/// # Errors
///
/// Returns an error if `reconcile` failed, or if the patch of the object's finalizers failed.
///
/// # Cancel safety
///
/// If the future is dropped, `reconcile` is dropped at an `await`, as in kube. It must be able to run again.
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
    // kube's function passes on only kube's action type, whose fields cannot be read. This crate's action therefore
    // goes through a variable.
    let mut action = Action::await_change();
    // kube's function calls the closure at most once, so `action` is the result of that call.
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
