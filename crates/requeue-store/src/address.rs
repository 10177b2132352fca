//! Addresses of stores.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use crate::error::ConnectError;

/// Where a store is.
#[derive(Debug)]
pub(crate) enum Address {
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf, crate::sqlite::Synchronous),
    #[cfg(feature = "postgres")]
    Postgres(Box<crate::postgres::Address>),
    #[cfg(feature = "redis")]
    Redis(crate::redis::Options),
}

impl Address {
    /// No error has a password in it.
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let Some((scheme, rest)) = url.split_once(':') else {
            let said = format!("{url:?}: no address of a store, such as sqlite:FILE");
            return Err(ConnectError::new(said));
        };
        match scheme {
            "sqlite" => sqlite(rest),
            "postgres" | "postgresql" => postgres(url),
            "redis" | "rediss" => redis(scheme, rest),
            other => Err(ConnectError::new(format!(
                "{other}: no kind of store; there are sqlite, postgres and redis"
            ))),
        }
    }
}

#[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "redis")))]
fn without(feature: &str) -> String {
    format!("{feature}: this program was built without it (feature `{feature}` of requeue-store)")
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str) -> Result<Address, ConnectError> {
    Err(ConnectError::new(without("sqlite")))
}

#[cfg(feature = "sqlite")]
fn sqlite(rest: &str) -> Result<Address, ConnectError> {
    use crate::sqlite::Synchronous;

    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(ConnectError::new("sqlite: without the name of a file"));
    }
    // Another program's host, or all of its address: not what is meant by a path.
    let has_host = path.starts_with("//") && !path.starts_with("///");
    if has_host || path.starts_with("file:") {
        let said = format!("sqlite:{path}: what follows sqlite: is a path, as in sqlite:jobs.db");
        return Err(ConnectError::new(said));
    }
    let mut synchronous = Synchronous::default();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        synchronous = match option {
            "synchronous=normal" => Synchronous::Normal,
            "synchronous=full" => Synchronous::Full,
            _ => {
                let said = format!("sqlite:{rest}: {option:?} is no option; synchronous=full is");
                return Err(ConnectError::new(said));
            }
        };
    }
    Ok(Address::Sqlite(path.into(), synchronous))
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str) -> Result<Address, ConnectError> {
    Err(ConnectError::new(without("postgres")))
}

#[cfg(feature = "postgres")]
fn postgres(url: &str) -> Result<Address, ConnectError> {
    crate::postgres::Address::parse(url).map(Box::new).map(Address::Postgres)
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: &str) -> Result<Address, ConnectError> {
    Err(ConnectError::new(without("redis")))
}

#[cfg(feature = "redis")]
fn redis(scheme: &str, rest: &str) -> Result<Address, ConnectError> {
    crate::redis::Options::parse(scheme, rest).map(Address::Redis).map_err(ConnectError::new)
}
