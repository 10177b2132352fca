//! The outcome of a run of a key. It is the same for a queue in memory and a queue in a store.

use requeue::{CancelReason, Completion};

/// The outcome of a run of a key.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Succeeded,
    Failed {
        /// The exit code. `None` if the system can never start the command with this key, for example because the key
        /// is too long.
        exit: Option<i32>,
        why: String,
        /// The last non-empty line of the command's standard error. Empty if there is none.
        said: String,
        /// True if the key must not be retried.
        is_final: bool,
    },
    /// The run was cancelled, and its command was terminated. The run is neither a success nor a failure.
    Cancelled(CancelReason),
    /// The program began to stop before the run completed. The run is neither a success nor a failure.
    Interrupted,
}

impl Outcome {
    /// Returns the error text of a failed run, by which the store and the dashboard group failures. Most commands use
    /// few exit codes, so the text also contains the last line of the command's standard error.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Failed { why, said, .. } if said.is_empty() => Some(why.clone()),
            Self::Failed { why, said, .. } => Some(format!("{why}: {said}")),
            _ => None,
        }
    }

    /// Stores the last non-empty line of `output` in a failed outcome.
    pub(crate) fn note_output(&mut self, output: &str) {
        if let Self::Failed { said, .. } = self {
            let lines = output.lines().rev().map(str::trim);
            *said = lines.clone().find(|line| !line.is_empty()).unwrap_or_default().to_owned();
        }
    }

    /// Returns the completion for a remote queue. For a queue in memory, the caller also limits the retries.
    pub(crate) const fn completion(&self) -> Completion {
        match self {
            Self::Succeeded => Completion::Succeed,
            Self::Failed { is_final: false, .. } => Completion::Retry,
            Self::Failed { is_final: true, .. } => Completion::GiveUp,
            Self::Cancelled(_) => Completion::Cancelled,
            Self::Interrupted => Completion::Release,
        }
    }
}
