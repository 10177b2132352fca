//! The outcome of a run, for queues in memory and in a store alike.

/// The outcome of a run.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Succeeded,
    Failed {
        /// `None` if the command can't be started with this key.
        exit: Option<i32>,
        why: String,
        /// No retry follows.
        is_final: bool,
    },
    /// Interrupted by the end of the program, which is neither a success nor a failure: the key is as if
    /// it had not been delivered.
    PutBack,
}
