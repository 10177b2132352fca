//! The connections to a server. A worker keeps its connections open between requests.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::args::values::ServerUrl;
use crate::exit::{Exit, Refusal};
use crate::tls::{Connector, hint_for};

/// The time after which an idle connection is not used again. It is shorter than the 10 seconds after which the server
/// closes an idle connection.
const IDLE: Duration = Duration::from_secs(5);

/// The reason why a request got no usable answer.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) why: String,
    pub(crate) kind: FaultKind,
    /// The exit code of a subcommand that stops because of this fault.
    pub(crate) exit: Exit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The request was not sent.
    Unreachable,
    /// The connection broke after the request was sent. The server may have acted on the request.
    NoAnswer,
    /// The server is busy or stopping. Contains the time after which the client may try again, if the server sent it.
    Busy(Option<Duration>),
    /// The client did not accept the certificate of the server.
    Untrusted,
    /// The server refused the request, and would refuse it again.
    Refused,
}

impl FaultKind {
    /// Returns true if the same request may succeed later.
    pub(crate) const fn is_temporary(self) -> bool {
        !matches!(self, Self::Untrusted | Self::Refused)
    }
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, why: impl ToString) -> Self {
        Self { why: why.to_string(), kind, exit: Exit::Failure }
    }

    pub(crate) fn refused(why: impl ToString) -> Self {
        Self::new(FaultKind::Refused, why)
    }

    pub(crate) fn late() -> Self {
        Self::new(FaultKind::NoAnswer, "no answer in time")
    }
}

impl From<Fault> for Refusal {
    fn from(Fault { why, exit, .. }: Fault) -> Self {
        Self { exit, message: why }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The time after which the client may try again, if the server sent it.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

/// The process at the other end of a connection, as far as this process can identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// An unknown process at this address, over a connection without encryption.
    Network(SocketAddr),
    /// A process whose certificate this process has verified.
    Verified,
    /// A process on this machine that runs as the user with this ID.
    User(u32),
}

/// An idle connection.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    peer: Peer,
    since: Instant,
}

/// The connections to one server.
pub(super) struct Connections {
    url: ServerUrl,
    tls: Option<Connector>,
    /// The idle connections. `None` if each connection is used for one request only.
    idle: Option<Mutex<Vec<Connection>>>,
}

impl Connections {
    pub(super) const fn new(url: ServerUrl, tls: Option<Connector>) -> Self {
        Self { url, tls, idle: None }
    }

    /// Makes the client keep its connections open between requests.
    pub(super) fn keep_open(&mut self) {
        self.idle = Some(Mutex::default());
    }

    pub(super) const fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Sends a request if `check` accepts the process at the other end. `most` is the maximum size of the answer, in
    /// bytes.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        check: impl Fn(Peer) -> Result<(), String>,
        most: usize,
    ) -> Result<Answer, Fault> {
        loop {
            let (mut connection, is_new) = match self.take_idle().await {
                Some(connection) => (connection, false),
                None => (self.connect().await?, true),
            };
            check(connection.peer).map_err(Fault::refused)?;
            match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    let answer = read_answer(response, most).await?;
                    self.put_back(connection);
                    return Ok(answer);
                }
                Err(mut error) => match error.take_message() {
                    // The server had closed the idle connection before the request was sent, so the request is sent
                    // again.
                    Some(unsent) if !is_new => request = unsent,
                    unsent => {
                        let error = error.into_error();
                        let is_plain = matches!(connection.peer, Peer::Network(_));
                        // The first answer of a server with TLS is an alert, which is not HTTP.
                        if is_new && is_plain && error.is_parse() {
                            let why = format!("{error}; the server may have TLS: use https://");
                            return Err(Fault::refused(why));
                        }
                        let kind = match unsent {
                            Some(_) => FaultKind::Unreachable,
                            None => FaultKind::NoAnswer,
                        };
                        return Err(Fault::new(kind, error));
                    }
                },
            }
        }
    }

    /// Returns an idle connection that can still be used.
    async fn take_idle(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle.as_ref()?.lock().pop()?;
            if connection.since.elapsed() < IDLE && connection.sender.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    fn put_back(&self, connection: Connection) {
        if let Some(idle) = &self.idle {
            idle.lock().push(Connection { since: Instant::now(), ..connection });
        }
    }

    async fn connect(&self) -> Result<Connection, Fault> {
        let unreachable = |error| Fault::new(FaultKind::Unreachable, error);
        match &self.url {
            ServerUrl::Tcp { authority, .. } => {
                let default = if self.tls.is_some() { "443" } else { "80" };
                let is_port =
                    |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                let (host, port) = match authority.rsplit_once(':') {
                    Some((host, port)) if is_port(port) => (host, port),
                    _ => (&**authority, default),
                };
                let stream = TcpStream::connect(format!("{host}:{port}")).await;
                let stream = stream.map_err(unreachable)?;
                let Some(tls) = &self.tls else {
                    let peer = Peer::Network(stream.peer_addr().map_err(unreachable)?);
                    return begin_http(stream, peer).await;
                };
                let stream = tls.connect(host.trim_matches(['[', ']']), stream).await;
                let stream = stream.map_err(|error| match hint_for(&error) {
                    Some(hint) => Fault::new(FaultKind::Untrusted, format!("{error}{hint}")),
                    None => unreachable(error),
                })?;
                begin_http(stream, Peer::Verified).await
            }
            ServerUrl::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                // The user ID comes from the connected process. The file at the path may be replaced after the
                // connection, so its owner would prove nothing.
                let peer = Peer::User(stream.peer_cred().map_err(unreachable)?.uid());
                begin_http(stream, peer).await
            }
        }
    }
}

async fn begin_http(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: Peer,
) -> Result<Connection, Fault> {
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|error| Fault::new(FaultKind::Unreachable, error))?;
    tokio::spawn(connection);
    Ok(Connection { sender, peer, since: Instant::now() })
}

async fn read_answer(response: Response<Incoming>, most: usize) -> Result<Answer, Fault> {
    let status = response.status();
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = seconds.and_then(|value| value.parse().ok()).map(Duration::from_secs);
    let body = Limited::new(response.into_body(), most).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Fault::refused(format!("the answer is over {} MiB; check the URL", most >> 20)),
        false => Fault::new(FaultKind::NoAnswer, error),
    })?;
    Ok(Answer { status, retry_after, body: body.to_bytes() })
}
