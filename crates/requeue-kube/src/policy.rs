//! Error policies that are ready to use, so that a program need not write one.

use std::sync::Arc;

use crate::controller::Action;

/// The error policy that retries each failed object with backoff, by [`Action::backoff`].
///
/// Pass it to [`Controller::run`](crate::Controller::run) or
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
