//! A queue that a Prometheus server can see: some work, then what a scrape would get.

use std::thread;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use requeue::limiter::ExponentialFailure;
use requeue::metrics::Metrics;
use requeue::{Item, Queue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);

    let queue = Queue::builder()
        .name("pods")
        .limiter(ExponentialFailure::new(Duration::from_millis(1), Duration::from_secs(1)))
        .metrics(&metrics)
        .build()?;

    // Every key twice: the second add becomes part of the first, or asks for one run more.
    let pods = || (0..20).map(|n| format!("default/web-{n}"));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = queue.get_blocking() {
                    reconcile(item);
                }
            });
        }
        queue.add_all(pods());
        queue.add_all(pods());
        queue.add_after("default/later".to_owned(), Duration::from_millis(50));
        // Workers end when nothing is left.
        queue.close();
    });

    // What `GET /metrics` answers. As a response it has the header
    // `Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8`.
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    print!("{body}");
    Ok(())
}

/// Fails the first time for a few.
fn reconcile(item: Item<'_, String>) {
    thread::sleep(Duration::from_millis(1));
    if item.ends_with('7') && item.attempt() == 1 {
        item.retry();
    } else {
        item.succeed();
    }
}
