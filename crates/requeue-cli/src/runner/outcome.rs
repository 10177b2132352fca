//! The outcome of a run, for queues in memory and in a store.

use requeue::Completion;

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
    /// The end of the program interrupted the run. This is neither a success nor a failure.
    Interrupted,
    /// The command was terminated because its key was added again. This is neither a success nor a failure.
    Restarted,
}

impl Outcome {
    /// Returns the completion that the outcome asks for. A queue in memory also counts the retries.
    pub(crate) const fn completion(&self) -> Completion {
        match self {
            Self::Succeeded => Completion::Succeed,
            Self::Failed { is_final: false, .. } => Completion::Retry,
            Self::Failed { is_final: true, .. } => Completion::GiveUp,
            Self::Interrupted => Completion::Release,
            Self::Restarted => Completion::Cancelled,
        }
    }

    /// The reason of a failure.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { why, .. } => Some(why),
            Self::Succeeded | Self::Interrupted | Self::Restarted => None,
        }
    }
}
