//! On real servers.

mod changing;
mod conforming;
mod cuts;
mod faults;
mod nodes;

use std::sync::atomic::{AtomicU32, Ordering as Atomic};

use requeue_servers::{Redis as Server, RedisCluster as Cluster};

use super::*;

/// A name that no other test has.
fn name(what: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", NAMES.fetch_add(1, Atomic::Relaxed))
}

fn options(url: &str) -> Options {
    let (scheme, rest) = url.split_once(':').expect("it is an address");
    Options::parse(scheme, rest).expect("it is an address")
}

/// Waits for what comes in its own time.
fn until(what: &str, is: impl Fn() -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(std::time::Instant::now() < limit, "{what}: not within two minutes");
    }
}

async fn store(url: &str) -> crate::Store {
    let store = crate::Store::connect(url).await.expect("it is there");
    store.migrate().await.expect("the schema is made");
    store
}

/// Until so many wait for a message, or for replicas.
async fn waiting(server: &Server, count: usize) {
    let wanted = format!("blocked_clients:{count}\r\n");
    while !server.cli(&["info", "clients"]).contains(&wanted) {
        tokio::task::yield_now().await;
    }
}
