//! The error of a wait that ended before its condition held.

use std::error;
use std::fmt;

/// The reason why a wait ended before its condition held.
///
/// # Examples
///
/// ```
/// use requeue::wait::Error;
///
/// let failed: Error<std::num::ParseIntError> = "x".parse::<u8>().unwrap_err().into();
/// assert!(matches!(failed, Error::Condition(_)));
/// assert!(!failed.is_interrupted());
/// assert_eq!(Error::<String>::Timeout.to_string(), "timed out waiting for the condition");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The time has passed, or the tries are used up. This is apimachinery's `ErrWaitTimeout`, and
    /// the `DeadlineExceeded` of a context.
    Timeout,
    /// The stop came before the condition held. This is the `Canceled` of a context.
    Cancelled,
    /// The condition returned this error, which ended the wait.
    Condition(E),
}

impl<E> Error<E> {
    /// Returns true if the time or the stop ended the wait, and not an error of the condition.
    ///
    /// This is apimachinery's `Interrupted`.
    #[must_use]
    pub const fn is_interrupted(&self) -> bool {
        match self {
            Self::Timeout | Self::Cancelled => true,
            Self::Condition(_) => false,
        }
    }
}

impl<E> From<E> for Error<E> {
    fn from(error: E) -> Self {
        Self::Condition(error)
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("timed out waiting for the condition"),
            Self::Cancelled => f.write_str("cancelled while waiting for the condition"),
            Self::Condition(error) => error.fmt(f),
        }
    }
}

impl<E: error::Error> error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Timeout | Self::Cancelled => None,
            // This error has the message of the condition's error, so its source is the source of
            // that error.
            Self::Condition(error) => error.source(),
        }
    }
}
