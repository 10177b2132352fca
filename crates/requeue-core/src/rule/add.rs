//! The rules of an add: how a backoff delays it, and what the re-add policies do.

use super::KeyState;
use crate::types::{Add, Phase, ReaddPolicy, Time};

/// The request of an add: when it asks for a run, and if it reports a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish<T> {
    /// The time at which the add asks for a run, or `None` if it asks for an immediate run.
    pub due: Option<T>,
    /// For a debounced add: the latest due time of a run that begins to wait with this add.
    pub bound: Option<T>,
    /// True if the add reports a failure.
    pub is_failure: bool,
}

impl Wish<Time> {
    /// Returns the request that `add` makes at the time `now`.
    #[inline]
    pub(crate) fn of_add(add: &Add, now: Time) -> Self {
        Self { due: add.due(now), bound: add.bound(now), is_failure: add.failed }
    }
}

/// The time at which the run that an add requests may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permit<T> {
    /// The earliest time of the run, or `None` if it may start immediately.
    pub due: Option<T>,
    /// True if a backoff delays the run beyond the time for which the add asks.
    pub is_held: bool,
    /// If the add reports a failure and begins a backoff: the end of this backoff.
    pub backoff: Option<T>,
}

/// Returns the earliest time at which the run that an add requests may start.
///
/// | the key | [`ReaddPolicy::Hold`] | [`ReaddPolicy::Replace`], [`ReaddPolicy::KeepBoth`] |
/// |---|---|---|
/// | is ready | the time of the request | the time of the request |
/// | is in another phase | the time of the request, but not before the backoff has ended | the time of the request |
///
/// The time of a debounced add is at most the bound of the pending run.
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
        // If the key is already due, a debounced add does not change that.
        due: if at > now || due.is_some() { Some(at) } else { None },
        is_held: at > wanted,
        backoff: if wish.is_failure && at > now { Some(at) } else { None },
    }
}

/// Returns true if an add begins a backoff until `at`, and the pending run must wait for it. The
/// run is then due at `at`.
#[inline]
pub fn postpones<S: KeyState>(key: &S, at: S::Time) -> bool {
    key.phase().is_dirty() || key.wait().is_some_and(|wait| wait.due < at)
}

/// The effect of an add with a due time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Later {
    /// The add becomes part of the pending run, which has no due time.
    Joins,
    /// The key begins to wait for the due time of the add.
    Begins,
    /// The key already waits, and the add [changes](super::Wait::with_add) this wait.
    Merges,
}

/// Returns the effect of an add with a due time. `bound` is present if the add is debounced.
///
/// | the key | `Hold`, `Replace`, or a debounced add | `KeepBoth` |
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

/// Returns the priority of the pending run after an add with the priority `asked`: the highest
/// priority of the adds of this run. `pending` is `None` if no run was pending.
#[inline(always)]
pub fn priority<P: Ord>(pending: Option<P>, asked: P) -> P {
    match pending {
        Some(pending) => pending.max(asked),
        None => asked,
    }
}
