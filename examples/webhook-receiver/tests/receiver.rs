//! The receiver on virtual time, and its program across restarts.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::future::pending;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use requeue_http::Site;
use requeue_store::{Queue, Store};
use requeue_testkit::explore::explore;
use rustix::process::{Pid, Signal, kill_process};
use sha2::Sha256;
use tokio::time::sleep;
use tower::ServiceExt;
use webhook_receiver::{AT_MOST, Customers, QUIET, SIGNATURE, app, open, work};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SECOND: Duration = Duration::from_secs(1);

fn customers(directory: &Path) -> Customers {
    let [source, copies] = ["source", "copies"].map(|name| directory.join(name));
    fs::create_dir_all(&source).expect("a directory");
    fs::create_dir_all(&copies).expect("a directory");
    Customers { source, copies }
}

async fn post(app: &Router, path: &str, signature: &str) -> Result<StatusCode> {
    let request = Request::post(path).header(SIGNATURE, signature).body(Body::from("{}"))?;
    Ok(app.clone().oneshot(request).await?.status())
}

/// Returns the numbers of webhooks and of runs.
async fn totals(queue: &Queue) -> Result<(u64, u64)> {
    let total = queue.activity(Duration::from_secs(3600)).await?.total();
    Ok((total.adds, total.starts))
}

#[test]
fn a_burst_of_webhooks_is_one_run_and_an_endless_burst_is_bounded() {
    explore(1, |world| async move {
        let directory = tempfile::tempdir()?;
        let customers = customers(directory.path());
        let queue = open(&world.store().await?).await?;
        let app = app(queue.clone(), &Site::of_store(queue.clone()).build(), None);
        tokio::spawn(work(queue.clone(), customers.clone(), pending()));

        fs::write(customers.source.join("acme"), "pro")?;
        for _ in 0..10 {
            sleep(SECOND).await;
            assert_eq!(post(&app, "/webhooks/acme", "").await?, StatusCode::ACCEPTED);
        }
        sleep(QUIET / 2).await;
        assert_eq!(totals(&queue).await?, (10, 0));
        sleep(2 * QUIET).await;
        assert_eq!(totals(&queue).await?, (10, 1));
        assert_eq!(fs::read_to_string(customers.copies.join("acme"))?, "pro");

        // The customer is deleted, and its webhooks never pause.
        fs::remove_file(customers.source.join("acme"))?;
        for _ in 0..AT_MOST.as_secs() + 2 {
            assert_eq!(post(&app, "/webhooks/acme", "").await?, StatusCode::ACCEPTED);
            sleep(SECOND).await;
        }
        assert_eq!(totals(&queue).await?.1, 2);
        assert!(!customers.copies.join("acme").exists());
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    });
}

#[test]
fn webhooks_that_are_not_valid_are_refused() {
    explore(1, |world| async move {
        let queue = open(&world.store().await?).await?;
        let site = Site::of_store(queue.clone()).build();
        let app = app(queue.clone(), &site, Some("s3cret".to_owned()));
        let sign = |customer: &str| {
            let mut mac = Hmac::<Sha256>::new_from_slice(b"s3cret").expect("any length is valid");
            mac.update(format!("{customer}\n{{}}").as_bytes());
            BASE64_STANDARD.encode(mac.finalize().into_bytes())
        };
        let signature = sign("acme");
        let long = "a".repeat(65);
        for (path, signature, status) in [
            ("/webhooks/acme", &*signature, StatusCode::ACCEPTED),
            ("/webhooks/acme", "", StatusCode::UNAUTHORIZED),
            ("/webhooks/acme", &signature[1..], StatusCode::UNAUTHORIZED),
            ("/webhooks/other", &signature, StatusCode::UNAUTHORIZED),
            ("/webhooks/", &signature, StatusCode::BAD_REQUEST),
            ("/webhooks/%2e%2e%2fpasswd", &sign("../passwd"), StatusCode::BAD_REQUEST),
            (&format!("/webhooks/{long}"), &sign(&long), StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(post(&app, path, signature).await?, status, "{path}");
        }
        assert_eq!(totals(&queue).await?.0, 1);
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    });
}

#[test]
fn an_unusable_secret_is_refused() -> Result {
    let directory = tempfile::tempdir()?;
    for (secret, why) in [(&b""[..], "is empty"), (&b"\xff\xfe"[..], "is not UTF-8")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_webhook-receiver"));
        // If the secret were accepted, this address would be refused.
        command.arg("no address").arg(directory.path());
        let ended = command.env("WEBHOOK_SECRET", OsStr::from_bytes(secret)).output()?;
        let said = String::from_utf8(ended.stderr)?;
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("WEBHOOK_SECRET {why}")), "{said}");
    }
    Ok(())
}

/// The program, which is killed when the test ends.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Program {
    fn start(directory: &Path) -> Result<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_webhook-receiver"));
        command.arg("127.0.0.1:0").arg(directory).env_remove("WEBHOOK_SECRET");
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("it is piped")?);
        let mut program = Self { child, output, address: String::new() };
        let line = program.wait_for("the dashboard is at http://")?;
        let (_, url) = line.split_once("http://").ok_or("no address")?;
        program.address = url.trim_end().trim_end_matches("/queue").to_owned();
        Ok(program)
    }

    /// Waits for a line with this text.
    fn wait_for(&mut self, text: &str) -> Result<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if line.contains(text) {
                return Ok(line);
            }
            line.clear();
        }
        Err(format!("the program has exited before it printed {text:?}").into())
    }

    fn request(&self, request: &str) -> Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn end(mut self, signal: Signal) -> Result<Option<i32>> {
        kill_process(Pid::from_child(&self.child), signal)?;
        Ok(self.child.wait()?.code())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // After `end`, there is no process to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn waiting_customers_survive_a_shutdown_and_a_crash() -> Result {
    for (signal, code) in [(Signal::TERM, Some(0)), (Signal::KILL, None)] {
        let directory = tempfile::tempdir()?;
        let customers = customers(directory.path());
        let program = Program::start(directory.path())?;
        let page = program.request("GET /queue/")?;
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("customers"), "{page}");
        // During the pause, no customer is synchronised, however slow this machine is.
        let url = format!("sqlite:{}/queue.db", directory.path().display());
        let store = Store::connect(&url).await?;
        let queue = store.queue("customers").must_exist().open().await?;
        queue.pause().await?;
        for customer in ["acme", "zeta", "acme"] {
            let answer = program.request(&format!("POST /webhooks/{customer}"))?;
            assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
        }
        assert_eq!(program.end(signal)?, code);

        fs::write(customers.source.join("acme"), "pro")?;
        fs::write(customers.source.join("zeta"), "free")?;
        let mut program = Program::start(directory.path())?;
        queue.resume().await?;
        for _ in ["acme", "zeta"] {
            program.wait_for("synchronised")?;
        }
        assert_eq!(fs::read_to_string(customers.copies.join("acme"))?, "pro");
        assert_eq!(fs::read_to_string(customers.copies.join("zeta"))?, "free");
        assert_eq!(program.end(Signal::TERM)?, Some(0));
    }
    Ok(())
}
