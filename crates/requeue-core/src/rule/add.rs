//! The rules of an add: the backoff gate, and the re-add policies.

use super::KeyState;
use crate::types::{Add, Phase, ReaddPolicy, Time};

/// The run that an add asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish<T> {
    /// The due time, or `None` for now.
    pub due: Option<T>,
    /// The latest due time of a run that begins to wait with this add, if the add is debounced.
    pub bound: Option<T>,
    /// True if the add reports a failure.
    pub is_failure: bool,
}

impl Wish<Time> {
    /// Returns the request of `add` at `now`.
    #[inline]
    pub(crate) fn of_add(add: &Add, now: Time) -> Self {
        Self { due: add.due(now), bound: add.bound(now), is_failure: add.failed }
    }
}

/// The time at which the run that an add asks for may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permit<T> {
    /// The due time, or `None` for now.
    pub due: Option<T>,
    /// True if a backoff makes the run later than the time that the add asks for.
    pub is_held: bool,
    /// The end of the backoff that the add begins, if it reports a failure.
    pub backoff: Option<T>,
}

/// Returns the earliest start of the run that an add asks for.
///
/// | the key | [`ReaddPolicy::Hold`] | [`ReaddPolicy::Replace`], [`ReaddPolicy::KeepBoth`] |
/// |---|---|---|
/// | is ready | when the add asks | when the add asks |
/// | is in another phase | not before the backoff is over | when the add asks |
///
/// A debounced add asks for a time no later than the bound of the pending run.
#[inline]
pub fn permit<S: KeyState>(
    key: &S,
    policy: ReaddPolicy,
    wish: Wish<S::Time>,
    now: S::Time,
) -> Permit<S::Time> {
    let due = match (wish.due, wish.bound) {
        (Some(due), Some(_)) => Some(key.wait().map_or(due, |wait| due.min(wait.latest()))),
        (due, _) => due,
    };
    if policy != ReaddPolicy::Hold || key.phase() == Phase::Ready {
        return Permit { due, is_held: false, backoff: None };
    }
    let wanted = due.unwrap_or(now);
    let at = wanted.max(key.not_before());
    Permit {
        // A debounced add of a key that is already due leaves it due.
        due: if at > now || due.is_some() { Some(at) } else { None },
        is_held: at > wanted,
        backoff: if wish.is_failure && at > now { Some(at) } else { None },
    }
}

/// Returns true if the pending run must wait for a backoff that an add begins and that ends at `at`.
/// The run is then due at `at`.
#[inline]
pub fn postpones<S: KeyState>(key: &S, at: S::Time) -> bool {
    key.phase().is_dirty() || key.wait().is_some_and(|wait| wait.due < at)
}

/// The effect of an add with a due time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Later {
    /// The add is part of the pending run, which has no due time.
    Joins,
    /// The key begins to wait.
    Begins,
    /// The wait of the key [changes](super::Wait::with_add).
    Merges,
}

/// Returns the effect of an add with a due time. A debounced add has a `bound`.
///
/// | the key | `Hold`, `Replace`, or debounced | `KeepBoth` |
/// |---|---|---|
/// | is ready or dirty | joins | as in the rows below |
/// | waits | merges | merges |
/// | has no due time | begins | begins |
#[inline]
pub fn later<S: KeyState>(key: &S, policy: ReaddPolicy, bound: Option<S::Time>) -> Later {
    let is_one_run = policy != ReaddPolicy::KeepBoth || bound.is_some();
    if is_one_run && key.phase().is_dirty() {
        Later::Joins
    } else if key.is_waiting() {
        Later::Merges
    } else {
        Later::Begins
    }
}

/// Returns the priority of the pending run after an add with the priority `asked`. The highest
/// priority of the run's adds wins. The priority of an earlier run does not count.
#[inline(always)]
pub fn priority<P: Ord>(pending: Option<P>, asked: P) -> P {
    match pending {
        Some(pending) => pending.max(asked),
        None => asked,
    }
}
