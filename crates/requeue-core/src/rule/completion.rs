//! The rules of a completion: the failures, adds and runs of the key after it.

use super::KeyState;
use crate::types::{Ending, Merge, ReaddPolicy};

/// The way in which a worker completes a delivery, with due times instead of delays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How<T> {
    /// The worker calls client-go's `Done`.
    Done,
    /// The run succeeded.
    Succeed,
    /// The run succeeded, and the key is added again with this due time.
    Requeue(T),
    /// The run failed, and the key is retried at this time.
    Retry(T),
    /// The run failed, and the key is not retried.
    GiveUp,
    /// Like `GiveUp`, but in a store: the key is parked, unless it was added during the run.
    Park,
    /// The worker undoes the delivery. The key is ready immediately, or waits until this time.
    Release(Option<T>),
    /// The run stopped after a caller had cancelled it by its key.
    Cancelled,
    /// The run stopped after an add of its key had cancelled it.
    Restarted,
}

/// The effect of a completion on the failures of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failures {
    /// The number of failures stays the same.
    Keep,
    /// The failures are forgotten, so the number becomes 0.
    Forget,
    /// The number of failures grows by one.
    Count,
}

/// The effect of a completion on the adds and flags of its run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adds {
    /// The run has served its adds, or they are dropped. The next run does not get them.
    End,
    /// The next run gets the adds and flags of this run.
    PassOn,
}

/// The run that can start directly after the completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start<T> {
    /// No run can start directly after the completion.
    No,
    /// The key is ready, at the tail of the order.
    Now,
    /// The key would be ready, but its pace permits no start before this time.
    Paced(T),
}

/// The effect of a completion on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Plan<T> {
    /// The effect on the number of failures.
    pub failures: Failures,
    /// The effect on the adds and flags of the run.
    pub adds: Adds,
    /// The run that can start directly after the completion. If there is none, the key is no longer
    /// dirty.
    pub start: Start<T>,
    /// The due time of a run that waits, and the rule that combines it with the due time that the
    /// key already has.
    pub later: Option<(T, Merge)>,
    /// The due time of the add that follows a success (`How::Requeue`).
    pub add: Option<T>,
    /// The end of the backoff, if the key is Idle after the completion and backs off.
    pub backoff: Option<T>,
    /// True if the key is ready after the completion and after the add that follows it.
    pub makes_ready: bool,
    /// True if the store parks the key.
    pub is_parked: bool,
    /// True if the shutdown of the queue has prevented a run that was requested.
    pub is_lost: bool,
}

impl<T> Plan<T> {
    /// Returns true if the key was dirty, and its retry becomes part of the run that it then had
    /// pending.
    #[inline]
    pub fn is_one_run(&self) -> bool {
        matches!(self.start, Start::No) || self.later.is_none()
    }
}

/// Returns the effect of a completion. `key` has the state before the completion.
///
/// | completion | failures | adds | backoff | next run |
/// |---|---|---|---|---|
/// | `Done` | keep | end | keep | pending |
/// | `Succeed` | forget | end | end | pending |
/// | `Requeue(at)` | forget | end | end | pending, then an add at `at` |
/// | `Retry(at)` | count | pass on | begin | at the later of `at` and the end of the backoff |
/// | `GiveUp` | forget | end | end | pending |
/// | `Park`, a run is pending | forget | pass on | end | pending |
/// | `Park`, otherwise | count | pass on | end | none |
/// | `Release(None)` | keep | pass on | keep | when the backoff has ended |
/// | `Release(at)`, not dirty | keep | pass on | keep | at the later of `at` and the end of the backoff |
/// | `Release(at)`, dirty | keep | pass on | keep | when the backoff has ended |
/// | `Cancelled` | keep | end | keep | pending |
/// | `Restarted`, a run is pending | keep | pass on | keep | pending |
/// | `Restarted`, otherwise | keep | end | keep | pending |
///
/// If the next run is *pending*, the adds during the run decide when it starts: a dirty key is
/// ready, and any other key keeps its due time. `next_run` decides the other cases. A key that
/// would be ready waits for its pace. The exception is a release, because a release does not count
/// as a run.
///
/// After a shutdown, a completion requests no run. A dirty key still runs once more, unless it is
/// paused or would have to wait for its pace.
#[inline]
pub fn complete<S: KeyState>(
    how: How<S::Time>,
    key: &S,
    policy: ReaddPolicy,
    now: S::Time,
) -> Plan<S::Time> {
    debug_assert!(key.phase().is_in_flight(), "only a key in flight is completed");
    let is_dirty = key.phase().is_dirty();
    let is_pending = || is_dirty || key.is_waiting();
    let is_open = key.ending() != Ending::ShutDown;
    let (failures, adds) = match how {
        How::Done | How::Cancelled => (Failures::Keep, Adds::End),
        How::Restarted if is_pending() => (Failures::Keep, Adds::PassOn),
        How::Restarted => (Failures::Keep, Adds::End),
        How::Succeed | How::Requeue(_) | How::GiveUp => (Failures::Forget, Adds::End),
        How::Retry(_) => (Failures::Count, Adds::PassOn),
        How::Park if is_pending() => (Failures::Forget, Adds::PassOn),
        How::Park => (Failures::Count, Adds::PassOn),
        How::Release(_) => (Failures::Keep, Adds::PassOn),
    };
    let (start, later, backoff) = match is_open {
        true => next_run(how, key, policy, now),
        false => (pending_start(is_dirty), None, None),
    };
    let start = match start {
        // A release undoes the start of its run, so the next start need not wait for the pace.
        Start::Now if !matches!(how, How::Release(_)) => {
            key.paced(now).map_or(Start::Now, Start::Paced)
        }
        start => start,
    };
    // After a shutdown, no key waits. If the run would have to wait, it is lost.
    let is_lost = !is_open && (matches!(start, Start::Paced(_)) || loses_run(how, key));
    let start = if is_lost { Start::No } else { start };
    let add = match how {
        How::Requeue(at) if is_open => Some(at),
        _ => None,
    };
    let is_added_now = add.is_some_and(|at| at <= now);
    Plan {
        failures,
        adds,
        start,
        later,
        add,
        backoff,
        makes_ready: match start {
            Start::Now => true,
            Start::No => is_added_now && key.paced(now).is_none(),
            Start::Paced(_) => false,
        },
        is_parked: failures == Failures::Count && how == How::Park,
        is_lost,
    }
}

/// The result of [`next_run`]: the run that can start directly, the run that waits, and the end of
/// the backoff.
type Next<T> = (Start<T>, Option<(T, Merge)>, Option<T>);

#[inline]
const fn pending_start<T>(is_dirty: bool) -> Start<T> {
    if is_dirty { Start::Now } else { Start::No }
}

/// Returns the runs that follow a completion in a queue that is not shut down. In the table, `at`
/// is the due time of the completion.
///
/// | `at` | `Hold` | `Replace` | `KeepBoth` |
/// |---|---|---|---|
/// | has come | ready | ready | ready |
/// | is later, and the key is dirty | one run, at `at` | ready | ready, and a run at `at` |
/// | is later, and the key waits | one run, at `at` | the earlier | the earlier |
/// | is later, without a pending run | at `at` | at `at` | at `at` |
///
/// Any add ends the wait of a release. With `Hold`, a release that waits for longer than the
/// backoff therefore merges its due time with the due time that the key already has.
#[inline]
fn next_run<S: KeyState>(
    how: How<S::Time>,
    key: &S,
    policy: ReaddPolicy,
    now: S::Time,
) -> Next<S::Time> {
    let is_dirty = key.phase().is_dirty();
    let (at, backoff) = match how {
        How::Succeed | How::Requeue(_) | How::GiveUp | How::Park => {
            return (pending_start(is_dirty), None, None);
        }
        How::Done | How::Cancelled | How::Restarted => {
            return (pending_start(is_dirty), None, Some(key.not_before()));
        }
        How::Retry(at) => {
            let at = at.max(key.not_before());
            (at, at)
        }
        // Any add ends the wait of a release, and a dirty key was added during its run.
        How::Release(Some(at)) if !is_dirty => (at.max(key.not_before()), key.not_before()),
        How::Release(_) => (key.not_before(), key.not_before()),
    };
    match policy {
        // The policies have different effects only if the run has to wait.
        _ if at <= now => (Start::Now, None, None),
        ReaddPolicy::Hold if at == backoff => {
            (Start::No, Some((at, Merge::Exactly)), Some(backoff))
        }
        ReaddPolicy::Hold => (Start::No, Some((at, Merge::Earliest)), Some(backoff)),
        ReaddPolicy::Replace if is_dirty => (Start::Now, None, None),
        ReaddPolicy::Replace | ReaddPolicy::KeepBoth => {
            (pending_start(is_dirty), Some((at, Merge::Earliest)), None)
        }
    }
}

/// Returns true if the key would run again after the completion, but the shutdown of the queue
/// prevents this run.
#[inline]
fn loses_run<S: KeyState>(how: How<S::Time>, key: &S) -> bool {
    let is_dirty = key.phase().is_dirty();
    let asks_more = matches!(how, How::Requeue(_) | How::Retry(_) | How::Release(_));
    match key.is_stopped() {
        true => is_dirty || asks_more,
        false => asks_more && !is_dirty,
    }
}
