//! Checks that a pause of a queue applies to all processes. The tests of each engine call these functions.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::api::queue::Queue;
use crate::api::store::Store;
use crate::client::item::Item;
use crate::types::add::{Add, Added};
use crate::types::inspect::State;

/// The time limit for each wait.
const LATEST: Duration = Duration::from_secs(900);
/// The interval of polls and the duration of leases. No test waits for either of them.
const POLL: Duration = Duration::from_secs(3600);

async fn open(store: &Store, name: &str) -> Queue {
    store.queue(name).poll(POLL).lease(POLL).open().await.expect("the queue opens")
}

fn getting(queue: &Queue) -> JoinHandle<Option<Item>> {
    let queue = queue.clone();
    tokio::spawn(async move { queue.get().await })
}

/// Pauses and resumes the queue from the process `other`. Checks that the resume wakes `worker`.
pub(crate) async fn check_pauses(worker: &Store, other: &Store, name: &str) {
    let (queue, other_queue) = (open(worker, name).await, open(other, name).await);
    queue.add_all(["in flight", "next"]).await.expect("added");
    let item = queue.get().await.expect("the queue is open");

    other_queue.pause().await.expect("paused");
    other_queue.pause().await.expect("paused twice");
    assert!(queue.is_paused().await.expect("answered"));
    let listed = worker.queues().await.expect("listed");
    assert!(listed.iter().any(|queue| queue.name == name && queue.is_paused), "{listed:?}");

    // All operations except deliveries continue.
    let mut waiting = getting(&queue);
    assert_eq!(queue.add("added").await.expect("added"), Added::New);
    let later = Add::debounce(POLL);
    assert_eq!(queue.add_with("later", later).await.expect("added"), Added::New);
    item.succeed().await.expect("the lease is held");
    let counts = other_queue.counts().await.expect("counted");
    assert_eq!((counts.ready, counts.waiting, counts.in_flight), (2, 1, 0));
    let entry = queue.look_up("added").await.expect("looked up").expect("the key has a state");
    assert_eq!((entry.state, entry.paused), (State::Ready, true));
    let explained = queue.explain("added").await.expect("answered");
    assert!(explained.contains(", but the queue is paused"), "{explained}");
    // The adds have caused a claim. This read happens after that claim.
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err(), "nothing is delivered");

    other_queue.resume().await.expect("resumed");
    assert!(!queue.is_paused().await.expect("answered"));
    let delivered = timeout(LATEST, waiting).await.expect("the resume wakes the getter");
    let item = delivered.expect("no panic").expect("the queue is open");
    item.succeed().await.expect("the lease is held");
    let item = timeout(LATEST, queue.get()).await.expect("the other key follows");
    item.expect("the queue is open").succeed().await.expect("the lease is held");
    let explained = queue.explain("later").await.expect("answered");
    assert!(explained.contains("and further adds"), "{explained}");

    // A later queue with the same name is not paused.
    other_queue.pause().await.expect("paused");
    worker.force_drop_queue(name).await.expect("dropped");
    other_queue.resume().await.expect_err("the queue was dropped");
    let again = open(worker, name).await;
    assert!(!again.is_paused().await.expect("answered"));
    again.add("again").await.expect("added");
    let item = timeout(LATEST, again.get()).await.expect("a key is delivered");
    item.expect("the queue is open").succeed().await.expect("the lease is held");
}
