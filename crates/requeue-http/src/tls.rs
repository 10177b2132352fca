//! Encrypts the connections of a listener with TLS.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// A listener that encrypts its connections with TLS. It can be passed to
/// [`Site::serve`](crate::Site::serve).
///
/// A slow handshake delays no other connection. The time limit for the head of a request
/// includes the handshake.
///
/// # Examples
///
/// ```no_run
/// use std::sync::Arc;
/// use requeue::Queue;
/// use requeue_http::{Site, TlsListener};
/// use rustls::ServerConfig;
/// use rustls::pki_types::pem::PemObject;
/// use rustls::pki_types::{CertificateDer, PrivateKeyDer};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let chain = CertificateDer::pem_file_iter("server.crt")?.collect::<Result<_, _>>()?;
/// let key = PrivateKeyDer::from_pem_file("server.key")?;
/// let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
/// let site = Site::builder(Queue::<String>::new()).host("queue.example.org").build();
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:8443").await?;
/// site.serve(TlsListener::new(listener, Arc::new(config))).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub struct TlsListener<L> {
    listener: L,
    acceptor: TlsAcceptor,
}

impl<L> TlsListener<L> {
    /// Creates a listener that encrypts the connections of `listener`.
    ///
    /// The site serves only HTTP/1.1. `config` must therefore not list other protocols for
    /// ALPN, because a client may choose one of them.
    pub fn new(listener: L, config: Arc<ServerConfig>) -> Self {
        Self { listener, acceptor: config.into() }
    }
}

impl<L> fmt::Debug for TlsListener<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener").finish_non_exhaustive()
    }
}

impl<L: Listener> Listener for TlsListener<L> {
    type Io = TlsConnection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = self.listener.accept().await;
        (TlsConnection { state: State::Handshake(Box::new(self.acceptor.accept(stream))) }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection of a [`TlsListener`]. The handshake begins at the first read or write.
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub struct TlsConnection<S> {
    state: State<S>,
}

enum State<S> {
    Handshake(Box<Accept<S>>),
    Open(Box<TlsStream<S>>),
    /// The handshake failed, so the connection cannot be used.
    Closed,
}

impl<S> fmt::Debug for TlsConnection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnection").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsConnection<S> {
    /// Polls the handshake until it is complete. Returns the encrypted stream.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<S>>>> {
        if let State::Handshake(accept) = &mut self.state {
            match ready!(Pin::new(accept).poll(cx)) {
                Ok(stream) => self.state = State::Open(Box::new(stream)),
                Err(error) => {
                    self.state = State::Closed;
                    return Poll::Ready(Err(error));
                }
            }
        }
        match &mut self.state {
            State::Open(stream) => Poll::Ready(Ok(Pin::new(stream))),
            State::Handshake(_) | State::Closed => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsConnection<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_open(cx))?.poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsConnection<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_open(cx))?.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_open(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().state {
            State::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            // An incomplete handshake needs no shutdown, because it ends when the connection
            // is dropped.
            State::Handshake(_) | State::Closed => Poll::Ready(Ok(())),
        }
    }
}
