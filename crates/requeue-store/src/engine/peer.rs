//! Identifies the server at an address after a failed connection, to explain the failure.
//!
//! A driver that connects to a server of the wrong kind reports only a timeout or a malformed response.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::types::error::{EngineError, ErrorKind, Reason};

/// The timeout of a connection attempt.
const CONNECTING: Duration = Duration::from_secs(3);
/// The time limit for a server's answer. Only a server that sends nothing takes this long to be identified.
const ANSWERING: Duration = Duration::from_secs(4);

/// The message with which a client of PostgreSQL requests TLS. The server answers with a single letter.
pub(crate) const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The protocol that a server is expected to speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Postgres,
    Redis,
    /// Redis inside TLS.
    RedisTls,
}

/// The kind of server found at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    Postgres,
    Redis,
    Http,
    /// A server of any kind that requires TLS.
    Tls,
    /// A server whose answer is not recognized.
    Unknown,
    /// A server that closes each connection without an answer.
    Closes,
    /// A server that does not answer.
    Silent,
}

/// Returns a more specific error than `fault` if the cause of a failed connection to these servers can be determined,
/// and `fault` if it cannot.
pub(crate) async fn explain_fault<'a>(
    fault: EngineError,
    servers: impl IntoIterator<Item = (&'a str, u16, Protocol)>,
) -> EngineError {
    // If a server has given a reason, no further check is needed. A failure of TLS is an exception: the server may not
    // use TLS, or may be of a kind that does not know PostgreSQL's TLS negotiation.
    let known = fault.source.downcast_ref::<Reason>();
    if known.is_some_and(|reason| reason.kind != ErrorKind::Tls) {
        return fault;
    }
    explain_all(servers).await.map_or(fault, EngineError::from)
}

/// Returns the reasons why the connections to these servers failed. Returns `None` if [`explain_failure`] finds no
/// reason for one of them.
pub(crate) async fn explain_all<'a>(
    servers: impl IntoIterator<Item = (&'a str, u16, Protocol)>,
) -> Option<Reason> {
    let mut all: Option<Reason> = None;
    for (host, port, wanted) in servers {
        let reason = explain_failure(host, port, wanted).await?;
        all = Some(match all {
            None => reason,
            Some(before) => before.and(reason),
        });
    }
    all
}

/// Returns the reason why the connection to a server failed that should speak `wanted`. Returns `None` if the server
/// speaks `wanted`, because the driver's error is then more specific.
async fn explain_failure(host: &str, port: u16, wanted: Protocol) -> Option<Reason> {
    use ErrorKind::{Tls, Unreachable, WrongServer};

    let at = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let found = match identify_peer(host, port).await {
        Ok(found) => found,
        Err(why) => return Some(Reason::new(Unreachable, describe_unconnected(host, &at, &why))),
    };
    let kind = match wanted {
        Protocol::Postgres => "a PostgreSQL",
        Protocol::Redis | Protocol::RedisTls => "a Redis",
    };
    let other =
        |what: &str| (WrongServer, format!("{at} answered, but not as {kind} server: {what}"));
    let (kind, said) = match (found, wanted) {
        (Peer::Postgres, Protocol::Postgres) | (Peer::Redis, Protocol::Redis) => return None,
        // The server may speak Redis inside TLS. In this case, the driver's error is about TLS, and is more specific.
        (Peer::Tls, Protocol::RedisTls) => return None,
        (Peer::Redis, Protocol::RedisTls) => (
            Tls,
            format!(
                "{at} answered without TLS: use redis:// instead of \
                 rediss://, or configure TLS on the server"
            ),
        ),
        (Peer::Tls, Protocol::Redis) => {
            (Tls, format!("{at} answered, but only with TLS: use rediss:// instead of redis://"))
        }
        (Peer::Postgres, _) => other("it is a PostgreSQL server"),
        (Peer::Redis, _) => other("it is a Redis server"),
        (Peer::Http, _) => other("it is an HTTP server"),
        (Peer::Tls, Protocol::Postgres) => other("it expects TLS from the first byte"),
        (Peer::Unknown, _) => other(&format!("is this {kind} server?")),
        // A proxy closes connections in this way if the server behind it is down.
        (Peer::Closes, _) => (
            Unreachable,
            format!("{at} closed the connection without an answer: is this {kind} server?"),
        ),
        (Peer::Silent, _) => (
            Unreachable,
            format!("{at} accepted the connection, but sends no answer: is this {kind} server?"),
        ),
    };
    Some(Reason::new(kind, said))
}

fn describe_unconnected(host: &str, at: &str, why: &Unconnected) -> String {
    match why {
        Unconnected::NoHost(error) => format!("cannot resolve the host {host:?}: {error}"),
        Unconnected::NoAnswer => format!("{at} did not answer within {CONNECTING:?}"),
        Unconnected::Failed(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!("nothing listens on {at}: connection refused")
        }
        Unconnected::Failed(error) => format!("{at}: {error}"),
    }
}

enum Unconnected {
    NoHost(io::Error),
    NoAnswer,
    Failed(io::Error),
}

async fn connect_any(host: &str, port: u16) -> Result<TcpStream, Unconnected> {
    let mut last = Unconnected::NoHost(io::Error::other("the name has no address"));
    for address in lookup_host((host, port)).await.map_err(Unconnected::NoHost)? {
        match timeout(CONNECTING, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Unconnected::Failed(error),
            Err(_) => last = Unconnected::NoAnswer,
        }
    }
    Err(last)
}

/// Identifies a server. Each greeting is sent on a separate connection, because servers of different kinds answer
/// different greetings.
async fn identify_peer(host: &str, port: u16) -> Result<Peer, Unconnected> {
    /// An HTTP request, which Redis reads as a command with too few arguments.
    const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

    // If no server listens, the first connection fails, and no further greeting is sent.
    let first = connect_any(host, port).await?;
    let mut greeted = JoinSet::new();
    greeted.spawn(greet_peer(first, SSL_REQUEST.to_vec(), |said| match said {
        b"S" | b"N" => Peer::Postgres,
        said => in_general(said),
    }));
    for hello in [GET.to_vec(), client_hello()] {
        // This connection may fail, because the server may accept only one connection. The failure is ignored.
        if let Ok(stream) = connect_any(host, port).await {
            greeted.spawn(greet_peer(stream, hello, in_general));
        }
    }
    let mut found = Peer::Silent;
    while let Some(Ok(peer)) = greeted.join_next().await {
        found = match (found, peer) {
            // These answers prove the kind of the server.
            (_, Peer::Postgres | Peer::Redis | Peer::Http) => return Ok(peer),
            // Servers of several kinds expect TLS from the first byte.
            (_, Peer::Tls) | (Peer::Tls, _) => Peer::Tls,
            (_, Peer::Unknown) | (Peer::Unknown, _) => Peer::Unknown,
            (_, Peer::Closes) | (Peer::Closes, _) => Peer::Closes,
            (known, Peer::Silent) => known,
        };
    }
    Ok(found)
}

/// Classifies an answer that has the same meaning after any greeting.
fn in_general(said: &[u8]) -> Peer {
    match said {
        [] => Peer::Closes,
        [b'H', b'T', b'T', b'P', b'/', ..] => Peer::Http,
        // The answer is an error or a simple string of Redis.
        [b'-' | b'+', b'A'..=b'Z', ..] => Peer::Redis,
        // The answer is a TLS record with an alert or a handshake message.
        [0x15 | 0x16, 0x03, ..] => Peer::Tls,
        _ => Peer::Unknown,
    }
}

/// Sends `hello` and classifies the answer with `is`.
async fn greet_peer(mut stream: TcpStream, hello: Vec<u8>, is: fn(&[u8]) -> Peer) -> Peer {
    let answered = async {
        stream.write_all(&hello).await?;
        // The first bytes of the answer identify the kind of server, so later bytes are not read.
        let mut said = vec![0; 64];
        let length = stream.read(&mut said).await?;
        said.truncate(length);
        Ok::<_, io::Error>(said)
    };
    match timeout(ANSWERING, answered).await {
        Ok(Ok(said)) => is(&said),
        Ok(Err(_)) => Peer::Closes,
        Err(_) => Peer::Silent,
    }
}

/// Returns the first message of a TLS connection.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut hello = Vec::new();
    let (Ok(config), Ok(name)) = (config, ServerName::try_from("localhost")) else { return hello };
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    if let Ok(mut connection) = ClientConnection::new(Arc::new(config), name) {
        // A write to a vector cannot fail.
        let _ = connection.write_tls(&mut hello);
    }
    hello
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Starts a server that answers the first request of each client with `says`, and then closes the connection.
    async fn listener(says: &'static [u8]) -> u16 {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.expect("the listener binds to a free port");
        let port = listener.local_addr().expect("the listener has a local address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 512]).await;
                    let _ = stream.write_all(says).await;
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn what_listens_is_named() {
        use ErrorKind::{Tls, Unreachable, WrongServer};
        use Protocol::{Postgres, Redis, RedisTls};

        let http = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        let alert = b"\x15\x03\x01\x00\x02\x02\x46";
        let redis = b"-ERR unknown command\r\n";
        for (says, wanted, kind, expected) in [
            (&http[..], Postgres, WrongServer, "not as a PostgreSQL server: it is an HTTP server"),
            (http, Redis, WrongServer, "not as a Redis server: it is an HTTP server"),
            (http, RedisTls, WrongServer, "not as a Redis server: it is an HTTP server"),
            (redis, Postgres, WrongServer, "not as a PostgreSQL server: it is a Redis server"),
            (redis, RedisTls, Tls, "answered without TLS: use redis:// instead of rediss://"),
            (b"N", Redis, WrongServer, "not as a Redis server: it is a PostgreSQL server"),
            (b"S", RedisTls, WrongServer, "not as a Redis server: it is a PostgreSQL server"),
            (alert, Redis, Tls, "only with TLS: use rediss:// instead of redis://"),
            (alert, Postgres, WrongServer, "not as a PostgreSQL server: it expects TLS"),
            (b"SSH-2.0-x\r\n", Redis, WrongServer, "is this a Redis server?"),
            (b"220 smtp\r\n", Postgres, WrongServer, "is this a PostgreSQL server?"),
            (b"", Redis, Unreachable, "closed the connection without an answer"),
        ] {
            let port = listener(says).await;
            let reason = explain_failure("127.0.0.1", port, wanted)
                .await
                .expect("the mismatch is explained");
            assert!(reason.said.contains(expected), "{says:?}: {reason}");
            assert!(reason.said.contains(&format!("127.0.0.1:{port}")), "{reason}");
            assert_eq!(reason.kind, kind, "{reason}");
        }
        for (says, wanted) in [(&redis[..], Redis), (b"S", Postgres), (alert, RedisTls)] {
            let port = listener(says).await;
            assert!(explain_failure("127.0.0.1", port, wanted).await.is_none(), "{wanted:?}");
        }
    }

    #[tokio::test]
    async fn where_nothing_listens_is_said() {
        let listener =
            TcpListener::bind(("127.0.0.1", 0)).await.expect("the listener binds to a free port");
        let port = listener.local_addr().expect("the listener has a local address").port();
        drop(listener);
        let reason = explain_failure("127.0.0.1", port, Protocol::Redis)
            .await
            .expect("the refused connection is explained");
        assert_eq!(reason.kind, ErrorKind::Unreachable);
        assert_eq!(reason.said, format!("nothing listens on 127.0.0.1:{port}: connection refused"));
        let reason = explain_failure("nowhere.invalid", 1, Protocol::Redis)
            .await
            .expect("the unknown host is explained");
        assert!(
            reason.said.starts_with("cannot resolve the host \"nowhere.invalid\": "),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn one_that_is_silent_is_given_up() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))
            .expect("the listener binds to a free port");
        let port = listener.local_addr().expect("the listener has a local address").port();
        // The operating system completes the TCP handshake of a connection, even if the server never accepts the
        // connection.
        let reason = explain_failure("127.0.0.1", port, Protocol::Postgres)
            .await
            .expect("the missing answer is explained");
        assert_eq!(reason.kind, ErrorKind::Unreachable);
        assert!(reason.said.ends_with("sends no answer: is this a PostgreSQL server?"), "{reason}");
    }
}
