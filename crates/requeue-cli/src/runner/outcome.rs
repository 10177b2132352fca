//! The outcome of a run, for queues in memory and in a store.

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
    /// Interrupted by the end of the program. The key is released, as if it had not been delivered.
    PutBack,
}
