//! Proxies that stand for a network between a client and the API server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

/// A network between a client and the API server that a test can disturb.
///
/// The proxy forwards bytes, so that TLS is unaffected. Clients use the proxy with
/// [`Access::through`](crate::Access::through). The proxy runs on the runtime on which it was
/// created. When the proxy is dropped, its connections are closed.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    connections: TaskTracker,
    accepting: AbortHandle,
    received: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
struct State {
    /// The number of cuts. Connections that are older than the last cut are closed.
    cuts: u64,
    down: bool,
    frozen: bool,
    delay: Duration,
}

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let bound = async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) =
            bound.await.unwrap_or_else(|err: std::io::Error| panic!("a proxy: {err}"));
        let state = State { cuts: 0, down: false, frozen: false, delay: Duration::ZERO };
        let state = watch::Sender::new(state);
        let connections = TaskTracker::new();
        let received = Arc::default();
        let counter = Arc::clone(&received);
        let accepting = accept(listener, server, state.clone(), connections.clone(), counter);
        let accepting = tokio::spawn(accepting).abort_handle();
        Self { address, state, connections, accepting, received }
    }

    /// Returns the address on which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number of bytes that the clients have received, including the overhead of TLS.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Cuts all open connections. New connections are accepted.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Cuts all connections now, and again at each interval, until the returned value is dropped.
    pub fn cut_every(&self, interval: Duration) -> Cutting {
        let state = self.state.clone();
        let cutting = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            loop {
                ticks.tick().await;
                state.send_modify(|state| state.cuts += 1);
            }
        });
        Cutting(cutting.abort_handle())
    }

    /// Cuts all connections, and immediately closes each new connection, until [`up`](Self::up).
    pub fn down(&self) {
        self.state.send_modify(|state| {
            state.cuts += 1;
            state.down = true;
        });
    }

    /// Accepts connections again, after [`down`](Self::down).
    pub fn up(&self) {
        self.state.send_modify(|state| state.down = false);
    }

    /// Stops forwarding in both directions until [`thaw`](Self::thaw). Connections stay open, and
    /// new connections are accepted. Data that is sent in the meantime arrives later.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.frozen = true);
    }

    /// Resumes forwarding after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.state.send_modify(|state| state.frozen = false);
    }

    /// Delays each piece of up to 16 KiB by this time, in both directions, one after the other.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// Cuts all connections repeatedly until this value is dropped: see [`Proxy::cut_every`].
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub struct Cutting(AbortHandle);

impl Drop for Cutting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    state: watch::Sender<State>,
    connections: TaskTracker,
    received: Arc<AtomicU64>,
) {
    loop {
        // The process may briefly be out of file descriptors.
        let Ok((client, _)) = listener.accept().await else { continue };
        let state = state.subscribe();
        let State { cuts, down, .. } = *state.borrow();
        if !down {
            connections.spawn(connection(client, server, cuts, state, Arc::clone(&received)));
        }
    }
}

/// Forwards a connection until one side closes it, or until `cuts` increases.
async fn connection(
    client: TcpStream,
    server: SocketAddr,
    cuts: u64,
    mut state: watch::Receiver<State>,
    received: Arc<AtomicU64>,
) {
    let copies = (state.clone(), state.clone());
    let passing = async {
        let server = TcpStream::connect(server).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            pass(from_client, to_server, copies.0, None),
            pass(from_server, to_client, copies.1, Some(&received)),
        )
    };
    // Both sides are closed, whichever branch completes first.
    tokio::select! {
        _ = state.wait_for(|state| state.cuts != cuts) => {}
        _ = passing => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    count: Option<&AtomicU64>,
) -> std::io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        let delay = state.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        // The wait fails if the proxy has been dropped.
        let thawed = state.wait_for(|state| !state.frozen).await;
        drop(thawed.map_err(std::io::Error::other)?);
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..length]).await?;
        if let Some(count) = count {
            count.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}
