//! Raises the errors of a store as exceptions of `requeue`.

use std::error::Error;

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;
use requeue_store::{CompleteError, ErrorKind};

/// The exceptions, which Python code defines. They have the same names as the Rust errors.
mod exceptions {
    pyo3::import_exception!(requeue._errors, AddError);
    pyo3::import_exception!(requeue._errors, CompleteError);
    pyo3::import_exception!(requeue._errors, ConnectError);
    pyo3::import_exception!(requeue._errors, MigrateError);
    pyo3::import_exception!(requeue._errors, OpenError);
    pyo3::import_exception!(requeue._errors, ReadError);
    pyo3::import_exception!(requeue._errors, UpdateError);
}

/// An error that has an exception.
pub(crate) trait Fault: Error + Sized + 'static {
    /// Returns the exception. Bad input is a `ValueError`.
    fn into_exception(self) -> PyErr;
}

/// Implements [`Fault`] for the error of an operation, whose second method may say that the change was made.
macro_rules! fault {
    ($name:ident, |$error:ident| $may_have_happened:expr) => {
        impl Fault for requeue_store::$name {
            fn into_exception(self) -> PyErr {
                let $error = &self;
                let text = chain($error);
                match self.kind() {
                    ErrorKind::Invalid => PyValueError::new_err(text),
                    kind => exceptions::$name::new_err((text, name(kind), $may_have_happened)),
                }
            }
        }
    };
}

fault!(ConnectError, |_error| false);
fault!(MigrateError, |_error| false);
fault!(OpenError, |_error| false);
fault!(ReadError, |_error| false);
fault!(AddError, |error| error.may_have_happened());
fault!(UpdateError, |error| error.may_have_happened());

impl Fault for CompleteError {
    fn into_exception(self) -> PyErr {
        let (kind, may_have_happened) = match &self {
            Self::Lost => ("lost", false),
            Self::Unsure => ("unsure", true),
            Self::Dropped => ("dropped", false),
            _ => ("unreachable", false),
        };
        exceptions::CompleteError::new_err((chain(&self), kind, may_have_happened))
    }
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Missing => "missing",
        ErrorKind::HasKeys => "has_keys",
        ErrorKind::Dropped => "dropped",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Authentication => "authentication",
        ErrorKind::Tls => "tls",
        ErrorKind::WrongServer => "wrong_server",
        // `Refused`, and kinds that later versions may add.
        _ => "refused",
    }
}

/// Returns an error and its sources in one line, with `: ` between them.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // Some drivers print their source.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
