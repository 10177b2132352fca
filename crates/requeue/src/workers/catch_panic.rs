//! The conversion of panics of user code into errors, so that no panic stops a worker.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::outcome::Error;
use crate::sync::{drop_quietly, panic_message};

/// Runs user code. If it panics, returns an error with the message of the panic.
pub(super) fn call_caught<R>(f: impl FnOnce() -> R) -> Result<R, Error> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let error = match panic_message(&*panic) {
            Some(message) => format!("panicked: {message}").into(),
            None => "panicked".into(),
        };
        drop_quietly(panic);
        error
    })
}
