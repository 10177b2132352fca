//! An OpenTelemetry Collector for tests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::certificate::write_certificate;
use crate::keeper::{Keeper, write};
use crate::local::{did_not_run, find_program, free_ports};

/// An OpenTelemetry Collector, which is killed when it is dropped or when the test process dies.
///
/// The collector receives spans by OTLP over HTTP on loopback, with and without TLS, and sends them to this process.
#[derive(Debug)]
pub struct Collector {
    keeper: Keeper,
    port: u16,
    tls_port: u16,
    received: Receiver<String>,
}

impl Collector {
    /// Starts a collector. Returns `None` if no collector is installed, and adds the test to the
    /// list that `REQUEUE_NOT_RUN` names.
    ///
    /// # Panics
    /// Panics if the collector does not start. The message contains its log.
    pub fn start() -> Option<Self> {
        let Some(program) = find_program("otel-collector") else {
            did_not_run("there is no OpenTelemetry Collector here");
            return None;
        };
        let (sender, received) = mpsc::channel();
        let listener = TcpListener::bind("127.0.0.1:0");
        let listener = listener.unwrap_or_else(|err| panic!("a port for the spans: {err}"));
        let target = match listener.local_addr() {
            Ok(address) => address.port(),
            Err(err) => panic!("the port for the spans: {err}"),
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                thread::spawn(move || take_requests(&stream, &sender));
            }
        });
        let mut tries = 0;
        loop {
            tries += 1;
            let [port, tls_port] = free_ports();
            let args = [&*program.to_string_lossy()];
            let keeper = Keeper::new(include_str!("collector.sh"), &args, |dir| {
                write_certificate(dir);
                let config = include_str!("collector.yaml")
                    .replace("{dir}", &dir.to_string_lossy())
                    .replace("{port}", &port.to_string())
                    .replace("{tls-port}", &tls_port.to_string())
                    .replace("{target}", &target.to_string());
                write(&dir.join("config.yaml"), &config);
            });
            match keeper.try_order("started") {
                Ok(()) => return Some(Self { keeper, port, tls_port, received }),
                // The start may fail because another process has taken the port.
                Err(why) => assert!(tries < 3, "{why}"),
            }
        }
    }

    /// Returns the value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the address by TLS, and the file with the certificate that verifies the collector's.
    pub fn tls_url(&self) -> (String, PathBuf) {
        let url = format!("https://localhost:{}", self.tls_port);
        (url, self.keeper.dir().join("server.crt"))
    }

    /// Waits for the next request, and returns its body: `ExportTraceServiceRequest` as JSON.
    ///
    /// # Panics
    /// Panics if the collector has stopped.
    pub fn next(&self) -> String {
        self.received.recv().unwrap_or_else(|_| panic!("no collector sends spans"))
    }
}

/// Answers the requests of a connection, and passes their bodies on.
fn take_requests(stream: &TcpStream, sender: &Sender<String>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => {}
            }
            let header = line.split_once(':').unwrap_or_default();
            if header.0.eq_ignore_ascii_case("content-length") {
                length = header.1.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        let answer =
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        let mut stream = stream;
        if reader.read_exact(&mut body).is_err() || stream.write_all(answer).is_err() {
            return;
        }
        if sender.send(String::from_utf8_lossy(&body).into_owned()).is_err() {
            return;
        }
    }
}
