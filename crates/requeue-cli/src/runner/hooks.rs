//! The functions that `requeue files` and `requeue watch` call before and after the run of a key.

use std::fmt::Debug;
use std::pin::Pin;

use crate::process::run_input::RunInput;

/// The boxed future that a method of a trait object returns.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Functions that the program calls for each run. The calls for one key never overlap.
pub(crate) trait Hooks: Debug + Send + Sync {
    /// Checks a key that a client of the dashboard adds. Returns an error if the key is invalid.
    fn check_key(&self, key: &[u8]) -> Result<(), String> {
        let _ = key;
        Ok(())
    }

    /// Prepares a run of the key. Returns the input of the command, or `None` if the run is no longer needed.
    fn prepare_run<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<RunInput>, String>>;

    /// The program calls this when the latest run of the key has succeeded. If this returns an error, the program
    /// treats the run as failed.
    fn on_success<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<(), String>>;

    /// The program calls this when it gives up the key. Returns the last part of the message to the user, which says
    /// when the key runs again.
    fn on_give_up(&self, key: &[u8]) -> &'static str;

    /// Returns true if a newer request for the key has arrived since its run began. The program then forgets the
    /// failures of the key.
    fn is_new(&self, key: &[u8]) -> bool;

    /// Returns a text that says what happens to the remaining keys after standard output was closed.
    fn after_cut_off(&self) -> &'static str;
}
