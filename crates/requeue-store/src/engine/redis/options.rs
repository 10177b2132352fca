//! Parses Redis addresses: `redis://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/DB][?OPTION&…]`, and `rediss://`.
//!
//! If the address has no password, `REDISCLI_AUTH` is used as the password, as in `redis-cli`.

use std::env;
use std::fs;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use super::names;
use crate::engine::address::{option_pairs, wrong_option};

/// The options of an address, and their possible values.
const OPTIONS: &[(&str, &str)] = &[
    ("ca", "the path of a file with certificates"),
    ("eviction", "accept"),
    ("shards", "a number of shards from 1 to 256"),
    ("wait", "a number of replicas"),
];

#[derive(Debug)]
pub(crate) struct Options {
    /// The addresses at which the engine looks for the server or the cluster.
    pub(super) seeds: Vec<ConnectionInfo>,
    /// The number of replicas that must have a write before it is acknowledged.
    pub(super) wait: u32,
    /// The number of shards of a new queue, or `None` for the default.
    pub(super) shards: Option<u16>,
    /// True if the engine accepts a server that may evict keys when its memory is full.
    pub(super) accepts_eviction: bool,
}

impl Options {
    /// Parses the address of a Redis store. `rest` is the part after the scheme and its colon. The errors contain no
    /// password.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{scheme}: {why}");
        let rest = rest
            .strip_prefix("//")
            .ok_or_else(|| bad("the address must begin with the scheme and ://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        // An `@` in these parts means that the password contains a slash or a question mark, and was split there.
        if db.contains('@') || query.contains('@') {
            return Err(bad(
                "percent-encode special characters in a name or password: %2F for /, %3F for ?",
            ));
        }
        if hosts.is_empty() {
            return Err(bad("the host name is missing"));
        }
        let seed = |host: &str| {
            let url = format!("{scheme}://{user}{host}/{db}");
            url.into_connection_info().map_err(|error| {
                let why = error.to_string();
                bad(&format!("invalid host {host:?} or database {db:?}: {why}"))
            })
        };
        let seeds = hosts.split(',').map(seed).collect::<Result<_, _>>()?;
        let mut options = Self { seeds, wait: 0, shards: None, accepts_eviction: false };
        if let Some(password) = env::var("REDISCLI_AUTH").ok().filter(|given| !given.is_empty()) {
            options.seeds =
                options.seeds.into_iter().map(|seed| with_password(seed, &password)).collect();
        }
        for (name, value) in option_pairs(query) {
            let is_right = match name {
                "wait" => value.parse().map(|wait| options.wait = wait).is_ok(),
                "shards" => {
                    options.shards = value.parse().ok();
                    options.shards.is_some_and(|shards| (1..=names::MAX_SHARDS).contains(&shards))
                }
                "eviction" => {
                    options.accepts_eviction = value == "accept";
                    options.accepts_eviction
                }
                "ca" => {
                    options.trust_file(value).map_err(|why| bad(&format!("ca={value}: {why}")))?;
                    true
                }
                _ => false,
            };
            if !is_right {
                return Err(wrong_option(scheme, OPTIONS, name, value));
            }
        }
        Ok(options)
    }

    /// Returns the address as text, without the password.
    pub(crate) fn without_secrets(&self) -> String {
        let with_tls =
            |seed: &ConnectionInfo| matches!(seed.addr(), redis::ConnectionAddr::TcpTls { .. });
        let scheme = if self.seeds.iter().any(with_tls) { "rediss" } else { "redis" };
        let hosts: Vec<_> = self.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        format!("{scheme}://{}", hosts.join(","))
    }

    /// Trusts the certificate authorities in `file`, instead of those that the system trusts.
    fn trust_file(&mut self, file: &str) -> Result<(), String> {
        let certificates = fs::read(file).map_err(|error| error.to_string())?;
        for seed in &mut self.seeds {
            let certificates =
                TlsCertificates { client_tls: None, root_cert: Some(certificates.clone()) };
            let client = Client::build_with_tls(seed.clone(), certificates);
            *seed = client.map_err(|error| error.to_string())?.get_connection_info().clone();
        }
        Ok(())
    }
}

/// Returns the seed with this password, unless the seed already has a password.
fn with_password(seed: ConnectionInfo, password: &str) -> ConnectionInfo {
    let settings = seed.redis_settings().clone();
    match settings.password() {
        Some(_) => seed,
        None => seed.set_redis_settings(settings.set_password(password)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_say_where_and_how() {
        let options = Options::parse("redis", "//me:s%40@a,b:7000/3?wait=1&shards=4")
            .expect("the address is valid");
        let addresses: Vec<_> = options.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        assert_eq!(addresses, ["a:6379", "b:7000"]);
        let settings = options.seeds[1].redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("s@")));
        assert_eq!((settings.db(), options.wait, options.shards), (3, 1, Some(4)));
        let options = Options::parse("redis", "//[::1]:7").expect("the address is valid");
        assert_eq!(options.seeds[0].addr().to_string(), "::1:7");
    }

    #[test]
    fn bad_ones_are_told_without_the_password() {
        for (rest, said) in [
            ("host", "redis: the address must begin with the scheme and ://"),
            ("//me:secret@", "redis: the host name is missing"),
        ] {
            assert_eq!(Options::parse("redis", rest).expect_err("the address is invalid"), said);
        }
        for rest in ["//h?eviction", "//h?eviction=yes"] {
            let error = Options::parse("redis", rest).expect_err("the address is invalid");
            assert!(error.ends_with(": expected accept"), "{error}");
        }
        let options = Options::parse("redis", "//h?eviction=accept").expect("the address is valid");
        assert!(options.accepts_eviction);
        for rest in ["//me:sec/ret@h", "//me:sec?ret@h", "//me:a/sec@h/1"] {
            let error = Options::parse("redis", rest).expect_err("the address is invalid");
            assert!(!error.contains("sec") && error.contains("%2F"), "{error}");
        }
        let error =
            Options::parse("redis", "//me:secret@h:port/x").expect_err("the address is invalid");
        assert!(!error.contains("secret"), "{error}");
    }
}
