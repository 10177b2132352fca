//! The error of a configuration.

/// A configuration that is not valid, not safe, or does not fit the API server.
///
/// The text names the setting, its value and the values that are possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);
