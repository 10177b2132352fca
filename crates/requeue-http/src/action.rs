//! The actions on keys that the queue knows.

use crate::names::Named;
use crate::rows::State as RowState;

/// A change of keys that the queue knows, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Removes the pending run. A run in flight continues.
    Cancel,
    /// Cancels the run in flight. A pending run stays.
    CancelRun,
    /// Makes a waiting key ready.
    RunNow,
    /// Makes a parked key ready.
    Revive,
}

impl Named for Action {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("cancel", Self::Cancel),
        ("cancel-run", Self::CancelRun),
        ("run-now", Self::RunNow),
        ("revive", Self::Revive),
    ];
}

impl Action {
    /// Returns true if the action has an effect on a key in this state. `runs_again` is true for a key in flight with a
    /// pending run.
    pub(crate) const fn applies(self, state: RowState, runs_again: bool) -> bool {
        match self {
            Self::Cancel => match state {
                RowState::Running => runs_again,
                RowState::Idle => false,
                _ => true,
            },
            Self::CancelRun => matches!(state, RowState::Running),
            Self::RunNow => matches!(state, RowState::Waiting | RowState::BackingOff),
            Self::Revive => matches!(state, RowState::Parked),
        }
    }
}

/// The paths of the actions: those of [`Action`], and the others.
pub(crate) fn is_action(path: &str) -> bool {
    let Some(name) = path.strip_prefix("/api/v1/") else { return false };
    ["add", "authenticate", "pause", "resume"].contains(&name) || Action::named(name).is_some()
}
