//! Spans of OpenTelemetry, in a real collector.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use requeue_servers::Collector;
use serde_json::Value;

use crate::support::{Live, directory, end};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const OTHER: &str = "00f067aa0ba902b7";

/// Adds the key `a`, with a trace context.
fn post(server: &str, span: &str) {
    let mut stream = TcpStream::connect(server).expect("it listens");
    // A time that no test takes unless a program hangs.
    stream.set_read_timeout(Some(Duration::from_secs(900))).expect("it can be set");
    let body = r#"{"keys":[{"key":"a"}]}"#;
    write!(
        stream,
        "POST /api/v1/add HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer 0123456789abcdef\r\nContent-Type: application/json\r\n\
         traceparent: 00-{TRACE}-{span}-01\r\ntracestate: vendor=1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Returns the spans of a request to the collector.
fn spans(request: &str) -> Vec<Value> {
    let request: Value = serde_json::from_str(request).expect("JSON");
    let all = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let resources = all(&request, "resourceSpans").into_iter();
    let scopes = resources.flat_map(|resource| all(&resource, "scopeSpans"));
    scopes.flat_map(|scope| all(&scope, "spans")).collect()
}

fn attribute<'a>(span: &'a Value, name: &str) -> Option<&'a str> {
    let all = span["attributes"].as_array().expect("a list");
    let found = all.iter().find(|attribute| attribute["key"] == name)?;
    let value = &found["value"];
    value["stringValue"].as_str().or_else(|| value["intValue"].as_str())
}

/// An HTTP request adds a key to a store. The first run fails, and each command receives the context of its run.
#[test]
fn a_trace_leads_from_a_request_through_a_store_and_a_retry_to_a_command() {
    let Some(collector) = Collector::start() else { return };
    let dir = directory("traces");
    let requeue = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(args).args(["--store", "sqlite:q.db"]).current_dir(&dir).env("LC_ALL", "C");
        command.env("REQUEUE_TOKEN", "0123456789abcdef");
        command
    };
    let ended = end(&mut requeue(&["store", "init", "--queue", "mail"]), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let args = ["serve", "0", "--serve-admin", "--queue", "mail"];
    let mut server = Live::spawn(&mut requeue(&args));
    let line = server.wait_for_message("http://");
    let (_, rest) = line.split_once("http://").expect("it is there");
    let (address, _) = rest.split_once('/').expect("it ends");
    post(address, PARENT);
    post(address, OTHER);

    let script = "echo $TRACEPARENT $TRACESTATE; [ $REQUEUE_ATTEMPT = 2 ]";
    let args = ["work", "--queue", "mail", "--until-empty", "--base-delay", "1ms", "-c", script];
    let ended = end(requeue(&args).env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);

    let mut found = Vec::new();
    while found.len() < 5 {
        found.extend(spans(&collector.next()));
    }
    for span in &found {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&TRACE.into(), &PARENT.into()));
        assert_eq!(attribute(span, "messaging.system"), Some("requeue"));
        assert_eq!(attribute(span, "messaging.destination.name"), Some("mail"));
    }
    let named = |name: &str| -> Vec<&Value> {
        let mut all: Vec<_> = found.iter().filter(|span| span["name"] == name).collect();
        all.sort_by_key(|span| span["startTimeUnixNano"].as_str());
        all
    };
    let runs = named("process mail");
    let [failed, succeeded] = &runs[..] else { panic!("{found:?}") };
    assert_eq!(failed["status"]["code"], 2);
    assert_eq!(attribute(failed, "error.type"), Some("1"));
    assert_eq!(succeeded["status"]["code"], Value::Null);
    assert_eq!(attribute(succeeded, "requeue.attempt"), Some("2"));
    for run in &runs {
        assert_eq!(attribute(run, "requeue.key"), Some("a"));
        assert_eq!(run["links"][0]["spanId"], OTHER);
    }
    let causes: BTreeSet<_> = named("wait mail")
        .iter()
        .filter_map(|span| attribute(span, "requeue.wait.cause"))
        .collect();
    assert_eq!(causes, BTreeSet::from(["backoff", "ready"]));

    let ids = runs.iter().map(|run| run["spanId"].as_str().expect("text"));
    let parents: String = ids.map(|id| format!("00-{TRACE}-{id}-01 vendor=1\n")).collect();
    assert_eq!(ended.text(), parents);
}

/// A program that adds keys is part of the trace that has started it.
#[test]
fn an_add_has_the_context_of_its_environment() {
    let dir = directory("traces_of_adds");
    let requeue = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(args).current_dir(&dir).env("REQUEUE_TOKEN", "0123456789abcdef");
        command.env("REQUEUE_STORE", "sqlite:q.db").env("TRACESTATE", "vendor=1");
        command
    };
    let call = |args: &[&str], parent: &str| {
        let ended = end(requeue(args).env("TRACEPARENT", parent), "");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        ended.text()
    };
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let script = "echo $1 $TRACEPARENT $TRACESTATE";
    let work = || call(&["work", "--until-empty", "-c", script], "");
    call(&["add", "a"], &parent);
    assert_eq!(work(), format!("a {parent} vendor=1\n"));
    let mut server = Live::spawn(&mut requeue(&["serve", "0", "--serve-admin"]));
    let line = server.wait_for_message("http://");
    let address = line.split_whitespace().find(|word| word.starts_with("http://"));
    let address = address.expect("it is there").trim_end_matches('/');
    call(&["add", "--server", address, "--queue", "default", "b"], &parent);
    assert_eq!(work(), format!("b {parent} vendor=1\n"));
    // An invalid context is ignored. The command does not get the context of the worker, which has none.
    call(&["add", "c"], "nonsense");
    assert_eq!(work().split(' ').next(), Some("c"));
}

#[test]
fn spans_are_sent_by_https_to_a_collector_that_is_trusted() {
    let Some(collector) = Collector::start() else { return };
    let (url, certificate) = collector.tls_url();
    let run = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(["run", "true"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", &url);
        let ended = end(command.env(variable, &certificate), "a\n");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let said = run("OTHER");
    assert!(said.contains("requeue: spans are lost: localhost:"), "{said}");
    assert!(said.contains("certificate"), "{said}");
    let said = run("OTEL_EXPORTER_OTLP_CERTIFICATE");
    assert!(!said.contains("lost"), "{said}");
    let found = spans(&collector.next());
    assert_eq!(found[0]["name"], "process run", "{found:?}");
}

#[test]
fn a_file_without_certificates_is_named() {
    for file in ["missing.pem", "/dev/null"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(["run", "true"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://localhost:9");
        let said = end(command.env("OTEL_EXPORTER_OTLP_CERTIFICATE", file), "a\n").stderr;
        let begin = format!("no spans are sent: OTEL_EXPORTER_OTLP_CERTIFICATE: {file}: ");
        assert!(said.contains(&begin), "{said}");
        assert!(said.contains("; name a PEM file with certificates"), "{said}");
    }
}

#[test]
fn a_collector_that_cannot_be_used_stops_nothing() {
    for url in ["ftp://ann:secret@localhost/?key=secret", "ann:secret@localhost:4318", "secret/"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(["run", "echo"]).env("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        let ended = end(&mut command, "a\n");
        assert_eq!((ended.code(), &*ended.text()), (Some(0), "a\n"), "{}", ended.stderr);
        let said = "requeue: no spans are sent: OTEL_EXPORTER_OTLP_ENDPOINT: ";
        assert_eq!(ended.stderr.matches(said).count(), 1, "{}", ended.stderr);
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}

/// Reads a request, and refuses it.
fn refuse(mut stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let begin = head.len();
        reader.read_line(&mut head).ok().filter(|&read| read > 0)?;
        if let Some(("content-length", value)) = head[begin..].split_once(':') {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(answer).ok()?;
    Some((head, body))
}

#[test]
fn the_password_of_a_collector_is_neither_sent_to_it_nor_shown() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        let requests = listener.incoming().flatten().filter_map(|stream| refuse(&stream));
        requests.for_each(|request| drop(sender.send(request)));
    });
    let url = format!("http://ann:secret@{address}/v1/traces?key=secret");
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(["run", "true"]).env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url);
    command.env("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop");
    let ended = end(&mut command, "a\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let said = format!("requeue: spans are lost: {address}: 400 Bad Request\n");
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);

    let (head, body) = received.recv().expect("a request");
    assert!(head.starts_with("POST /v1/traces?key=secret HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: {address}\r\n")), "{head}");
    // The attribute, as protobuf writes it.
    let named = b"service.name\x12\x06\x0a\x04shop";
    assert!(body.windows(named.len()).any(|part| part == named), "{body:?}");
}
