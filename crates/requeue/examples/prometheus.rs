//! A queue with Prometheus metrics. The example does some work, and prints the text of a scrape.

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

    // Each key is added twice. The second add becomes part of the run of the first add, or causes
    // another run.
    let pods = || (0..20).map(|n| format!("default/web-{n}"));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = queue.get().blocking() {
                    reconcile(item);
                }
            });
        }
        queue.add_all(pods());
        queue.add_all(pods());
        queue.add_after("default/later".to_owned(), Duration::from_millis(50));
        // The workers return when no key is left.
        queue.close();
    });

    // The text is the body of a response to `GET /metrics`. The response must have the header
    // `Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8`.
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    print!("{body}");
    Ok(())
}

/// Fails the first attempt of some keys.
fn reconcile(item: Item<'_, String>) {
    thread::sleep(Duration::from_millis(1));
    if item.ends_with('7') && item.attempt() == 1 {
        item.retry();
    } else {
        item.succeed();
    }
}
