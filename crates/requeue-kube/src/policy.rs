//! Ready-made error policies.

use std::sync::Arc;

use crate::controller::Action;

/// Retries each failed object with backoff: see [`Action::backoff`].
///
/// This policy can be passed to [`Controller::run`](crate::Controller::run) and
/// [`run_refs`](crate::Controller::run_refs).
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
