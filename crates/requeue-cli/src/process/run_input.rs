//! The input of a command in addition to its key.

use std::ffi::OsString;
use std::sync::Arc;

use tempfile::TempDir;

/// The input of a command in addition to its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunInput {
    /// Additional environment variables.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The standard input of the command, or `None` if it is empty.
    pub(crate) stdin: Option<Arc<[u8]>>,
    /// True if the run clears the terminal before its command starts.
    pub(crate) clears: bool,
    /// A directory that must exist until the end of the run.
    pub(crate) dir: Option<Arc<TempDir>>,
}

/// The number of the attempt, and the result of the attempt before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    pub(crate) attempt: u32,
    pub(crate) last_exit: Option<i32>,
}
