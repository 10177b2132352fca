//! Hooks around the runs of keys that stand for objects elsewhere.

use std::fmt::Debug;
use std::pin::Pin;

use crate::process::run_input::RunInput;

/// A future of a trait's method.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Called for each run. No two runs of a key overlap.
pub(crate) trait Hooks: Debug + Send + Sync {
    /// A run of the key begins. Returns its input; `None` if there is no reason for a run any more.
    fn begin<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<RunInput>, String>>;

    /// The run that began last has succeeded.
    fn on_success<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<(), String>>;

    /// The key is given up.
    fn on_give_up(&self, key: &[u8]);

    /// Whether a newer request for the key has come since its run began: its failures no longer count.
    fn is_new(&self, key: &[u8]) -> bool;
}
