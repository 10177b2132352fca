//! What comes next for an object.

use std::time::Duration;

/// What comes next for an object: said by a reconciler that has succeeded, or by an error policy.
///
/// kube's [`Action`](kube::runtime::controller::Action) can be made but not looked into, so this is
/// one of ours, with its constructors and two more.
///
/// | | after a success | after a failure, from an error policy |
/// |---|---|---|
/// | [`requeue`](Self::requeue) | again after that time; a change comes first | again after that time, and not before, whatever changes |
/// | [`await_change`](Self::await_change) | when something changes | given up: when something changes, but no sooner than with backoff |
/// | [`backoff`](Self::backoff) | again with backoff, as if it had failed | again with backoff, and not before, whatever changes |
/// | [`terminal`](Self::terminal) | when something changes | given up likewise; counted as terminal |
///
/// What [ends a wait](crate::Controller#what-ends-a-wait) besides is a new generation of the object.
///
/// ```
/// use requeue_kube::controller::Action;
/// use std::time::Duration;
///
/// let hourly = Action::requeue(Duration::from_secs(3600)).priority(-10);
/// assert_ne!(hourly, Action::requeue(Duration::from_secs(3600)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an action does nothing unless a reconciler or an error policy returns it"]
pub struct Action {
    pub(super) then: Then,
    pub(super) priority: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    After(Duration),
    Change,
    Backoff,
    Terminal,
}

impl Action {
    /// Again after `delay`, even if nothing changes.
    pub const fn requeue(delay: Duration) -> Self {
        Self::new(Then::After(delay))
    }

    /// Nothing, until something changes.
    pub const fn await_change() -> Self {
        Self::new(Then::Change)
    }

    /// Again after the delay that the [rate limiter](crate::controller::Config::rate_limiter) gives
    /// this object: longer with each failure in a row, and from the beginning after a success.
    pub const fn backoff() -> Self {
        Self::new(Then::Backoff)
    }

    /// Nothing, until something changes: what has failed will do so again. The failure counts: what
    /// changes comes after the delay that [`backoff`](Self::backoff) would have had, at the earliest.
    pub const fn terminal() -> Self {
        Self::new(Then::Terminal)
    }

    /// The priority with which the object comes back; the one it was taken with unless said.
    /// Changes have 0, and higher ones go first.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority: Some(priority), ..self }
    }

    const fn new(then: Then) -> Self {
        Self { then, priority: None }
    }
}
