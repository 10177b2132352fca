//! The outcome of a run, for queues in memory and in a store.

use requeue::{CancelReason, Completion};

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Succeeded,
    Failed {
        /// The exit code, or `None` if the command cannot be started with this key.
        exit: Option<i32>,
        why: String,
        /// The last line of the command's standard error, or an empty text.
        said: String,
        /// True if the run is not retried.
        is_final: bool,
    },
    /// The run was cancelled, and its command was terminated. The run counts neither as a success nor as a failure.
    Cancelled(CancelReason),
    /// The end of the program has interrupted the run, which counts neither as a success nor as a failure.
    Interrupted,
}

impl Outcome {
    /// Returns the error of a failed run for the store and the dashboard, which group failures by it. Most commands fail
    /// with one of few codes, so the error also contains what the command said last.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Failed { why, said, .. } if said.is_empty() => Some(why.clone()),
            Self::Failed { why, said, .. } => Some(format!("{why}: {said}")),
            _ => None,
        }
    }

    /// Keeps the last line of the output of a failed run.
    pub(crate) fn note_output(&mut self, output: &str) {
        if let Self::Failed { said, .. } = self {
            let lines = output.lines().rev().map(str::trim);
            *said = lines.clone().find(|line| !line.is_empty()).unwrap_or_default().to_owned();
        }
    }

    /// Returns the completion that the outcome asks for. A queue in memory also counts the retries.
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
