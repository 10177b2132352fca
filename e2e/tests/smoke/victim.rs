//! Servers do not outlive their tests.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use requeue_e2e::{Server, until};

const VICTIM: &str = "REQUEUE_E2E_VICTIM";

/// Starts this test again, as a process that owns a server, and kills that process.
#[tokio::test]
async fn a_server_does_not_outlive_tests_that_are_killed() {
    if std::env::var_os(VICTIM).is_some() {
        return victim().await;
    }
    if Server::shared().await.is_none() {
        return;
    }
    let name = "victim::a_server_does_not_outlive_tests_that_are_killed";
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(VICTIM, "")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(victim.stdout.take().unwrap());
    let line = output.lines().map(Result::unwrap).find(|line| line.starts_with("victim "));
    let line = line.expect("the victim has a server");
    let (port, dir) = line.trim_start_matches("victim ").split_once(' ').unwrap();
    let listens = || TcpStream::connect(("127.0.0.1", port.parse().unwrap())).is_ok();
    assert!(listens() && Path::new(dir).exists());

    victim.kill().unwrap();
    victim.wait().unwrap();
    until("the server is gone", async || !listens() && !Path::new(dir).exists()).await;
}

async fn victim() {
    let server = Server::start().await.expect("the other process found a server");
    let uri = server.access().config().await.cluster_url;
    // Frozen processes must also stop.
    server.apiserver().freeze();
    println!("\nvictim {} {}", uri.port_u16().expect("a port"), server.dir().display());
    std::future::pending().await
}

#[tokio::test]
async fn a_server_that_is_dropped_leaves_nothing() {
    let Some(server) = Server::start().await else { return };
    let uri = server.access().config().await.cluster_url;
    let dir = server.dir().to_owned();
    server.etcd().freeze();
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", uri.port_u16().unwrap())).is_err());
    assert!(!dir.exists());
}
