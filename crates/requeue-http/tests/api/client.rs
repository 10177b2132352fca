//! A minimal HTTP client that can send any `Host` header.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map_or("", |(_, value)| value)
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), "application/json");
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

#[track_caller]
fn connect(server: SocketAddr, head: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(server).expect("the server listens");
    // A time limit that a server exceeds only if it hangs.
    stream.set_read_timeout(Some(Duration::from_secs(900))).expect("the timeout can be set");
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).expect("the server reads");
    BufReader::new(stream)
}

fn read_head(stream: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut lines = stream.lines().map(|line| line.expect("the server answers"));
    let first = lines.next().expect("the server answers");
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let headers = lines.take_while(|line| !line.is_empty()).map(|line| {
        let (name, value) = line.split_once(": ").expect("a header");
        (name.to_ascii_lowercase(), value.to_owned())
    });
    (status.expect("a status"), headers.collect())
}

/// Sends a request with this head. Returns the whole response.
#[track_caller]
pub(crate) fn ask(server: SocketAddr, head: &str) -> Answer {
    let mut stream = connect(server, &format!("{head}\r\nConnection: close"));
    let (status, headers) = read_head(&mut stream);
    let mut body = Vec::new();
    stream.read_to_end(&mut body).expect("the response ends");
    Answer { status, headers, body }
}

/// Sends a request with this head and body. Returns the whole response.
#[track_caller]
pub(crate) fn send(server: SocketAddr, head: &str, body: &str) -> Answer {
    let head = format!("{head}\r\nConnection: close\r\nContent-Length: {}", body.len());
    let mut stream = connect(server, &head);
    // The server may refuse the request before it has read the body.
    let _ = stream.get_mut().write_all(body.as_bytes());
    let (status, headers) = read_head(&mut stream);
    let mut body = Vec::new();
    let _ = stream.read_to_end(&mut body);
    Answer { status, headers, body }
}

#[track_caller]
pub(crate) fn get(server: SocketAddr, path: &str) -> Answer {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: {server}"))
}

/// A stream of server-sent events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    #[track_caller]
    pub(crate) fn of(server: SocketAddr) -> Self {
        Self::at(server, "/api/v1/events")
    }

    #[track_caller]
    pub(crate) fn at(server: SocketAddr, path: &str) -> Self {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {server}");
        let mut stream = connect(server, &head);
        let (status, headers) = read_head(&mut stream);
        assert_eq!(status, 200);
        assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())));
        Self(stream)
    }

    /// Returns the name and the data of the next event, or `None` at the end.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("the stream goes on or ends") == 0 {
                return None;
            }
            // Lines between the events contain the sizes of chunks.
            if let Some(event) = line.strip_prefix("event: ") {
                event.trim_end().clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).expect("JSON")));
            }
        }
    }
}
