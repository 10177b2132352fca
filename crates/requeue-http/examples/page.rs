//! Serves the dashboard of a queue with some work. With a port, it runs until Ctrl-C is pressed: `cargo run -p
//! requeue-http --example page -- 8080`

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::limiter::BackoffLimiter;
use requeue::metrics::Metrics;
use requeue::{Queue, ReaddPolicy};
use requeue_http::Site;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let port = std::env::args().nth(1);

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let queue: Queue<String> = Queue::builder()
        .name("deployments")
        .readd_policy(ReaddPolicy::Hold)
        .limiter(BackoffLimiter::new(Duration::from_secs(1), Duration::from_secs(60)))
        .metrics(&metrics)
        .build()?;
    for worker in 0..4 {
        tokio::spawn(work(queue.clone(), worker));
    }
    tokio::spawn(watch(queue.clone()));

    let site = Site::builder(queue).registry(Arc::new(registry)).build();
    let listener =
        TcpListener::bind(("127.0.0.1", port.as_deref().unwrap_or("0").parse()?)).await?;
    let address = listener.local_addr()?;
    println!("http://{address}/");
    let server = tokio::spawn({
        let site = site.clone();
        async move { site.serve(listener).await }
    });

    if port.is_none() {
        println!("{}", fetch(address, "/api/v1/summary").await?);
        site.shutdown();
    }
    server.await??;
    Ok(())
}

/// Adds keys, like a program that watches for changes.
async fn watch(queue: Queue<String>) {
    for change in 0_u32.. {
        queue.add(format!("default/web-{}", change.wrapping_mul(2_654_435_761) % 500));
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
}

/// Runs keys: most runs are quick, some are slow, and a few fail.
async fn work(queue: Queue<String>, worker: u64) {
    let mut runs = worker;
    while let Some(item) = queue.get().await {
        runs += 1;
        tokio::time::sleep(Duration::from_millis(10 + 7 * (runs % 13))).await;
        match item.ends_with("13") {
            true => item.retry(),
            false => item.succeed(),
        }
    }
}

/// Requests a path, without an HTTP client.
async fn fetch(address: std::net::SocketAddr, path: &str) -> Result<String, Error> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    Ok(body.to_owned())
}
