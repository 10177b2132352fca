//! Serves connections within limits. Clients that are silent, slow or numerous therefore cannot use
//! up the file descriptors or the memory of the program.

use std::any::Any;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::serve::Listener;
use futures_util::{FutureExt, StreamExt, stream};
use http_body_util::BodyExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_io_timeout::TimeoutStream;

/// The time limit for the head of a request. The time starts when the previous request of the
/// connection ends. In tests, the limit is so long that it never expires.
const HEAD: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 10 });
/// The maximum time for which a write of a response waits for the client to read.
const STALL: Duration = Duration::from_secs(30);
/// The maximum size of the head of a request, in bytes. It is large enough for the longest key in a
/// query, in which each byte of the key can be encoded as four bytes.
const HEAD_BYTES: usize = 32 << 10;
/// The number of connections that are reserved for probes.
const RESERVED: usize = 8;
/// The time between two searches for a connection that can be closed. The server searches only
/// while the maximum number of connections is open.
const LOOK: Duration = Duration::from_millis(5);
/// The number of searches after which a new connection without a request counts as silent. A silent
/// connection can be closed.
const SILENT_LOOKS: u64 = 4;

/// Serves `router` on at most `most` concurrent connections, until `ended` is true. If `most`
/// connections are open, the server closes one of them for a new connection. It closes the oldest
/// silent connection first, and otherwise the oldest idle connection.
///
/// If all connections are busy, the new connection uses one of [`RESERVED`] additional places.
/// There, `probes` answers one request. Clients that occupy all connections therefore cannot block
/// the probes of an orchestrator. If the additional places are also taken, new connections wait in
/// the backlog of the operating system.
pub(crate) async fn serve<L: Listener<Addr: 'static>>(
    listener: L,
    router: Router,
    probes: Router,
    most: usize,
    ended: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    // After an error, `accept` logs it, waits for a second and tries again. The stream keeps the
    // future of `accept`, so the wait continues when another branch of the `select!` completes.
    let mut incoming = pin!(stream::unfold(listener, |mut listener| async move {
        Some((listener.accept().await, listener))
    }));
    let (mut all, mut reserved) = (Places::new(most), Places::new(RESERVED));
    let mut end = pin!(async { _ = ended.clone().wait_for(|&ended| ended).await }.fuse());
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let has_place = all.has_place();
        // Some connections in `all` may soon count as silent. The loop then waits for them, instead
        // of using a reserved place.
        let is_full = !has_place && (all.are_new() || !reserved.has_place());
        let (stream, client) = tokio::select! {
            // The end is checked first. The tasks are checked second, because a completed task may
            // free a place for the next connection.
            biased;
            () = &mut end => break,
            Some(_) = tasks.join_next() => continue,
            _ = look.tick(), if !has_place => {
                all.looks += 1;
                reserved.looks += 1;
                continue;
            }
            Some(accepted) = incoming.next(), if !is_full => accepted,
        };
        // `client` is `None` if the client is connected to a Unix socket.
        let client = (&client as &dyn Any).downcast_ref::<SocketAddr>().copied();
        let (places, router, keeps_alive) = match has_place {
            true => (&mut all, &router, true),
            false => (&mut reserved, &probes, false),
        };
        let connection = places.new_connection();
        tasks.spawn(connection.serve_requests(
            stream,
            client,
            router.clone(),
            keeps_alive,
            ended.clone(),
        ));
    }
    // Each task receives the same end from `ended`, and stops after its response.
    while tasks.join_next().await.is_some() {}
}

/// The open connections, the oldest first, and their maximum number.
struct Places {
    most: usize,
    connections: VecDeque<Arc<Connection>>,
    /// The number of searches for a connection that can be closed, since the start of the server.
    looks: u64,
}

impl Places {
    const fn new(most: usize) -> Self {
        Self { most, connections: VecDeque::new(), looks: 0 }
    }

    /// Returns true if a new connection can be accepted: a place is free, or a connection can be
    /// closed.
    fn has_place(&mut self) -> bool {
        // The task of a connection holds a second reference, and drops it when it stops. A
        // connection with one reference is therefore closed.
        self.connections.retain(|connection| Arc::strong_count(connection) > 1);
        self.connections.len() < self.most || self.find_replaceable().is_some()
    }

    /// Returns true if at least [`RESERVED`] connections, or all of them, are new. One of them may then
    /// soon count as silent.
    fn are_new(&self) -> bool {
        let new = |it: &&Arc<Connection>| !it.has_asked() && !self.is_silent(it);
        self.connections.iter().filter(new).count() >= self.most.min(RESERVED)
    }

    /// Returns true if the connection has sent no request although it had enough time.
    fn is_silent(&self, connection: &Connection) -> bool {
        !connection.has_asked() && self.looks - connection.looks >= SILENT_LOOKS
    }

    fn find_replaceable(&self) -> Option<usize> {
        // Silent connections are closed before idle connections, because the client of an idle
        // connection has already sent a request.
        let silent = self.connections.iter().position(|connection| self.is_silent(connection));
        silent.or_else(|| self.connections.iter().position(|connection| connection.is_idle()))
    }

    /// Returns a new connection. If no place is free, closes another connection first.
    fn new_connection(&mut self) -> Arc<Connection> {
        if self.connections.len() >= self.most
            && let Some(other) = self.find_replaceable().and_then(|at| self.connections.remove(at))
        {
            // `notify_one` stores a permit. The task of the connection is therefore notified even
            // if it does not wait yet.
            other.close.notify_one();
        }
        let connection = Arc::new(Connection {
            looks: self.looks,
            asked: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            close: Notify::new(),
        });
        self.connections.push_back(Arc::clone(&connection));
        connection
    }
}

struct Connection {
    /// The value of [`Places::looks`] when the connection was accepted.
    looks: u64,
    /// True after the client has sent the first request.
    asked: AtomicBool,
    /// The number of requests whose responses have not been sent completely.
    requests: AtomicUsize,
    close: Notify,
}

impl Connection {
    fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns true if the client has sent requests, and all of them were answered.
    fn is_idle(&self) -> bool {
        self.has_asked() && self.requests.load(Ordering::Relaxed) == 0
    }

    async fn serve_requests(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        client: Option<SocketAddr>,
        router: Router,
        keeps_alive: bool,
        mut ended: watch::Receiver<bool>,
    ) {
        let mut stream = TimeoutStream::new(stream);
        // Without this timeout, a client that does not read would keep the response in memory
        // forever.
        stream.set_write_timeout(Some(STALL));
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            // The request is counted when its head has arrived, so that the connection is busy
            // before the router receives the request.
            let answered = InFlight::begin_request(&self);
            let mut request = request.map(Body::new);
            if let Some(client) = client {
                request.extensions_mut().insert(ConnectInfo(client));
            }
            let response = tower_service::Service::call(&mut router.clone(), request);
            async move {
                let response = response.await?;
                // The closure owns the count of the request, and is part of the body. The request
                // therefore ends when the body is dropped.
                let with_request = move |error: axum::Error| {
                    let _in_flight = &answered;
                    error
                };
                Ok::<_, Infallible>(response.map(|body| body.map_err(with_request)))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .keep_alive(keeps_alive)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut connection = pin!(connection);
        tokio::select! {
            // The branches are polled in this order. A request that has already arrived is
            // therefore read first, and then answered in spite of `close`.
            biased;
            // The result is ignored, because an error of a client needs no report.
            _ = &mut connection => return,
            () = self.close.notified() => if self.requests.load(Ordering::Relaxed) == 0 { return },
            _ = ended.wait_for(|&ended| ended) => {}
        }
        connection.as_mut().graceful_shutdown();
        _ = connection.await;
    }
}

/// Counts a request from its head to the end of its response.
struct InFlight(Arc<Connection>);

impl InFlight {
    fn begin_request(connection: &Arc<Connection>) -> Self {
        // `Relaxed` suffices, because the values only decide which connection is closed.
        connection.asked.store(true, Ordering::Relaxed);
        connection.requests.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connection))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::body::Bytes;
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const LARGE: usize = 64 << 20;

    /// In these tests, the clock of tokio is paused. It advances when all tasks wait.
    async fn connect(most: usize) -> (TcpStream, watch::Sender<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let end = serve_on(listener, most);
        (TcpStream::connect(address).await.unwrap(), end)
    }

    fn serve_on(listener: TcpListener, most: usize) -> watch::Sender<bool> {
        let router = Router::new().route("/", get(async || "short")).route(
            "/large",
            get(async || {
                let part = Bytes::from_static(&[b'x'; 1 << 16]);
                let parts = std::iter::repeat_n(part, LARGE >> 16).map(Ok::<_, io::Error>);
                Body::from_stream(futures_util::stream::iter(parts))
            }),
        );
        let probes = Router::new().route("/probe", get(async || "alive"));
        let probes = probes.fallback(async || (StatusCode::SERVICE_UNAVAILABLE, "busy"));
        let (end, ended) = watch::channel(false);
        tokio::spawn(serve(listener, router.merge(probes.clone()), probes, most, ended));
        end
    }

    async fn send(address: SocketAddr, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        client
    }

    /// Sends nothing. Returns the status and the last line of the response. The status is `None` if
    /// the server closed the connection without a response.
    async fn answer(mut client: TcpStream) -> (Option<u16>, String) {
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status, answer.lines().last().unwrap_or_default().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_silent_or_stops_half_way_is_left() {
        for sent in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\nX: ", "GET / HTTP/1.1\r\n\r\n"] {
            let (mut client, _end) = connect(1).await;
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.ends_with(b"short"), sent.ends_with("\r\n\r\n"), "{sent:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_left() {
        let (mut client, _end) = connect(1).await;
        client.write_all(b"GET /large HTTP/1.1\r\n\r\n").await.unwrap();
        // The response is larger than the buffers of the operating system, so the server must wait
        // for the client.
        tokio::time::sleep(STALL * 10).await;
        let mut answer = Vec::new();
        // The result is ignored, because the server may reset the connection.
        let _ = client.read_to_end(&mut answer).await;
        assert!((1..LARGE).contains(&answer.len()), "{}", answer.len());
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (mut client, _end) = connect(1).await;
        let head = format!("GET /{} HTTP/1.1\r\n", "x".repeat(HEAD_BYTES));
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test]
    async fn connections_that_ask_for_nothing_make_way() {
        let (first, _end) = connect(2).await;
        let address = first.peer_addr().unwrap();
        let mut silent = vec![first];
        for _ in 0..50 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert_eq!(answer(send(address, "/").await).await, (Some(200), "short".to_owned()));
        for mut gone in silent.drain(..50) {
            assert_eq!(gone.read(&mut [0]).await.unwrap_or_default(), 0);
        }
    }

    #[tokio::test]
    async fn probes_are_answered_while_other_clients_have_all_connections() {
        let (mut reader, _end) = connect(2).await;
        let address = reader.peer_addr().unwrap();
        // The two connections are busy, because their responses are not complete.
        reader.write_all(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        reader.read_exact(&mut [0; 1]).await.unwrap();
        let mut other = send(address, "/large").await;
        other.read_exact(&mut [0; 1]).await.unwrap();
        // These connections send no request. Each of them occupies a reserved place until a later
        // connection replaces it.
        let mut silent = Vec::new();
        for _ in 0..2 * RESERVED {
            silent.push(TcpStream::connect(address).await.unwrap());
            assert_eq!(
                answer(send(address, "/probe").await).await,
                (Some(200), "alive".to_owned())
            );
            assert_eq!(answer(send(address, "/").await).await, (Some(503), "busy".to_owned()));
        }
        // The busy connections were not closed: the first response arrives completely.
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() > LARGE);
    }

    #[tokio::test]
    async fn a_silent_connection_beside_a_busy_one_makes_way() {
        let (mut reader, _end) = connect(2).await;
        let address = reader.peer_addr().unwrap();
        reader.write_all(b"GET /large HTTP/1.1\r\n\r\n").await.unwrap();
        reader.read_exact(&mut [0; 1]).await.unwrap();
        let _silent = TcpStream::connect(address).await.unwrap();
        // A reserved place answers with 503 until the silent connection can be closed.
        while answer(send(address, "/").await).await.0 != Some(200) {}
    }

    #[tokio::test]
    async fn of_many_clients_that_come_at_once_none_is_left_without_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for n in 0..120 {
            let path = if n % 10 == 5 { "/probe" } else { "/large" };
            clients.push((path, send(address, path).await));
        }
        let _end = serve_on(listener, 2);
        for (path, mut client) in clients {
            if path == "/probe" {
                assert_eq!(answer(client).await, (Some(200), "alive".to_owned()));
            } else {
                let mut status = [0; 12];
                client.read_exact(&mut status).await.unwrap();
                let status = std::str::from_utf8(&status).unwrap();
                assert!(["HTTP/1.1 200", "HTTP/1.1 503"].contains(&status), "{status}");
            }
        }
    }
}
