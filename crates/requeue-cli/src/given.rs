//! What a command is given besides its key.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use tempfile::TempDir;

/// What a command is given besides its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// Further variables.
    pub(crate) env: Vec<(&'static str, String)>,
    /// What it reads; nothing if there is none.
    pub(crate) stdin: Option<Arc<[u8]>>,
    /// A directory that is there until the run is over.
    pub(crate) dir: Option<Arc<TempDir>>,
}

/// Of a run that may yet be none.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The things that keys are the names of, as far as they are known here. By a run of a key it is
/// meant that no two of them overlap.
pub(crate) trait Things: Debug + Send + Sync {
    /// A run of the key begins: with what, or nothing if there is no need for one any more.
    fn begin<'a>(&'a self, key: &'a [u8]) -> Later<'a, Result<Option<Given>, String>>;

    /// The run that began last has succeeded.
    fn succeed<'a>(&'a self, key: &'a [u8]) -> Later<'a, Result<(), String>>;

    /// The key is given up.
    fn give_up(&self, key: &[u8]);

    /// Whether something else is wanted of it since its run began, so that its failures no longer
    /// count.
    fn is_new(&self, key: &[u8]) -> bool;
}
