//! The actions on keys that the queue knows.

use crate::rows::State as RowState;

/// A change of keys that the queue knows, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Removes the pending run. A run in flight goes on.
    Cancel,
    /// Cancels the run in flight. A pending run stays.
    CancelRun,
    /// Makes a waiting key ready.
    RunNow,
    /// Makes a parked key ready.
    Revive,
}

impl Action {
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("cancel", Self::Cancel),
        ("cancel-run", Self::CancelRun),
        ("run-now", Self::RunNow),
        ("revive", Self::Revive),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, action)| *action == self).map_or("", |(name, _)| name)
    }

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
    ["add", "authenticate", "pause", "resume"].contains(&name)
        || Action::NAMES.iter().any(|(known, _)| *known == name)
}
