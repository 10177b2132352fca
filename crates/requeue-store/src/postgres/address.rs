//! Addresses, as `libpq` has them, and the passwords that belong to them.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::passwords;
use super::tls::Trust;
use crate::error::ConnectError;

/// How many connections a process has at most, unless said.
const CONNECTIONS: usize = 12;

/// A server, a database, and how to get in.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// Its `Debug` has no password.
    pub(super) config: Config,
    pub(super) trust: Trust,
    pub(super) connections: usize,
}

/// What of the address is ours to understand.
#[derive(Debug, Default)]
struct Options {
    trust: Option<Trust>,
    roots: Option<PathBuf>,
    passfile: Option<PathBuf>,
    connections: Option<usize>,
}

impl Address {
    /// No error has a password in it.
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let bad = |why: &str| ConnectError::new(format!("postgres: {why}"));
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Options::default();
        let mut rest = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            if !options.take(option).map_err(|why| bad(&why))? {
                rest.push(option);
            }
        }
        let url = format!("{base}?{}", rest.join("&"));
        // What it says names options, and unknown ones may be parts of a password.
        let mut config: Config = url.parse().map_err(|_| {
            bad("the address can't be read; it is postgres://USER:PASSWORD@HOST:PORT/DATABASE, \
                 with what is special in a part written %40 for @")
        })?;
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        let at = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
        if config.get_hosts().iter().any(at) {
            return Err(bad("a @ in a user's name or password is written %40"));
        }
        if config.get_password().is_none()
            && let Some(password) = passwords::find(&config, options.passfile)
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("requeue");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        if config.get_keepalives_idle() == Duration::from_secs(2 * 60 * 60) {
            config.keepalives_idle(Duration::from_secs(10));
            config.keepalives_interval(Duration::from_secs(5));
            config.keepalives_retries(2);
        }
        let trust = match (options.trust, options.roots) {
            // As `libpq`: who says whom to trust means it.
            (None, Some(roots)) if config.get_ssl_mode() == SslMode::Require => {
                Trust::Authority(Some(roots))
            }
            (Some(Trust::Authority(_)), roots) => Trust::Authority(roots),
            (Some(Trust::Name(_)), roots) => Trust::Name(roots),
            (trust, _) => trust.unwrap_or(Trust::Anybody),
        };
        if !matches!(trust, Trust::Anybody) {
            config.ssl_mode(SslMode::Require);
        }
        let connections = options.connections.unwrap_or(CONNECTIONS);
        Ok(Self { config, trust, connections })
    }

    /// Without what is secret.
    pub(crate) fn shown(&self) -> String {
        let config = &self.config;
        let hosts = config.get_hosts().iter().enumerate().map(|(n, host)| {
            let port = config.get_ports().get(n).or(config.get_ports().first()).unwrap_or(&5432);
            match host {
                Host::Tcp(host) => format!("{host}:{port}"),
                Host::Unix(path) => format!("{}:{port}", path.display()),
            }
        });
        let hosts: Vec<_> = hosts.collect();
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        format!("postgres://{}/{database}", hosts.join(","))
    }
}

impl Options {
    /// Whether it is one of these.
    fn take(&mut self, option: &str) -> Result<bool, String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("sslmode", "verify-ca") => self.trust = Some(Trust::Authority(None)),
            ("sslmode", "verify-full") => self.trust = Some(Trust::Name(None)),
            ("sslrootcert", "system") => {}
            ("sslrootcert", path) => self.roots = Some(decoded(path)?.into()),
            ("passfile", path) => self.passfile = Some(decoded(path)?.into()),
            ("connections", number) => {
                let number = number.parse().ok().filter(|&number| number > 0);
                self.connections = Some(number.ok_or("connections=N: N is 1 or more")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("{text}: it is no UTF-8"))
}
