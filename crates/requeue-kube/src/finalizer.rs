//! kube's finalizer helper, for reconcilers that say [`Action`].

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

/// Reconciles an object that has to be cleaned up before it may be gone:
/// [kube's](kube::runtime::finalizer()), which is called for all of it.
///
/// Where it does no more than add the finalizer, the change that this is brings the object back,
/// unless a [filter](crate::Controller::filter) leaves it out.
///
/// # Errors
///
/// What `reconcile` fails with, or a patch of the object's finalizers.
///
/// # Cancel safety
///
/// As in kube: `reconcile` may be cut off at any `await`, and has to be able to run again.
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
    // kube's own action can't be looked into, so ours goes past it.
    let mut action = Action::await_change();
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
