//! Error policies, ready-made.

use std::sync::Arc;

use crate::controller::Action;

/// Every failure is tried again with backoff: see [`Action::backoff`].
///
/// For [`Controller::run`](crate::Controller::run) and
/// [`run_refs`](crate::Controller::run_refs) alike.
///
/// ```
/// use requeue_kube::controller::Action;
/// use requeue_kube::policy;
/// use std::sync::Arc;
///
/// assert_eq!(policy::backoff("object", &"error", Arc::new(())), Action::backoff());
/// ```
pub fn backoff<T, E, Ctx>(_: T, _: &E, _: Arc<Ctx>) -> Action {
    Action::backoff()
}
