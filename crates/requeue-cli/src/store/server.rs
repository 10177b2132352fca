//! `--server`: talks to a process with `--serve-admin` instead of to a store.

use std::fmt::Write;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::args::values::ServerUrl;
use crate::exit::Refusal;
use crate::key::escaped;

/// The time limit of a request: a change of all keys of a large queue takes a while.
const PATIENCE: Duration = Duration::from_secs(300);

/// A server, and the token for it.
pub(super) struct Server {
    url: ServerUrl,
    token: Option<String>,
}

impl Server {
    pub(super) const fn new(url: ServerUrl, token: Option<String>) -> Self {
        Self { url, token }
    }

    /// Returns the response to a GET request; `None` if there is no such key.
    pub(super) async fn get(
        &self,
        path: &str,
        query: &[(&str, &[u8])],
    ) -> Result<Option<Value>, Refusal> {
        let mut target = format!("/api/v1/{path}");
        for (at, (name, value)) in query.iter().enumerate() {
            target.push_str(if at == 0 { "?" } else { "&" });
            // Writing to a string does not fail.
            let _ = write!(target, "{name}=");
            for byte in *value {
                let _ = match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                        write!(target, "{}", char::from(*byte))
                    }
                    byte => write!(target, "%{byte:02X}"),
                };
            }
        }
        match self.send("GET", &target, None).await? {
            (StatusCode::NOT_FOUND, answer) if answer["error"] == json!("not in the queue") => {
                Ok(None)
            }
            answer => self.checked(answer).map(Some),
        }
    }

    /// Returns a refusal if there is no token.
    pub(super) fn check_token(&self) -> Result<(), Refusal> {
        match &self.token {
            Some(_) => Ok(()),
            None => Err(Refusal::usage(
                "no token for --server; pass --token-file FILE, or set REQUEUE_TOKEN",
            )),
        }
    }

    /// Sends an action.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        self.check_token()?;
        let answer = self.send("POST", &format!("/api/v1/{path}"), Some(body)).await?;
        self.checked(answer)
    }

    fn checked(&self, (status, mut answer): (StatusCode, Value)) -> Result<Value, Refusal> {
        if status.is_success() {
            return Ok(answer);
        }
        let error = match answer["error"].take() {
            Value::String(error) => error,
            _ => status.to_string(),
        };
        let hint = match status {
            StatusCode::METHOD_NOT_ALLOWED => "; start that process with --serve-admin",
            _ => "",
        };
        Err(self.refusal(&format!("{error}{hint}")))
    }

    fn refusal(&self, why: &str) -> Refusal {
        let of = match &self.url {
            ServerUrl::Tcp { authority, .. } => authority.clone(),
            ServerUrl::Unix(path) => path.display().to_string(),
        };
        Refusal::failure(format!("--server {}: {why}", escaped(of.as_bytes())))
    }

    async fn send(
        &self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), Refusal> {
        let answer = async {
            let (host, base) = match &self.url {
                ServerUrl::Tcp { authority, path } => (&**authority, &**path),
                ServerUrl::Unix(_) => ("localhost", ""),
            };
            let mut request = Request::builder().method(method).uri(format!("{base}{target}"));
            request = request.header(HOST, host);
            if let (Some(_), Some(token)) = (body, &self.token) {
                request = request.header(CONTENT_TYPE, "application/json");
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let body = body.map(Value::to_string).unwrap_or_default();
            let request = request.body(Full::new(Bytes::from(body))).map_err(|e| e.to_string())?;
            match &self.url {
                ServerUrl::Tcp { authority, .. } => {
                    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| {
                        !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
                    });
                    let address =
                        if has_port { authority.clone() } else { format!("{authority}:80") };
                    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
                    exchange(stream, request).await
                }
                ServerUrl::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(|e| e.to_string())?;
                    exchange(stream, request).await
                }
            }
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(answer) => answer.map_err(|why| self.refusal(&why)),
            Err(_) => Err(self.refusal("no answer in time")),
        }
    }
}

/// The size limit of the keys of a request. The server limits bodies to 1 MiB.
const BODY: usize = (1 << 20) - 64;

/// The keys of a request, as the API names them.
#[derive(Default)]
pub(super) struct Part {
    keys: Vec<Value>,
    bytes: usize,
}

impl Part {
    /// Adds a key to the part. If the part is full, first returns its keys: it has `most` of them, or no space for this one.
    pub(super) fn push(&mut self, key: Value, most: usize) -> Option<Vec<Value>> {
        // The key and a comma.
        let bytes = key.to_string().len() + 1;
        let is_full = self.keys.len() >= most || self.bytes + bytes > BODY;
        let full = is_full.then(|| self.take()).filter(|keys| !keys.is_empty());
        self.bytes += bytes;
        self.keys.push(key);
        full
    }

    /// Returns the keys, and empties the part.
    pub(super) fn take(&mut self) -> Vec<Value> {
        self.bytes = 0;
        std::mem::take(&mut self.keys)
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Value), String> {
    let shook = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shook.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
    let body = serde_json::from_slice(&body.to_bytes());
    // An error of a proxy may be something else than JSON.
    match body {
        Err(_) if status.is_success() => {
            Err("the answer is not that of requeue; check the URL".to_owned())
        }
        body => Ok((status, body.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_a_limit_of_keys_and_of_bytes() {
        for (size, most, keys) in [(1, 3, 3), (1 << 18, 256, 3), (2 << 20, 256, 1)] {
            let (mut part, mut sent) = (Part::default(), Vec::new());
            for _ in 0..10 {
                sent.extend(part.push(json!({ "key": "k".repeat(size) }), most));
            }
            sent.push(part.take());
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
        };
        for (text, url) in [
            ("http://localhost:8080", tcp("localhost:8080", "")),
            ("http://[::1]:80/queue/", tcp("[::1]:80", "/queue")),
            ("unix:a b", ServerUrl::Unix("a b".into())),
        ] {
            assert_eq!(text.parse(), Ok(url), "{text}");
        }
        for text in
            ["", "localhost:8080", "https://a", "http://", "http://a@b", "http://a/?q=1", "unix:"]
        {
            assert!(text.parse::<ServerUrl>().is_err(), "{text}");
        }
    }
}
