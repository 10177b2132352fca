//! The error of an invalid configuration.

/// A configuration is invalid, is not safe, or does not fit the API server.
///
/// The message names the setting, its value and the permitted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);
