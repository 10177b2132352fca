//! The input of a command besides its key.

use std::sync::Arc;

use tempfile::TempDir;

/// The input of a command besides its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunInput {
    /// Further variables.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Its standard input; `None`: empty.
    pub(crate) stdin: Option<Arc<[u8]>>,
    /// A directory that exists until the run has ended.
    pub(crate) dir: Option<Arc<TempDir>>,
}

/// The attempts before a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Past {
    pub(crate) attempt: u32,
    pub(crate) last_exit: Option<i32>,
}
