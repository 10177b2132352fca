//! Tests the engine with real servers.

mod answers;
mod changing;
mod conforming;
mod cuts;
mod damaged;
mod dropping;
mod faults;
mod groups;
mod losing;
mod nodes;

use std::sync::atomic::{AtomicU32, Ordering as Atomic};

use requeue_servers::{Redis as Server, RedisCluster as Cluster};

use super::names::Identity;
use super::*;
use crate::engine::{Backoff, Failing};
use crate::tests::Batches as _;
use crate::types::error::chain;

/// Returns a name that no other test uses.
fn name(what: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", NAMES.fetch_add(1, Atomic::Relaxed))
}

fn options(url: &str) -> Options {
    let (scheme, rest) = url.split_once(':').expect("the address is valid");
    Options::parse(scheme, rest).expect("the address is valid")
}

/// Waits until `is` returns true.
fn until(is: impl Fn() -> bool) {
    while !is() {
        std::thread::yield_now();
    }
}

async fn store(url: &str) -> crate::Store {
    let store = crate::Store::connect(url).await.expect("the store connects");
    store.migrate().await.expect("the schema is created");
    store
}

/// Waits until `count` clients wait for a token or for replicas.
async fn waiting(server: &Server, count: usize) {
    let wanted = format!("blocked_clients:{count}\r\n");
    while !server.cli(&["info", "clients"]).contains(&wanted) {
        tokio::task::yield_now().await;
    }
}

/// Opens a new queue on this server or cluster. Returns its engine and the queue.
async fn engine(url: &str, name: &str) -> (Redis, Place) {
    let engine = Redis::connect(options(url)).await.expect("the engine connects");
    engine.migrate_schema().await.expect("the schema is created");
    let place = engine.open_queue(name, Settings::default()).await.expect("the queue opens");
    (engine, place)
}

fn asking(key: &str) -> Vec<Ask> {
    vec![Ask::new(Key::from(key), crate::Add::now())]
}

/// A claim of at most one key.
const ONE: Claim = Claim {
    max: 1,
    oldest: 0,
    lease: Duration::from_secs(30),
    expired: Failing {
        backoff: Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 },
        max_failures: None,
    },
    poll: Duration::from_secs(1),
};
