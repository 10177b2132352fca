//! Parses addresses of PostgreSQL in the format of `libpq`, and looks up their passwords.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::guard::{Negotiation, is_local};
use super::passwords;
use super::tls::Trust;
use crate::engine::address::{option_pairs, wrong_option};
use crate::types::error::ConnectError;

/// The default maximum number of connections of a process.
const CONNECTIONS: usize = 12;

/// A server and a database, with the credentials and the options of connections to them.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    /// The driver's configuration. Its `Debug` output contains no password.
    pub(super) config: Config,
    /// The address at which the process listens for notifications, or `None` if it does not listen.
    pub(super) listen: Option<Config>,
    pub(super) pooling: Pooling,
    pub(super) trust: Trust,
    /// The `sslmode` that this program negotiates itself. It is `None` if connections are not [guarded](super::guard).
    pub(super) negotiation: Option<Negotiation>,
    pub(super) connections: usize,
}

/// The options of an address that this module parses, and their possible values. The driver parses all other options.
const OPTIONS: &[(&str, &str)] = &[
    ("connections", "a number of 1 or more"),
    ("listen", "HOST:PORT, the address of the server itself behind a pooler"),
    ("passfile", "the path of a file, with %20 for a space"),
    (
        "pooler",
        "transaction; a pooler that gives each connection a session of its own needs no option",
    ),
    ("sslmode", "disable, prefer, require, verify-ca or verify-full"),
    ("sslrootcert", "system, or the path of a file, with %20 for a space"),
    ("application_name", "a name"),
    ("channel_binding", "disable, prefer or require"),
    ("connect_timeout", "a number of seconds"),
    ("dbname", "a name"),
    ("host", "a name, or several separated by commas"),
    ("hostaddr", "an IP address, or several separated by commas"),
    ("keepalives", "0 or 1"),
    ("keepalives_idle", "a number of seconds"),
    ("keepalives_interval", "a number of seconds"),
    ("keepalives_retries", "a number"),
    ("load_balance_hosts", "disable or random"),
    ("options", "options for the server, as on its command line"),
    (PASSWORD, "a password"),
    ("port", "a number, or several separated by commas"),
    ("sslnegotiation", "postgres or direct"),
    ("target_session_attrs", "any, read-write or read-only"),
    ("tcp_user_timeout", "a number of seconds"),
    ("user", "a name"),
];
const PASSWORD: &str = "password";

const UNREADABLE: &str = "the address is invalid; use postgres://USER:PASSWORD@HOST:PORT/DATABASE, and \
                          percent-encode special characters, such as %40 for @";

/// The kind of server that accepts a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Pooling {
    /// A server, or a pooler that gives each connection a separate session.
    #[default]
    None,
    /// A pooler such as pgbouncer, which chooses a session for each transaction.
    Transactions,
}

/// The values of the options that this module parses.
#[derive(Debug, Default)]
struct Options {
    trust: Option<Trust>,
    roots: Option<Roots>,
    /// True if the address has an `sslmode`.
    has_mode: bool,
    passfile: Option<PathBuf>,
    connections: Option<usize>,
    pooling: Pooling,
    listen: Option<String>,
}

/// The authorities whose certificates are trusted.
#[derive(Debug)]
enum Roots {
    System,
    File(PathBuf),
}

impl Address {
    /// Parses the address of a PostgreSQL store. The errors contain no password.
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let bad = |why: &str| ConnectError::new(format!("postgres: {why}"));
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        // If the query contains an `@`, the address may contain a password with a `?`, and the query is then a part of
        // the password.
        let is_misread = query.contains('@');
        let mut options = Options::default();
        let mut rest = Vec::new();
        for (name, value) in option_pairs(query).filter(|_| !is_misread) {
            let wrong = || ConnectError::new(wrong_option("postgres", OPTIONS, name, value));
            options.has_mode |= name == "sslmode";
            match options.take_option(name, value) {
                Some(true) => {}
                Some(false) if is_driver_option(name, value) => {
                    rest.push(format!("{name}={value}"))
                }
                Some(false) if name == PASSWORD => {
                    return Err(bad(
                        "the value of password= is invalid: percent-encode its special characters",
                    ));
                }
                Some(false) | None => return Err(wrong()),
            }
        }
        // The error does not name an option, because the name may be a part of the password.
        if is_misread {
            return Err(bad(UNREADABLE));
        }
        let query = rest.join("&");
        let passfile = options.passfile.as_deref();
        let mut config = build_config(&format!("{base}?{query}"), passfile).map_err(bad)?;
        let mut listen = match &options.listen {
            Some(place) => {
                let mut listen =
                    build_config(&format!("{}?{query}", replace_hosts(base, place)), passfile)
                        .map_err(|why| bad(&format!("listen={place}: {why}")))?;
                if let (None, Some(password)) = (listen.get_password(), config.get_password()) {
                    let password = password.to_owned();
                    listen.password(password);
                }
                Some(listen)
            }
            None => (options.pooling == Pooling::None).then(|| config.clone()),
        };
        let trust = options.required_trust(config.get_ssl_mode()).map_err(bad)?;
        if !matches!(trust, Trust::Anybody) {
            // In the driver's default mode, it would connect without TLS to a server that offers no TLS.
            config.ssl_mode(SslMode::Require);
            listen.iter_mut().for_each(|listen| {
                listen.ssl_mode(SslMode::Require);
            });
        }
        let connections = options.connections.unwrap_or(CONNECTIONS);
        let pooling = options.pooling;
        let mut address = Self { config, listen, pooling, trust, negotiation: None, connections };
        if address.trust == Trust::Anybody && !address.all_configs().all(|config| is_local(config))
        {
            let is_socket = |host: &Host| !matches!(host, Host::Tcp(_));
            if address.config.get_hosts().iter().any(is_socket) {
                return Err(bad(
                    "Unix sockets and other hosts in one address need sslmode=verify-full",
                ));
            }
            address.guard_passwords();
        }
        Ok(address)
    }

    fn all_configs(&mut self) -> impl Iterator<Item = &mut Config> {
        [&mut self.config].into_iter().chain(&mut self.listen)
    }

    /// Makes this program negotiate TLS itself, so that no password is sent in clear text or as an MD5 hash.
    pub(super) fn guard_passwords(&mut self) {
        let taken: Vec<_> = self.all_configs().map(Negotiation::take).collect();
        // Both configurations have the same options, so the first negotiation is used for both.
        self.negotiation = taken.first().copied();
    }

    /// Returns the host and the port of each server that is reached over TCP.
    pub(super) fn tcp_servers(&self) -> impl Iterator<Item = (&str, u16)> {
        let ports = self.config.get_ports();
        self.config.get_hosts().iter().enumerate().filter_map(|(n, host)| match host {
            Host::Tcp(host) => Some((&**host, *ports.get(n).or(ports.first()).unwrap_or(&5432))),
            Host::Unix(_) => None,
        })
    }

    /// Returns the address as text, without the password.
    pub(crate) fn without_secrets(&self) -> String {
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
    /// Returns how the server must prove its identity. The rules are those of libpq, with one exception: an address
    /// with `sslrootcert` but without `sslmode` requires a verified server.
    fn required_trust(&mut self, mode: SslMode) -> Result<Trust, &'static str> {
        Ok(match (self.trust.take(), self.roots.take()) {
            (None, None) => Trust::Anybody,
            (Some(trust), None | Some(Roots::System)) => trust,
            (Some(Trust::Authority(_)), Some(Roots::File(file))) => Trust::Authority(Some(file)),
            (Some(_), Some(Roots::File(file))) => Trust::Name(Some(file)),
            (None, Some(Roots::System)) if !self.has_mode => Trust::Name(None),
            (None, Some(Roots::System)) => {
                return Err("sslrootcert=system needs sslmode=verify-full: a weaker mode would \
                    not verify the server; omit sslmode, or use sslmode=verify-full");
            }
            (None, Some(Roots::File(file))) if !self.has_mode || mode == SslMode::Require => {
                Trust::Authority(Some(file))
            }
            (None, Some(Roots::File(_))) => {
                return Err(
                    "sslrootcert=FILE needs sslmode=verify-full or verify-ca: a weaker mode \
                     would not verify the server; omit sslrootcert, or change sslmode",
                );
            }
        })
    }

    /// Parses an option that this module handles. Returns `Some(false)` for any other option, and `None` if the value
    /// is not valid.
    fn take_option(&mut self, name: &str, value: &str) -> Option<bool> {
        match (name, value) {
            ("sslmode", "verify-ca") => self.trust = Some(Trust::Authority(None)),
            ("sslmode", "verify-full") => self.trust = Some(Trust::Name(None)),
            ("sslrootcert", "system") => self.roots = Some(Roots::System),
            ("sslrootcert", path) => self.roots = Some(Roots::File(percent_decode(path)?.into())),
            ("passfile", path) => self.passfile = Some(percent_decode(path)?.into()),
            ("connections", number) => {
                self.connections = Some(number.parse().ok().filter(|&number| number > 0)?);
            }
            ("pooler", "transaction") => self.pooling = Pooling::Transactions,
            ("pooler", _) | ("listen", "") => return None,
            ("listen", place) => self.listen = Some(place.to_owned()),
            _ => return Some(false),
        }
        Some(true)
    }
}

/// Returns true if the driver knows the option and accepts its value.
fn is_driver_option(name: &str, value: &str) -> bool {
    format!("postgres://host?{name}={value}").parse::<Config>().is_ok()
}

/// Returns the URL with `hosts` in the place of its hosts.
fn replace_hosts(url: &str, hosts: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    let user = url[start..end].rfind('@').map_or(start, |at| start + at + 1);
    format!("{}{hosts}{}", &url[..user], &url[end..])
}

/// Returns the driver's configuration for a URL. Sets defaults for the options that the URL omits.
fn build_config(url: &str, passfile: Option<&Path>) -> Result<Config, &'static str> {
    // The error of the driver is not shown, because it may contain parts of a password.
    let mut config: Config = url.parse().map_err(|_| UNREADABLE)?;
    if config.get_hosts().is_empty() {
        config.host("localhost");
    }
    let at = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
    if config.get_hosts().iter().any(at) {
        return Err("write %40 instead of @ in a user name or password");
    }
    if config.get_password().is_none()
        && let Some(password) = passwords::find_password(&config, passfile)
    {
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name("requeue");
    }
    // If the network drops packets, a connection attempt without a timeout would delay the report of an outage by
    // minutes.
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(5));
    }
    // The loss of a connection must be detected before a lease of the default duration expires.
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(20));
    }
    // This value is the driver's default. It means that the address sets no value.
    if config.get_keepalives_idle() == Duration::from_secs(2 * 60 * 60) {
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(2);
    }
    Ok(config)
}

fn percent_decode(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Into::into)
}
