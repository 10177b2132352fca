//! Hooks around the runs of keys that name files or Kubernetes objects.

use std::fmt::Debug;
use std::pin::Pin;

use crate::process::run_input::RunInput;

/// The future of a trait's method.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Callbacks for each run. The callbacks of one key do not overlap.
pub(crate) trait Hooks: Debug + Send + Sync {
    /// Checks a key that a client of the dashboard adds. Returns an error if the key is invalid.
    fn check_key(&self, key: &[u8]) -> Result<(), String> {
        let _ = key;
        Ok(())
    }

    /// Prepares a run of the key. Returns the input of the run, or `None` if the run is no longer needed.
    fn prepare_run<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<RunInput>, String>>;

    /// The program calls this hook when the run that began last has succeeded. If the hook returns an error, the run
    /// counts as failed.
    fn on_success<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<(), String>>;

    /// The program calls this hook when the key is given up. Returns the last part of the message about a failure,
    /// which says when the key runs again.
    fn on_give_up(&self, key: &[u8]) -> &'static str;

    /// Returns true if a newer request for the key has arrived since its run began, so that its failures no longer
    /// count.
    fn is_new(&self, key: &[u8]) -> bool;

    /// Describes what happens to the remaining keys after standard output was closed.
    fn after_cut_off(&self) -> &'static str;
}
