//! The HTTP client of `--server`. It talks to a process with `--serve-admin`, in place of a store.

pub(crate) mod claims;
pub(crate) mod connections;

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use requeue_http::api::{Failure, KeyPage, NOT_IN_QUEUE, NamedKey, SEVERAL_QUEUES, Summary};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

use self::connections::{Answer, Connections, Fault, FaultKind, Peer};
use crate::args::values::ServerUrl;
use crate::exit::{Exit, Refusal, complain};
use crate::key::escaped;
use crate::tls::Connector;
use crate::traces::own_headers;

/// The time limit of a request. A request that changes all keys of a large queue can take minutes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The maximum size of an answer, in bytes. A page contains 256 keys of up to 4 KiB, with their errors.
const ANSWER: usize = 32 << 20;

/// The maximum size of a recording, in bytes. As text, a recording takes about three times the memory of
/// `--record-events`, in addition to the names of its keys.
const RECORDING: usize = 1 << 30;

/// The error message for an answer that cannot be parsed.
pub(crate) const WRONG_ANSWER: &str =
    "the answer is not that of this version of requeue; check the URL";

/// The client of one server, with the token for it.
pub(crate) struct Server {
    connections: Connections,
    token: Option<String>,
    /// The name of the operator and the note. Set if the server must record the requests as actions.
    operator: Option<[String; 2]>,
    /// The name that the queue must have. A request to a server with several queues must name one.
    queue: Option<String>,
    found: OnceCell<Found>,
    /// True if the user was warned that the token is sent without encryption.
    warned: AtomicBool,
}

/// The queue that the client has found at a server.
pub(crate) struct Found {
    pub(crate) name: String,
    /// The part of the API's paths that names the queue. Empty for a process with one queue.
    path: String,
    /// True if the server has the queue in its memory, not in a store.
    is_in_memory: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is left out, because it is secret.
        f.debug_struct("Server").field("url", self.connections.url()).finish_non_exhaustive()
    }
}

impl Server {
    /// `tls` encrypts the connections. It must be set if the address begins with https.
    pub(crate) fn new(
        url: ServerUrl,
        token: Option<String>,
        queue: Option<&str>,
        tls: Option<Connector>,
    ) -> Self {
        let (connections, found) = (Connections::new(url, tls), OnceCell::new());
        let queue = queue.map(str::to_owned);
        Self { connections, token, operator: None, queue, found, warned: AtomicBool::new(false) }
    }

    /// Adds the operator and the note to each request that changes the queue.
    pub(crate) fn acting_for(self, by: &str, note: &str) -> Self {
        Self { operator: Some([by, note].map(str::to_owned)), ..self }
    }

    /// Sends a GET request, and returns the parsed answer.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &[u8])],
    ) -> Result<T, Refusal> {
        let answer = self.send_request(Method::GET, &request_target(path, query), None).await;
        self.or_refusal(answer.and_then(|answer| read_answer(&answer)))
    }

    /// Returns the recorded events of the queue, as text.
    pub(crate) async fn get_recording(
        &self,
        key: Option<&[u8]>,
        hash_keys: bool,
    ) -> Result<String, Refusal> {
        let mut query = Vec::from_iter(key.map(|key| ("key", key)));
        query.extend(hash_keys.then_some(("hash_keys", &b"true"[..])));
        let Found { path, .. } = self.find_queue().await?;
        let target = format!("{path}{}", request_target("recording", &query));
        let answer = self.exchange(Method::GET, &target, None, RECORDING).await;
        let answer = self.or_refusal(answer)?;
        let text = String::from_utf8(self.or_refusal(check_status(&answer))?.to_vec());
        text.map_err(|_| self.refusal(WRONG_ANSWER))
    }

    /// Returns a key with its past. Returns `None` if the key is not in the queue.
    pub(crate) async fn find_key(&self, key: &[u8]) -> Result<Option<KeyPage>, Refusal> {
        let target = request_target("key", &[("key", key)]);
        let answer = self.or_refusal(self.send_request(Method::GET, &target, None).await)?;
        let is_missing = answer.status == StatusCode::NOT_FOUND
            && parse_failure(&answer.body).is_some_and(|failure| failure.error == NOT_IN_QUEUE);
        if is_missing { Ok(None) } else { self.or_refusal(read_answer(&answer)).map(Some) }
    }

    /// Returns an error if the user gave no token.
    pub(crate) fn check_token(&self) -> Result<(), Refusal> {
        match &self.token {
            Some(_) => Ok(()),
            None => Err(Refusal::usage(
                "no token for --server; pass --token-file FILE, or set REQUEUE_TOKEN",
            )),
        }
    }

    /// Sends a request that changes the queue, and returns the parsed answer.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Refusal> {
        self.check_token()?;
        // The keys of all maps are strings, so the serialization does not fail.
        let mut body = serde_json::to_value(body).unwrap_or_default();
        if let (Some([by, note]), Some(body)) = (&self.operator, body.as_object_mut()) {
            body.insert("by".to_owned(), by.as_str().into());
            body.insert("note".to_owned(), note.as_str().into());
        }
        self.or_refusal(self.try_post(path, &body).await)
    }

    /// Sends a request of a worker, and returns the parsed answer.
    async fn try_post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Fault> {
        read_answer(&self.post_body(path, body).await?)
    }

    async fn post_body(&self, path: &str, body: &impl Serialize) -> Result<Answer, Fault> {
        let body = serde_json::to_vec(body).unwrap_or_default();
        self.send_request(Method::POST, &request_target(path, &[]), Some(body)).await
    }

    pub(crate) fn or_refusal<T>(&self, answer: Result<T, Fault>) -> Result<T, Refusal> {
        answer.map_err(|fault| self.named(fault).into())
    }

    /// Names the server in the message of a fault.
    fn named(&self, fault: Fault) -> Fault {
        Fault { why: self.message_about(&fault.why), ..fault }
    }

    pub(crate) fn refusal(&self, why: &str) -> Refusal {
        Refusal::failure(self.message_about(why))
    }

    fn message_about(&self, what: &str) -> String {
        let of = match self.connections.url() {
            ServerUrl::Tcp { authority, .. } => authority.clone(),
            ServerUrl::Unix(path) => path.display().to_string(),
        };
        format!("--server {}: {what}", escaped(of.as_bytes()))
    }

    /// Returns an error if the token must not be sent to the process at the other end. Warns once if others can read
    /// the token on the network.
    fn check_receiver(&self, peer: Peer) -> Result<(), String> {
        match (peer, self.connections.url()) {
            (Peer::Network(address), _) => {
                if let Some(warning) = clear_text(address)
                    && !self.warned.swap(true, Ordering::Relaxed)
                {
                    complain(&self.message_about(&warning));
                }
                Ok(())
            }
            (Peer::User(user), ServerUrl::Unix(path)) => {
                check_peer(path, user, rustix::process::geteuid().as_raw())
            }
            (Peer::Verified, _) | (Peer::User(_), ServerUrl::Tcp { .. }) => Ok(()),
        }
    }

    /// Returns the queue to which the requests apply. Returns an error if the server does not have the named queue.
    /// Also returns an error if the server has several queues and the user named none.
    pub(crate) async fn find_queue(&self) -> Result<&Found, Refusal> {
        self.or_refusal(self.look_for_queue().await)
    }

    async fn look_for_queue(&self) -> Result<&Found, Fault> {
        let found = self.found.get_or_try_init(|| async {
            let answer = self.exchange(Method::GET, "/api/v1/summary", None, ANSWER).await?;
            if names_several(&answer) {
                let unnamed = "the process has several queues; name one of them";
                let name = self.queue.clone().ok_or_else(|| Fault::refused(unnamed))?;
                let path = format!("/queues/{}", percent_encode(name.as_bytes(), NON_ALPHANUMERIC));
                // Only a process on a store can have several queues.
                return Ok(Found { name, path, is_in_memory: false });
            }
            let Summary { queue, title, now, .. } = read_answer(&answer)?;
            let name = queue.unwrap_or(title);
            if self.queue.as_ref().is_some_and(|queue| *queue != name) {
                let error = format!("the queue of that process is {name:?}; name that one");
                return Err(Fault { exit: Exit::Usage, ..Fault::refused(error) });
            }
            // A store counts keys that back off as waiting. If the answer has a separate number of such keys, the
            // queue is in memory.
            Ok(Found { name, path: String::new(), is_in_memory: now.backing_off.is_some() })
        });
        found.await
    }

    /// Sends a request about the queue.
    async fn send_request(
        &self,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, Fault> {
        let Found { path, .. } = self.look_for_queue().await?;
        self.exchange(method, &format!("{path}{target}"), body, ANSWER).await
    }

    /// Sends a request. The token is sent only with changes, and with reads that the server refuses without a token. A
    /// token that is not sent cannot leak. `most` is the maximum size of the answer, in bytes.
    async fn exchange(
        &self,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
        most: usize,
    ) -> Result<Answer, Fault> {
        if body.is_none() {
            let answer = self.exchange_as(method.clone(), target, None, most, None).await?;
            if answer.status != StatusCode::UNAUTHORIZED || self.token.is_none() {
                return Ok(answer);
            }
        }
        self.exchange_as(method, target, body, most, self.token.as_ref()).await
    }

    /// Sends a request with this token. `None` sends no token.
    async fn exchange_as(
        &self,
        method: Method,
        target: &str,
        body: Option<Vec<u8>>,
        most: usize,
        token: Option<&String>,
    ) -> Result<Answer, Fault> {
        let (host, base) = match self.connections.url() {
            ServerUrl::Tcp { authority, path, .. } => (&**authority, &**path),
            ServerUrl::Unix(_) => ("localhost", ""),
        };
        let mut request = Request::builder().method(method).uri(format!("{base}{target}"));
        request = request.header(HOST, host);
        if let Some(token) = token {
            request = request.header(CONTENT_TYPE, "application/json");
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            for (name, value) in own_headers() {
                request = request.header(name, value);
            }
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let request = request.body(body).map_err(Fault::refused)?;
        let check = |peer| if token.is_some() { self.check_receiver(peer) } else { Ok(()) };
        let answer = tokio::time::timeout(PATIENCE, self.connections.send(request, check, most));
        answer.await.unwrap_or_else(|_| Err(Fault::late()))
    }
}

/// Returns the parsed body of a successful answer, or the fault of another answer.
fn read_answer<T: DeserializeOwned>(answer: &Answer) -> Result<T, Fault> {
    serde_json::from_slice(check_status(answer)?).map_err(|_| Fault::refused(WRONG_ANSWER))
}

/// Returns the body of a successful answer, or the fault of another answer.
fn check_status(Answer { status, retry_after, body }: &Answer) -> Result<&[u8], Fault> {
    let kind = match *status {
        status if status.is_success() => return Ok(body),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            FaultKind::Busy(*retry_after)
        }
        status if status.is_server_error() => FaultKind::Busy(*retry_after),
        _ => FaultKind::Refused,
    };
    // The answer may come from a proxy, whose errors are not JSON.
    let Some(Failure { error, .. }) = parse_failure(body) else {
        let hint = if kind == FaultKind::Refused { "; check the URL" } else { "" };
        return Err(Fault::new(kind, format!("{status}{hint}")));
    };
    let hint = match *status {
        StatusCode::METHOD_NOT_ALLOWED => "; start that process with --serve-admin",
        StatusCode::UNAUTHORIZED => "; check --token-file or REQUEUE_TOKEN",
        _ => "",
    };
    Err(Fault::new(kind, format!("{error}{hint}")))
}

/// Returns the key in the format of an API request. A key that is not UTF-8 is encoded in Base64.
pub(crate) fn named_key(key: &[u8]) -> NamedKey {
    match std::str::from_utf8(key) {
        Ok(key) => NamedKey { key: Some(key.to_owned()), key_base64: None },
        Err(_) => NamedKey { key: None, key_base64: Some(STANDARD.encode(key)) },
    }
}

/// The maximum size of the keys of one request, in bytes. The server refuses bodies above 1 MiB.
const BODY: usize = (1 << 20) - 64;

/// Keys that are collected for one request, in the format of the API.
pub(crate) struct Part<T> {
    keys: Vec<T>,
    bytes: usize,
}

impl<T: Serialize> Part<T> {
    pub(crate) const fn new() -> Self {
        Self { keys: Vec::new(), bytes: 0 }
    }

    /// Adds a key to the part. If the part already contains `most` keys, or has no space for this key, first empties
    /// the part and returns its keys.
    pub(crate) fn push_key(&mut self, key: T, most: usize) -> Option<Vec<T>> {
        // The size includes the comma after the key.
        let bytes = serde_json::to_vec(&key).map_or(0, |json| json.len()) + 1;
        let is_full = self.keys.len() >= most || self.bytes + bytes > BODY;
        let full = is_full.then(|| self.take_keys()).filter(|keys| !keys.is_empty());
        self.bytes += bytes;
        self.keys.push(key);
        full
    }

    /// Returns the keys, and empties the part.
    pub(crate) fn take_keys(&mut self) -> Vec<T> {
        self.bytes = 0;
        std::mem::take(&mut self.keys)
    }
}

/// Returns the path of a request, with its query.
fn request_target(path: &str, query: &[(&str, &[u8])]) -> String {
    let mut target = format!("/api/v1/{path}");
    for (at, (name, value)) in query.iter().enumerate() {
        let sign = if at == 0 { "?" } else { "&" };
        target += &format!("{sign}{name}={}", percent_encode(value, NON_ALPHANUMERIC));
    }
    target
}

/// Returns the error in the body of an answer. Returns `None` if the body is not an error of requeue.
fn parse_failure(body: &[u8]) -> Option<Failure> {
    serde_json::from_slice(body).ok()
}

/// Returns true if the server answers that it has several queues.
fn names_several(Answer { status, body, .. }: &Answer) -> bool {
    *status == StatusCode::NOT_FOUND
        && parse_failure(body).is_some_and(|failure| failure.error == SEVERAL_QUEUES)
}

/// Returns a warning if a token that is sent to this address passes through the network without encryption.
fn clear_text(server: SocketAddr) -> Option<String> {
    let ip = server.ip().to_canonical();
    (!ip.is_loopback()).then(|| {
        format!(
            "the token is sent to {ip} without encryption, and every host that can read the network \
             can read it. Use https://, or `ssh -L` and a loopback address"
        )
    })
}

/// Returns an error if the token must not be sent to the process that listens on the socket at `path`. `peer` is the
/// user ID of that process, and `own` that of this process.
///
/// A process of the same user or of root is trusted. Another user may have put the socket at the path to receive the
/// token. If this process runs as root, it also trusts a service of another user, if no third user can replace the
/// socket.
fn check_peer(path: &Path, peer: u32, own: u32) -> Result<(), String> {
    if peer == own || peer == 0 {
        return Ok(());
    }
    let refused = |why: &str| {
        format!(
            "the process that listens there runs as user {peer}{why}; the token was not sent. Run this \
             command as that user, or check the path"
        )
    };
    if own != 0 {
        return Err(refused(", not as this user or root"));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().map_err(|error| refused(&format!(": {error}")))?;
    for dir in dir.ancestors() {
        let found = dir.metadata().map_err(|error| refused(&format!(": {error}")))?;
        if others_can_write(peer, found.uid(), found.mode()) {
            return Err(refused(&format!(", and other users can write to {}", dir.display())));
        }
    }
    Ok(())
}

/// Returns true if a user other than root and `peer` can change a directory with this owner and mode.
fn others_can_write(peer: u32, owner: u32, mode: u32) -> bool {
    (owner != peer && owner != 0) || mode & 0o022 != 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::args::values::parse_server;

    #[test]
    fn the_token_is_for_this_user_for_root_and_from_root_for_a_user_whose_path_is_safe() {
        // If this process is root, `check_peer` examines the directory. This directory does not exist, so the check
        // fails.
        let path = Path::new("/no-such-directory/page");
        for (peer, own) in [(0, 0), (0, 1000), (1000, 1000)] {
            assert_eq!(check_peer(path, peer, own), Ok(()), "{peer} {own}");
        }
        for own in [0, 1000] {
            let error = check_peer(path, 1001, own).expect_err("it may be another user's");
            assert!(error.contains("runs as user 1001"), "{error}");
            assert!(error.contains("the token was not sent"), "{error}");
        }
        for (owner, mode, others) in [
            (0, 0o755, false),
            (1001, 0o700, false),
            (1001, 0o2755, false),
            (1000, 0o700, true),
            (0, 0o1777, true),
            (0, 0o775, true),
            (1001, 0o702, true),
        ] {
            assert_eq!(others_can_write(1001, owner, 0o40_000 | mode), others, "{owner} {mode:o}");
        }
    }

    #[test]
    fn a_token_that_the_network_can_read_causes_a_warning() {
        for address in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(clear_text(address.parse().unwrap()), None, "{address}");
        }
        for address in ["10.0.0.1:80", "[2001:db8::1]:80", "[::ffff:10.0.0.1]:80"] {
            let warning = clear_text(address.parse().unwrap()).expect("it is another host");
            assert!(warning.contains("without encryption"), "{warning}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            client.read_exact(&mut [0; 16]).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            // The server writes until the client disconnects.
            while client.write_all(&[b' '; 1 << 16]).await.is_ok() {}
        });
        let url = ServerUrl::Tcp { authority, path: String::new(), has_tls: false };
        let server = Server::new(url, None, None, None);
        let error = server.get::<Failure>("summary", &[]).await.expect_err("it has no end");
        assert!(format!("{error:?}").contains("the answer is over 32 MiB"), "{error:?}");
    }

    #[test]
    fn a_part_has_a_limit_of_keys_and_of_bytes() {
        for (size, most, keys) in [(1, 3, 3), (1 << 18, 256, 3), (2 << 20, 256, 1)] {
            let (mut part, mut sent) = (Part::new(), Vec::new());
            for _ in 0..10 {
                sent.extend(part.push_key(json!({ "key": "k".repeat(size) }), most));
            }
            sent.push(part.take_keys());
            assert_eq!(sent.iter().map(Vec::len).sum::<usize>(), 10);
            for part in &sent {
                let body = json!({ "keys": part }).to_string();
                assert!(body.len() <= 1 << 20 || part.len() == 1, "{} bytes", body.len());
            }
            assert_eq!(sent[0].len(), keys, "{size}");
        }
    }

    #[test]
    fn an_address_is_that_of_a_host_or_a_socket() {
        let tcp = |authority: &str, path: &str| ServerUrl::Tcp {
            authority: authority.to_owned(),
            path: path.to_owned(),
            has_tls: false,
        };
        let (authority, path) = ("a".to_owned(), String::new());
        assert_eq!(
            parse_server("https://a"),
            Ok(ServerUrl::Tcp { authority, path, has_tls: true })
        );
        for (text, url) in [
            ("http://localhost:8080", tcp("localhost:8080", "")),
            ("http://[::1]:80/queue/", tcp("[::1]:80", "/queue")),
            ("unix:a b", ServerUrl::Unix("a b".into())),
        ] {
            assert_eq!(parse_server(text), Ok(url), "{text}");
        }
        for text in
            ["", "localhost:8080", "https://", "http://", "http://a@b", "http://a/?q=1", "unix:"]
        {
            assert!(parse_server(text).is_err(), "{text}");
        }
    }
}
