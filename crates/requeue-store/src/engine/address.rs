//! Parses the addresses of stores.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use crate::types::error::ConnectError;

/// The location of a store.
#[derive(Debug)]
pub(crate) enum Address {
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf, crate::engine::sqlite::Synchronous),
    #[cfg(feature = "postgres")]
    Postgres(Box<crate::engine::postgres::Address>),
    #[cfg(feature = "redis")]
    Redis(crate::engine::redis::Options),
}

impl Address {
    /// Parses the address of a store. The errors contain no password.
    #[allow(unreachable_patterns, reason = "with all features, no scheme lacks its engine")]
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let Some((scheme, rest)) = url.split_once(':') else {
            let said =
                format!("{url:?} is not the address of a store; use one such as sqlite:FILE");
            return Err(ConnectError::new(said));
        };
        match scheme {
            #[cfg(feature = "sqlite")]
            "sqlite" => parse_sqlite(rest),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                crate::engine::postgres::Address::parse(url).map(Box::new).map(Self::Postgres)
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" => crate::engine::redis::Options::parse(scheme, rest)
                .map(Self::Redis)
                .map_err(ConnectError::new),
            // Only a scheme whose feature is not enabled reaches this arm. The features have the same names in
            // requeue-cli and requeue-store.
            "sqlite" | "postgres" | "postgresql" | "redis" | "rediss" => {
                let feature = match scheme {
                    "postgresql" => "postgres",
                    "rediss" => "redis",
                    scheme => scheme,
                };
                Err(ConnectError::new(format!(
                    "{feature}: this program was built without it; enable the feature `{feature}`"
                )))
            }
            other => Err(ConnectError::new(format!(
                "unknown kind of store {other:?}; use sqlite, postgres or redis"
            ))),
        }
    }
}

/// Returns the names and values of the options in the query of an address. The query is the part after the `?`.
pub(crate) fn option_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let options = query.split('&').filter(|option| !option.is_empty());
    options.map(|option| option.split_once('=').unwrap_or((option, "")))
}

/// Returns the message about an option that is not in `allowed`, or that has an invalid value. `allowed` lists each
/// name with its possible values.
///
/// The message does not contain the value of an unknown option. If the user has mistyped a name, the value may be a
/// password.
pub(crate) fn wrong_option(
    scheme: &str,
    allowed: &[(&str, &str)],
    name: &str,
    value: &str,
) -> String {
    match allowed.iter().find(|(known, _)| *known == name) {
        Some((_, takes)) => format!("{scheme}: {name}={value}: expected {takes}"),
        None => {
            let names: Vec<_> = allowed.iter().map(|(name, _)| *name).collect();
            format!("{scheme}: unknown option {name:?}; the options are {}", names.join(", "))
        }
    }
}

#[cfg(feature = "sqlite")]
fn parse_sqlite(rest: &str) -> Result<Address, ConnectError> {
    use crate::engine::sqlite::Synchronous;

    const OPTIONS: &[(&str, &str)] = &[("synchronous", "normal or full")];

    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(ConnectError::new("sqlite: the file name is missing, as in sqlite:jobs.db"));
    }
    // A path with an authority such as `//host`, or a `file:` URL, is in the address format of other programs. SQLite
    // would take it for a path, and create a file in an unexpected directory.
    let has_host = path.starts_with("//") && !path.starts_with("///");
    if has_host || path.starts_with("file:") {
        let said = format!("sqlite:{path}: use a path after sqlite:, as in sqlite:jobs.db");
        return Err(ConnectError::new(said));
    }
    let mut synchronous = Synchronous::default();
    for (name, value) in option_pairs(options) {
        synchronous = match (name, value) {
            ("synchronous", "normal") => Synchronous::Normal,
            ("synchronous", "full") => Synchronous::Full,
            _ => return Err(ConnectError::new(wrong_option("sqlite", OPTIONS, name, value))),
        };
    }
    Ok(Address::Sqlite(path.into(), synchronous))
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "redis"))]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;

    #[test]
    fn each_wrong_option_is_named_with_what_is_right() {
        let postgres = "postgres: unknown option \"speed\"; the options are connections, listen, ";
        for (url, said) in [
            (
                "sqlite:a.db?synchronous=banana",
                "sqlite: synchronous=banana: expected normal or full",
            ),
            ("sqlite:a.db?synchronous", "sqlite: synchronous=: expected normal or full"),
            (
                "sqlite:a.db?speed=9",
                "sqlite: unknown option \"speed\"; the options are synchronous",
            ),
            ("postgres://h/d?speed=9", postgres),
            ("postgres://h/d?a=1&speed=9", "unknown option \"a\""),
            (
                "postgres://h/d?connections=0",
                "postgres: connections=0: expected a number of 1 or more",
            ),
            (
                "postgres://h/d?sslmode=allow",
                "postgres: sslmode=allow: expected disable, prefer, \
                 require, verify-ca or verify-full",
            ),
            (
                "postgres://h/d?connect_timeout=5s",
                "connect_timeout=5s: expected a number of seconds",
            ),
            (
                "postgres://h/d?target_session_attrs=primary",
                "target_session_attrs=primary: expected any, read-write or read-only",
            ),
            (
                "redis://h?speed=9",
                "redis: unknown option \"speed\"; the options are ca, eviction, shards, wait",
            ),
            ("redis://h?wait=x", "redis: wait=x: expected a number of replicas"),
            ("rediss://h?shards=0", "rediss: shards=0: expected a number of shards from 1 to 256"),
            (
                "redis://h?shards=257",
                "redis: shards=257: expected a number of shards from 1 to 256",
            ),
            ("redis://h?ca=/nowhere", "redis: ca=/nowhere: "),
        ] {
            let error = Address::parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
        // The value of an unknown option may be a password.
        for url in
            ["postgres://h/d?pasword=s3cret", "redis://h?pasword=s3cret", "sqlite:f?p=s3cret"]
        {
            let error = Address::parse(url).expect_err(url).to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn all_documented_options_are_taken() {
        for options in [
            "sslmode=prefer&connect_timeout=3&application_name=x%20y&options=-c%20a%3Db",
            "target_session_attrs=read-write&keepalives=1&keepalives_idle=3&tcp_user_timeout=1",
            "keepalives_interval=3&keepalives_retries=3&load_balance_hosts=random",
            "channel_binding=prefer&sslnegotiation=postgres&hostaddr=127.0.0.1&port=1&host=h",
            "user=u&password=p&dbname=d&sslrootcert=system&connections=3&passfile=%2Fx",
        ] {
            let url = format!("postgres://h/d?{options}");
            assert!(Address::parse(&url).is_ok(), "{url}: {:?}", Address::parse(&url));
        }
    }
}
