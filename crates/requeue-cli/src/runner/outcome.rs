//! The outcome of a run, for queues in memory and in a store.

use std::time::Duration;

use requeue::{CancelReason, Completion};

use crate::serve::Run;

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Succeeded,
    Failed {
        /// `None` if the command cannot be started with this key.
        exit: Option<i32>,
        why: String,
        /// The run is not retried.
        is_final: bool,
    },
    /// The run was cancelled, and its command was terminated. This is neither a success nor a failure.
    Cancelled(CancelReason),
    /// The end of the program interrupted the run. This is neither a success nor a failure.
    Interrupted,
}

/// A run, for the dashboard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) attempt: u32,
    /// `None` if no command was started.
    pub(crate) took: Option<Duration>,
    /// The end of the command's standard error.
    pub(crate) stderr: String,
}

impl Report {
    pub(crate) fn into_run(self, error: &str) -> Run {
        let run = Run::new(self.attempt).error(error).output(self.stderr);
        match self.took {
            Some(took) => run.took(took),
            None => run,
        }
    }
}

impl Outcome {
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

    /// The reason of a failure.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { why, .. } => Some(why),
            Self::Succeeded | Self::Cancelled(_) | Self::Interrupted => None,
        }
    }
}
