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
        /// True if the run is not retried.
        is_final: bool,
    },
    /// The run was cancelled, and its command was terminated. The run counts neither as a success nor as a failure.
    Cancelled(CancelReason),
    /// The end of the program has interrupted the run, which counts neither as a success nor as a failure.
    Interrupted,
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
}
