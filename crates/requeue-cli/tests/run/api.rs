//! A fake API server with responses that the test chooses.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// A request: its method, its path with the query, and its body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl Request {
    /// The verb and the resource that a review of rights is about.
    pub(crate) fn reviewed(&self) -> Option<(&str, &str)> {
        let attributes = &self.body["spec"]["resourceAttributes"];
        let is_review = self.path.contains("/selfsubjectaccessreviews");
        is_review.then_some((attributes["verb"].as_str()?, attributes["resource"].as_str()?))
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }
}

pub(crate) enum Answer {
    Json(u16, Value),
    /// A list in these bytes.
    List(Vec<u8>),
    /// Events in these bytes. The stream stays open.
    Watch(Vec<u8>),
    /// The default response, which is a success without objects.
    Default,
}

/// The server. Its threads stop with the test.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Api {
    pub(crate) fn new(answer: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (Arc::clone(&requests), Arc::new(Mutex::new(answer)));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || {
                    let stream = stream.expect("a connection");
                    let Some(request) = read(&stream) else { return };
                    seen.lock().expect("no thread panics").push(request.clone());
                    let answer = (answer.lock().expect("no thread panics"))(&request);
                    write(stream, &request, answer);
                });
            }
        });
        Self { address, requests }
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no thread panics").clone()
    }

    /// Returns `requeue watch` with these arguments, in this directory, with this server.
    pub(crate) fn watch(&self, dir: &Path, args: &[&str]) -> Command {
        let config = format!(
            "{{apiVersion: v1, kind: Config, current-context: made-up, users: [], \
             clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
             contexts: [{{name: made-up, context: {{cluster: c, user: '', namespace: ns}}}}]}}",
            self.address
        );
        fs::write(dir.join("kubeconfig"), config).expect("it can be written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.arg("watch").args(args).env("LC_ALL", "C").env("KUBECONFIG", "kubeconfig");
        command.current_dir(dir);
        command
    }
}

/// Returns a ConfigMap in the namespace "ns".
pub(crate) fn map(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "namespace": "ns", "name": name, "uid": name, "resourceVersion": version.to_string(),
        },
    })
}

pub(crate) fn list(items: &[Value]) -> Answer {
    let metadata = json!({ "resourceVersion": "1" });
    let kind = "ConfigMapList";
    Answer::Json(
        200,
        json!({ "kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items }),
    )
}

pub(crate) fn failure(code: u16, message: &str) -> Answer {
    let reason = if code == 404 { "NotFound" } else { "" };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    Answer::Json(code, status)
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Ignores errors, because the client may have closed the connection.
fn write(mut stream: TcpStream, request: &Request, answer: Answer) {
    let answer = match answer {
        Answer::Default => by_default(request),
        answer => answer,
    };
    let (code, body, is_open) = match answer {
        Answer::Json(code, body) => (code, body.to_string().into_bytes(), false),
        Answer::List(body) => (200, body, false),
        Answer::Watch(body) => (200, body, true),
        Answer::Default => return,
    };
    let head =
        format!("HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(&[head.as_bytes(), &body].concat());
    if is_open {
        // The stream stays open until the client closes the connection.
        let _ = stream.read(&mut [0]);
    }
}

fn by_default(request: &Request) -> Answer {
    let discovery = |items: Value| {
        let kind =
            json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2" });
        let mut list = kind;
        list["metadata"] = json!({});
        list["items"] = items;
        Answer::Json(200, list)
    };
    let maps = json!({
        "resource": "configmaps", "scope": "Namespaced", "singularResource": "configmap",
        "responseKind": { "group": "", "version": "v1", "kind": "ConfigMap" },
        "shortNames": ["cm"], "verbs": ["get", "list", "watch", "patch"],
    });
    match request.path.split('?').next().unwrap_or_default() {
        "/api" => discovery(json!([{
            "metadata": { "name": "" }, "versions": [{ "version": "v1", "resources": [maps] }],
        }])),
        "/apis" => discovery(json!([])),
        "/api/v1/namespaces/ns" => {
            let metadata = json!({ "name": "ns" });
            let kind = "PartialObjectMetadata";
            let version = "meta.k8s.io/v1";
            Answer::Json(200, json!({ "kind": kind, "apiVersion": version, "metadata": metadata }))
        }
        _ if request.reviewed().is_some() => {
            let mut review = request.body.clone();
            review["status"] = json!({ "allowed": true });
            Answer::Json(201, review)
        }
        _ if request.path.contains("/selfsubjectreviews") => {
            let mut review = request.body.clone();
            review["status"] = json!({ "userInfo": { "username": "jane" } });
            Answer::Json(201, review)
        }
        _ if request.is_watch() => Answer::Watch(Vec::new()),
        _ => list(&[]),
    }
}
