//! The data that a command receives in addition to its key.

use std::ffi::OsString;
use std::sync::Arc;

use tempfile::TempDir;

/// The data that a command receives in addition to its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunInput {
    /// Additional environment variables.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The standard input of the command. `None` if it is empty.
    pub(crate) stdin: Option<Arc<[u8]>>,
    /// True if the terminal must be cleared before the command starts.
    pub(crate) clears: bool,
    /// A temporary directory that the command uses. It must exist until the run is over.
    pub(crate) dir: Option<Arc<TempDir>>,
}

/// The number of the attempt, and the exit code of the attempt before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    pub(crate) attempt: u32,
    pub(crate) last_exit: Option<i32>,
}
