//! Prevents a connection from sending the password to a server that has not proved its identity.
//!
//! A server may ask for the password in clear text, or for an MD5 hash with which an eavesdropper can also log in. The
//! driver answers both requests. Therefore, each connection without verified TLS is wrapped in a [`Guarded`] stream.
//! Until the server has authenticated the client, the stream inspects the server's messages. If it finds such a
//! request, the connection fails before the driver receives the request. SCRAM is permitted, because it reveals nothing
//! that the server does not already know.
//!
//! The driver does not permit a wrapper around a connection without TLS. Therefore, the driver is configured to start
//! TLS immediately, and [`negotiate_tls`] negotiates the `sslmode` of the address.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::either::Either;

use crate::engine::peer::SSL_REQUEST;
use crate::types::error::with_sources;

type Rustls<S> = <MakeRustlsConnect as MakeTlsConnect<S>>::TlsConnect;
type Encrypted<S> = <MakeRustlsConnect as MakeTlsConnect<S>>::Stream;

/// The TLS options of the address. This program applies them itself, and does not pass them to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Negotiation {
    mode: SslMode,
    way: SslNegotiation,
}

impl Negotiation {
    /// Removes the TLS options from the driver's configuration, and returns them.
    pub(super) fn take(config: &mut Config) -> Self {
        let taken = Self { mode: config.get_ssl_mode(), way: config.get_ssl_negotiation() };
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        taken
    }
}

/// Returns true if no server of the configuration is reached over a network, but only by a Unix socket or the loopback
/// interface. Then only programs on this machine could eavesdrop on the connection or impersonate the server.
pub(super) fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    let is_loopback = |host: &str| {
        let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
        address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
    };
    let hosts = config.get_hosts();
    (0..hosts.len().max(addresses.len())).all(|n| match (addresses.get(n), hosts.get(n)) {
        // If `hostaddr` is set, the host name only serves to verify the certificate.
        (Some(address), _) => address.to_canonical().is_loopback(),
        (None, Some(Host::Tcp(host))) => is_loopback(host),
        (None, Some(Host::Unix(_))) => true,
        (None, None) => false,
    })
}

/// Makes connections for the driver.
#[derive(Clone)]
pub(super) struct Connector {
    tls: MakeRustlsConnect,
    /// The TLS options, or `None` if connections are not guarded.
    negotiation: Option<Negotiation>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("negotiation", &self.negotiation).finish_non_exhaustive()
    }
}

impl Connector {
    pub(super) const fn new(tls: MakeRustlsConnect, negotiation: Option<Negotiation>) -> Self {
        Self { tls, negotiation }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Connector {
    type Stream = Guarded<S>;
    type TlsConnect = Connect<S>;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Connect<S>> {
        let tls = MakeTlsConnect::<S>::make_tls_connect(&mut self.tls, domain);
        let tls = tls.map_err(io::Error::other)?;
        Ok(Connect { tls, server: domain.to_owned(), negotiation: self.negotiation })
    }
}

/// Makes one connection for the driver.
pub(super) struct Connect<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    tls: Rustls<S>,
    server: String,
    negotiation: Option<Negotiation>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect<S> {
    type Stream = Guarded<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Guarded<S>>> + Send>>;

    fn connect(self, mut stream: S) -> Self::Future {
        Box::pin(async move {
            let Self { tls, server, negotiation } = self;
            let is_encrypted = match negotiation {
                Some(negotiation) => negotiate_tls(&mut stream, negotiation).await?,
                // Without `negotiation`, the driver has already negotiated TLS.
                None => true,
            };
            let inner = if is_encrypted {
                Either::Right(tls.connect(stream).await?)
            } else {
                Either::Left(stream)
            };
            let filter = negotiation.map(|_| Filter::new(server, is_encrypted));
            Ok(Guarded { inner, filter })
        })
    }
}

/// Negotiates whether the connection uses TLS. Returns true if the TLS handshake follows.
async fn negotiate_tls<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    Negotiation { mode, way }: Negotiation,
) -> io::Result<bool> {
    if mode == SslMode::Disable {
        return Ok(false);
    }
    if way == SslNegotiation::Direct {
        return Ok(true);
    }
    stream.write_all(&SSL_REQUEST).await?;
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    match (answer, mode) {
        ([b'S'], _) => Ok(true),
        (_, SslMode::Prefer) => Ok(false),
        // An error of the kind `InvalidData` is reported as a TLS error.
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not support TLS")),
    }
}

/// A connection to a server. The stream inspects the server's messages until the client is authenticated.
pub(super) struct Guarded<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    inner: Either<S, Encrypted<S>>,
    /// Parses the messages. It is `None` after the client is authenticated.
    filter: Option<Filter>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsStream for Guarded<S> {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.inner {
            Either::Left(_) => ChannelBinding::none(),
            Either::Right(stream) => stream.channel_binding(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { inner, filter } = self.get_mut();
        let Some(reading) = filter else { return Pin::new(inner).poll_read(cx, buf) };
        // Without space in the buffer, the read would return no bytes, and would look like the end of the stream.
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            let count = reading.give_bytes(buf);
            if count > 0 {
                return Poll::Ready(Ok(()));
            }
            if reading.is_over() {
                *filter = None;
                return Pin::new(inner).poll_read(cx, buf);
            }
            // The bytes are read into a separate buffer, because the driver must not receive unchecked bytes.
            let mut more = [0; 1024];
            let mut more = ReadBuf::new(&mut more);
            ready!(Pin::new(&mut *inner).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                // The server has closed the connection.
                return Poll::Ready(Ok(()));
            }
            reading.take_bytes(more.filled())?;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// Parses the messages that a server sends before the client is authenticated. Each message consists of a letter, a
/// length that does not include the letter, and the content. The content of an authentication message begins with a
/// number.
struct Filter {
    server: String,
    is_encrypted: bool,
    /// The received bytes that the driver has not received yet.
    held: Vec<u8>,
    /// The number of bytes at the start of `held` that belong to permitted messages. The connection may not have
    /// received all of these bytes yet.
    free: usize,
    /// True after the server has authenticated the client. All later bytes are permitted.
    is_in: bool,
}

const HEADER: usize = 5;
/// The length, in bytes, of the header and the number of an authentication message.
const AUTHENTICATION: usize = 9;

impl Filter {
    const fn new(server: String, is_encrypted: bool) -> Self {
        Self { server, is_encrypted, held: Vec::new(), free: 0, is_in: false }
    }

    /// Returns true if no byte remains to be parsed or passed to the driver.
    const fn is_over(&self) -> bool {
        self.is_in && self.held.is_empty()
    }

    fn take_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.held.extend_from_slice(bytes);
        while !self.is_in
            && let Some(message) = self.held.get(self.free..)
            && let Some((&[letter, a, b, c, d], rest)) = message.split_first_chunk::<HEADER>()
        {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if letter == b'R' {
                let Some((&number, _)) = rest.split_first_chunk::<{ AUTHENTICATION - HEADER }>()
                else {
                    break;
                };
                match u32::from_be_bytes(number) {
                    // After the authentication, the server sends results of statements, which can contain any bytes.
                    0 => self.is_in = true,
                    3 => return Err(self.refuse_request("the password in clear text")),
                    5 => return Err(self.refuse_request("an MD5 hash of the password")),
                    _ => {}
                }
            }
            self.free = self.free.saturating_add(length.max(4).saturating_add(1));
        }
        Ok(())
    }

    /// Passes permitted bytes to the driver. Returns the number of these bytes.
    fn give_bytes(&mut self, to: &mut ReadBuf<'_>) -> usize {
        let free = if self.is_in { self.held.len() } else { self.free.min(self.held.len()) };
        let count = free.min(to.remaining());
        to.put_slice(&self.held[..count]);
        self.held.drain(..count);
        self.free = self.free.saturating_sub(count);
        count
    }

    fn refuse_request(&self, request: &'static str) -> io::Error {
        let Self { server, is_encrypted, .. } = self;
        let refusal = Refusal { server: server.clone(), request, is_encrypted: *is_encrypted };
        io::Error::new(io::ErrorKind::PermissionDenied, refusal)
    }
}

/// The error about a server that requests the password in a form that reveals it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{server} asks for {request}, and {}: no password was sent; use sslmode=verify-full \
     (with sslrootcert=FILE for an authority of your own), or configure \
     scram-sha-256 on the server",
    if *is_encrypted {
        "TLS has not verified the identity of the server"
    } else {
        "the connection is not encrypted"
    }
)]
pub(super) struct Refusal {
    server: String,
    request: &'static str,
    is_encrypted: bool,
}

/// Returns the refusal among the sources of an error, or `None` if there is none.
pub(super) fn find_refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Refusal> {
    with_sources(error).find_map(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        error.downcast_ref().or_else(|| inner?.downcast_ref())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(letter: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len() + 4).expect("the message is short").to_be_bytes();
        [&[letter][..], &length, content].concat()
    }

    fn authentication(number: u32, rest: &[u8]) -> Vec<u8> {
        message(b'R', &[&number.to_be_bytes()[..], rest].concat())
    }

    /// Returns the bytes that the filter permits. The second value is true if the filter has refused a request.
    fn passed(all: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let mut filter = Filter::new("db".to_owned(), false);
        let mut passed = Vec::new();
        for part in all.chunks(piece) {
            if filter.take_bytes(part).is_err() {
                return (passed, true);
            }
            loop {
                let mut some = [0; 3];
                let mut some = ReadBuf::new(&mut some);
                if filter.give_bytes(&mut some) == 0 {
                    break;
                }
                passed.extend_from_slice(some.filled());
            }
        }
        (passed, false)
    }

    #[test]
    fn no_request_for_a_password_passes_in_whatever_pieces_it_comes() {
        let notice = message(b'N', b"SNOTICE\0\0");
        let scram = authentication(10, b"SCRAM-SHA-256\0\0");
        let let_in = authentication(0, b"");
        // After the authentication, bytes that look like a request are part of the data.
        let row = authentication(3, b"");
        for request in [authentication(3, b""), authentication(5, b"salt")] {
            for before in [vec![], notice.clone(), scram.clone(), [&notice[..], &scram].concat()] {
                for piece in 1..40 {
                    let all = [&before[..], &request, b"more"].concat();
                    let (passed, is_refused) = passed(&all, piece);
                    assert!(is_refused, "{piece} at once");
                    assert!(before.starts_with(&passed), "{piece} at once");
                }
            }
        }
        for piece in 1..40 {
            let all = [&notice[..], &scram, &let_in, &row, b"\0\0"].concat();
            assert_eq!(passed(&all, piece), (all.clone(), false), "{piece} at once");
        }
        // The lengths 0 and 3 are invalid, and the last length is greater than the data.
        for length in [0, 3, u32::MAX] {
            let odd = [&b"N"[..], &length.to_be_bytes(), &authentication(3, b"")].concat();
            let (passed, is_refused) = passed(&odd, 4);
            assert!(is_refused || passed == odd, "{length}");
        }
    }

    #[test]
    fn loopback_and_unix_sockets_are_local_and_nothing_else() {
        for (url, expected) in [
            ("postgres://127.0.0.1/d", true),
            ("postgres://127.8.9.1/d", true),
            ("postgres://[::1]/d", true),
            ("postgres://[::ffff:127.0.0.1]/d", true),
            ("postgres://localhost/d", true),
            ("postgres://LOCALHOST/d", true),
            ("postgres://%2Frun%2Fpostgresql/d", true),
            ("postgres://db/d?hostaddr=127.0.0.1", true),
            ("postgres://localhost,127.0.0.1/d", true),
            ("postgres://localhost/d?hostaddr=192.0.2.1", false),
            ("postgres://localhost,db/d", false),
            ("postgres://localhost.example/d", false),
            ("postgres://127.0.0.1.example/d", false),
            ("postgres://192.0.2.1/d", false),
            ("postgres://0.0.0.0/d", false),
            ("postgres://[2001:db8::1]/d", false),
            ("postgres://db/d", false),
        ] {
            let config: Config = url.parse().expect(url);
            assert_eq!(is_local(&config), expected, "{url}");
        }
    }
}
