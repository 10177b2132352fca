//! The action that decides when an object runs again after a run.

use std::time::Duration;

use requeue::Completion;

/// The decision when an object runs again. A reconciler returns it after a success, and an error policy after a
/// failure.
///
/// This type replaces kube's [`Action`](kube::runtime::controller::Action), whose fields other crates cannot read. Its
/// [`requeue_after`](Self::requeue_after) is kube's `requeue`.
///
/// | | after a success | after a failure, from an error policy |
/// |---|---|---|
/// | [`requeue_after`](Self::requeue_after) | runs again after the delay, or earlier on a change | runs again after the delay, not earlier on a change |
/// | [`await_change`](Self::await_change) | runs again on a change | given up: runs again on a change, but not before its backoff has passed |
/// | [`backoff`](Self::backoff) | runs again with backoff, as after a failure | runs again with backoff, not earlier on a change |
/// | [`terminal`](Self::terminal) | runs again on a change | like `await_change`, and counted as terminal |
///
/// In all cases, a new generation of the object also starts a run: it [ends the
/// backoff](crate::Controller#backoff-and-new-generations).
///
/// ```
/// use requeue_kube::controller::Action;
/// use std::time::Duration;
///
/// let hourly = Action::requeue_after(Duration::from_secs(3600)).priority(-10);
/// assert_ne!(hourly, Action::requeue_after(Duration::from_secs(3600)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an action does nothing unless a reconciler or an error policy returns it"]
pub struct Action {
    /// The completion that the reconciler or the error policy asks for.
    pub(super) completion: Completion,
    pub(super) priority: Option<i32>,
}

impl Action {
    /// Runs the object again after `delay`, even if no object changes in the meantime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use requeue_kube::controller::Action;
    ///
    /// async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> {
    ///     // An external resource, which no watch reports, may have changed within an hour.
    ///     Ok(Action::requeue_after(Duration::from_secs(3600)))
    /// }
    /// # drop(reconcile);
    /// ```
    pub const fn requeue_after(delay: Duration) -> Self {
        Self::new(Completion::RequeueAfter(delay))
    }

    /// Runs the object again only when the object or a related object changes.
    pub const fn await_change() -> Self {
        Self::new(Completion::Succeed)
    }

    /// Runs the object again after the delay that the [rate
    /// limiter](crate::controller::Config::rate_limiter) returns.
    ///
    /// The delay grows with each consecutive failure. After a success, the next delay is again the first one.
    pub const fn backoff() -> Self {
        Self::new(Completion::Retry)
    }

    /// Gives the object up, because a retry would fail again.
    ///
    /// The object runs again when the object or a related object changes.
    ///
    /// The failure is counted. After a change, the object runs again when the delay of [`backoff`](Self::backoff) has
    /// passed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use requeue_kube::controller::Action;
    ///
    /// // The API server will never accept an invalid object, so a retry is useless.
    /// fn policy(_: Arc<ConfigMap>, error: &kube::Error, _: Arc<()>) -> Action {
    ///     match error {
    ///         kube::Error::Api(status) if status.code == 422 => Action::terminal(),
    ///         _ => Action::backoff(),
    ///     }
    /// }
    /// # drop(policy);
    /// ```
    pub const fn terminal() -> Self {
        Self::new(Completion::GiveUp)
    }

    /// Sets the priority of the object's next run.
    ///
    /// By default, the next run has the same priority as this run.
    ///
    /// A change of an object has priority 0. An object with a higher priority runs first.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    const fn new(completion: Completion) -> Self {
        Self { completion, priority: None }
    }
}
