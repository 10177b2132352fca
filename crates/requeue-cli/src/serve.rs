//! `--serve`: the dashboard of the program, which is served until the program ends.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use os_display::Quotable;
use prometheus_client::registry::Registry;
pub(crate) use requeue::metrics::Metrics;
use requeue_http::{AccessToken, Builder, Role, Site};
pub(crate) use requeue_http::{History, Run};
use requeue_store::OpenOptions;
use rustix::fs::Mode;
use rustix::process::{Resource, umask};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::exit::Refusal;
use crate::key::{escaped, shown};
use crate::output::Output;
use crate::process::spawn::TOKEN_VARIABLE;
use crate::tls::ServerTls;
use crate::token::read_token;

/// The address of a dashboard: `[ADDR:]PORT`, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    Tcp {
        /// A host name or an IP address. `None` stands for the loopback address.
        host: Option<String>,
        port: u16,
    },
    Unix(PathBuf),
}

/// Parses the address of a dashboard.
pub(crate) fn parse_address(text: &str) -> Result<Address, &'static str> {
    const WRONG: &str = "expected a port from 0 to 65535, an address and a port, as in \
                         0.0.0.0:8080 or [::]:8080, or a socket, as in unix:PATH";
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() { Err(WRONG) } else { Ok(Address::Unix(path.into())) };
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    // The digits are checked, because `parse` also accepts a sign.
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or(WRONG)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match (bracketed, host) {
        (Some(address), _) if address.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6()) => {
            Some(address.to_owned())
        }
        (None, "") => None,
        (None, host) if !host.contains([':', '[', ']', '/', '@']) => Some(host.to_owned()),
        _ => return Err(WRONG),
    };
    Ok(Address::Tcp { host, port })
}

/// The settings of a dashboard.
#[derive(Clone, Debug)]
pub(crate) struct Serve {
    pub(crate) address: Address,
    /// The tokens that permit changes, if `--serve-admin` is set.
    pub(crate) tokens: Tokens,
    /// The longest time for which a key should be ready before it starts.
    pub(crate) target: Option<Duration>,
    pub(crate) tls: Option<ServerTls>,
}

/// The tokens of a dashboard, each with its roles.
pub(crate) type Tokens = Vec<(Role, AccessToken)>;

/// Reads tokens from `file`, or from the environment variable for tokens if there is no file.
pub(crate) fn read_tokens(file: Option<&Path>) -> Result<Tokens, Refusal> {
    parse_tokens(&read_token(file)?).map_err(|why| {
        let of = match file {
            Some(path) => format!("--token-file {}", escaped(path.as_os_str().as_bytes())),
            None => TOKEN_VARIABLE.to_owned(),
        };
        Refusal::usage(format!("{of}: {why}"))
    })
}

/// Parses tokens, one on each line. Roles can precede a token, as in `add,work TOKEN`. A token without roles has the
/// role `admin`. `sha256:HASH` stands for the token with this hash.
fn parse_tokens(text: &str) -> Result<Tokens, String> {
    let mut tokens = Tokens::new();
    // An empty text contains one empty token, which is refused. Each part of a line may be secret, so no error
    // contains a part of a line.
    for (number, line) in (1..).zip(text.split('\n').map(str::trim)) {
        let (roles, token) = match line.split_once([' ', '\t']) {
            Some((roles, token)) => (roles, token.trim_start()),
            None => ("admin", line),
        };
        let token = match token.strip_prefix("sha256:") {
            Some(hash) => AccessToken::from_hash(hash),
            None => AccessToken::new(token),
        };
        let token = token.map_err(|error| format!("line {number}: {error}"))?;
        for role in roles.split(',') {
            let role = match role {
                "read" => Role::Read,
                "add" => Role::Add,
                "work" => Role::Work,
                "admin" => Role::Admin,
                _ => {
                    let roles = "the roles before a token are read, add, work and admin";
                    return Err(format!("line {number}: no such role; {roles}"));
                }
            };
            tokens.push((role, token));
        }
    }
    Ok(tokens)
}

/// The bound socket of a dashboard that is not served yet.
pub(crate) struct Listener {
    tokens: Tokens,
    target: Option<Duration>,
    tls: Option<ServerTls>,
    socket: Socket,
    registry: Registry,
    pub(crate) metrics: Metrics,
}

enum Socket {
    Tcp {
        listener: TcpListener,
        /// The host that the user wrote in the flag.
        asked: Option<String>,
    },
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Binds the socket. Returns `None` if `--serve` is missing.
    pub(crate) async fn bind_if_asked(serve: Option<&Serve>) -> Result<Option<Self>, Refusal> {
        match serve {
            Some(serve) => Self::bind(serve).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns true if clients with a token can change the queue.
    pub(crate) const fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Binds the socket.
    pub(crate) async fn bind(
        Serve { address, tokens, target, tls }: &Serve,
    ) -> Result<Self, Refusal> {
        let socket = match address {
            Address::Tcp { host, port } => {
                let asked = host.clone();
                let host = host.as_deref().unwrap_or("127.0.0.1");
                let listener = TcpListener::bind((host, *port)).await.map_err(|error| {
                    let host = escaped(host.as_bytes());
                    Refusal::failure(format!("--serve: {host}, port {port}: {error}"))
                })?;
                Socket::Tcp { listener, asked }
            }
            Address::Unix(path) => {
                let (listener, file) = SocketFile::bind(path).await.map_err(|error| {
                    let path = escaped(path.as_os_str().as_bytes());
                    Refusal::failure(format!("--serve: {path}: {error}"))
                })?;
                Socket::Unix(listener, file)
            }
        };
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let (tokens, target, tls) = (tokens.clone(), *target, tls.clone());
        Ok(Self { tokens, target, tls, socket, registry, metrics })
    }

    /// Serves the dashboard with this title, and prints its address.
    pub(crate) async fn serve<K>(
        self,
        title: String,
        site: Builder<K>,
        output: &Output,
    ) -> Result<Page, Refusal> {
        let failure = |error: io::Error| Refusal::failure(format!("--serve: {error}"));
        let (address, asked) = match &self.socket {
            Socket::Tcp { listener, asked } => {
                (Some(listener.local_addr().map_err(failure)?), asked.clone())
            }
            Socket::Unix(..) => (None, None),
        };
        let (has_tokens, tls) = (self.has_tokens(), self.tls.clone());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let has_password = self.tokens.iter().any(|(role, _)| *role == Role::Read);
        let site =
            self.tokens.into_iter().fold(site, |site, (role, token)| site.token(role, token));
        let site = match self.target {
            Some(target) => site.target(target),
            None => site,
        };
        let site = complete_site(site.title(title), self.registry);
        // With TLS, clients check the name by the certificate. A site of another name has no certificate that fits, and
        // a renewed certificate can have other names.
        let site = match tls {
            Some(_) => site.any_host(),
            None => allow_hosts(site, address, asked.as_deref()),
        };
        let site = site.build();
        let served = site.clone();
        let (server, file, place) = match self.socket {
            Socket::Tcp { listener, .. } => {
                let server = tokio::spawn(async move {
                    match tls {
                        Some(tls) => served.serve(tls.encrypt(listener)).await,
                        None => served.serve(listener).await,
                    }
                });
                let address = address.map(|address| format!("{scheme}://{address}/"));
                (server, None, address.unwrap_or_default())
            }
            Socket::Unix(listener, file) => {
                let server = tokio::spawn(async move { served.serve(listener).await });
                let place = format!("unix:{}", shown(file.path.as_os_str().as_bytes()));
                (server, Some(file), place)
            }
        };
        output.say(&format!("dashboard: {place}")).await;
        if address.is_some_and(|address| address.ip().is_unspecified()) {
            if !has_password {
                let warning = "--serve: there is no password; every host that reaches this machine can see keys, \
                               output and errors. Use 127.0.0.1:PORT or unix:PATH to prevent that";
                output.say(warning).await;
            }
            if has_tokens && scheme == "http" {
                let warning = "--serve-admin: there is no TLS; every host that can read the network can read the token. Use --tls-cert";
                output.say(warning).await;
            }
        }
        Ok(Page { site, server, _file: file })
    }
}

/// The file of a Unix socket. It is removed when this value is dropped.
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Binds a socket to which only its owner can connect. Replaces an existing socket if no process listens on it.
    /// Refuses to replace any other file.
    async fn bind(path: &Path) -> io::Result<(UnixListener, Self)> {
        match path.symlink_metadata() {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(
                    ErrorKind::AlreadyExists,
                    "the file exists and is not a socket",
                ));
            }
            Ok(_) => match UnixStream::connect(path).await {
                Ok(_) => {
                    let why = "another process uses this socket";
                    return Err(io::Error::new(ErrorKind::AddrInUse, why));
                }
                // The process that bound the socket has exited.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                Err(error) => return Err(error),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // The mask determines the mode of the socket when it is created. If another thread creates a file at the same
        // time, that file gets fewer rights than usual.
        let mask = umask(Mode::from_raw_mode(0o177));
        let bound = UnixListener::bind(path);
        umask(mask);
        let listener = bound?;
        // The identity distinguishes this file from a socket that another process binds at the same path later.
        let found = path.symlink_metadata()?;
        let identity = (found.dev(), found.ino());
        Ok((listener, Self { path: path.to_owned(), identity }))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |found: Metadata| (found.dev(), found.ino()) == self.identity;
        // Another process may have replaced the file, so the identity is compared.
        if self.path.symlink_metadata().is_ok_and(is_ours) {
            // If the removal fails, the next process replaces the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the dashboard of a queue in a store. The hint leaves out the URL of the store, because the URL may contain
/// a password.
pub(crate) fn store_site(queue: &requeue_store::Queue) -> Builder<requeue_store::Key> {
    let hint = format!("requeue add --store URL --queue {} KEY", queue.name().maybe_quote());
    Site::of_store(queue.clone()).hint(hint)
}

/// Returns the dashboards of all queues in a store.
pub(crate) fn all_queues_site(
    store: requeue_store::Store,
    metrics: Metrics,
    open: impl Fn(OpenOptions) -> OpenOptions + Send + Sync + 'static,
) -> Builder<requeue_store::Key> {
    Site::of_all_queues(store, move |opening| open(opening.metrics(&metrics)))
        .hint("requeue add --store URL --queue {queue} KEY")
}

/// Sets the metrics of the dashboard, and the limit of its connections.
fn complete_site<K>(site: Builder<K>, registry: Registry) -> Builder<K> {
    // The connections get only a part of the file descriptors, because the commands need the others.
    let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
    let most = descriptors.map_or(64, |descriptors| (descriptors / 8).clamp(2, 64) as usize);
    site.registry(Arc::new(registry)).max_connections(most)
}

/// Allows the names of this machine. `address` is `None` for a Unix socket. `asked` is the host in the flag.
fn allow_hosts<K>(
    mut site: Builder<K>,
    address: Option<SocketAddr>,
    asked: Option<&str>,
) -> Builder<K> {
    match address {
        Some(address) if address.ip().is_unspecified() => {
            // The site accepts requests to all addresses of this machine, and to its host name.
            let system = rustix::system::uname();
            site = site.any_address().host(&system.nodename().to_string_lossy());
        }
        Some(address) => site = site.host(&address.ip().to_string()),
        None => {}
    }
    if let Some(host) = asked {
        site = site.host(host);
    }
    site
}

/// A dashboard that is served.
pub(crate) struct Page {
    site: Site,
    server: JoinHandle<io::Result<()>>,
    _file: Option<SocketFile>,
}

impl Page {
    /// Tells the connected browsers that the program ends, and stops the server. Takes at most a second.
    pub(crate) async fn shutdown(self) {
        self.site.shutdown();
        let _ = self.server.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_left_out_but_not_a_port() {
        for (text, host, port) in [
            ("8080", None, 8080),
            (":8080", None, 8080),
            (":0", None, 0),
            ("0.0.0.0:80", Some("0.0.0.0"), 80),
            ("localhost:80", Some("localhost"), 80),
            ("[::1]:80", Some("::1"), 80),
        ] {
            let address = Address::Tcp { host: host.map(str::to_owned), port };
            assert_eq!(parse_address(text), Ok(address), "{text}");
        }
        for text in [
            "",
            ":",
            "a",
            "localhost",
            "localhost:",
            "::1",
            "::1:80",
            "65536",
            "+80",
            "-1",
            "[]:1",
            "unix:",
        ] {
            assert!(parse_address(text).is_err(), "{text}");
        }
        assert_eq!(parse_address("unix:a:80"), Ok(Address::Unix("a:80".into())));
    }

    #[test]
    fn a_token_has_the_roles_of_its_line() {
        let token = |text| AccessToken::new(text).unwrap();
        let hash = "sha256:9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        let (a, b) = (token("0123456789abcdef"), token("fedcba9876543210"));
        for (text, tokens) in [
            ("0123456789abcdef", vec![(Role::Admin, a)]),
            (hash, vec![(Role::Admin, a)]),
            (
                &format!("add,work {hash}\nread\tfedcba9876543210"),
                vec![(Role::Add, a), (Role::Work, a), (Role::Read, b)],
            ),
        ] {
            assert_eq!(parse_tokens(text), Ok(tokens), "{text}");
        }
        for (text, why) in [
            ("", "16 to 1,024"),
            ("short", "16 to 1,024"),
            ("admin 0123456789abcdef extra", "16 to 1,024"),
            ("0123456789abcdef\nboss 0123456789abcdef", "line 2: no such role"),
            (", 0123456789abcdef", "line 1: no such role"),
            ("sha256:9f9f", "64 hexadecimal digits"),
        ] {
            let error = parse_tokens(text).unwrap_err();
            assert!(error.contains(why) && !error.contains("boss"), "{text}: {error}");
        }
    }
}
