//! Tests rates through the API, with SQLite: how they are set, invalid rates, and a worker that has used up a rate.

use std::time::Duration;

use tokio::time::timeout;

use super::grouping::store_in;
use crate::api::queue::Queue;
use crate::api::store::{OpenOptions, Store};
use crate::types::error::{ErrorKind, chain};
use crate::types::inspect::State;
use crate::types::rate::Rate;

const HOUR: Duration = Duration::from_secs(3600);
/// The time limit for each wait.
const LATEST: Duration = Duration::from_secs(900);

fn options(store: &Store) -> OpenOptions {
    // No test waits for a poll or for the expiry of a lease.
    store.queue("q").poll(HOUR).lease(HOUR)
}

#[tokio::test]
async fn the_first_rate_applies_to_all_processes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (one, other) = (store_in(&dir).await, store_in(&dir).await);
    let rate = Rate::new(10, HOUR).burst(2);
    options(&one).open().await.expect("the queue opens");
    options(&one).rate(rate).open().await.expect("the queue had no rate");
    let queue = options(&other).open().await.expect("the queue has a rate");
    queue.add_all(["a", "b", "c"]).await.expect("added");
    assert_eq!(timeout(LATEST, queue.get_many(9)).await.expect("claimed").len(), 2);
    let error = options(&other).rate(rate.burst(3)).open().await.expect_err("another rate");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let said = chain(&error);
    let expected =
        "its rate is 10/h with a burst of 2, not 10/h with a burst of 3; omit the option";
    assert!(said.contains(expected), "{said}");
    assert_eq!(other.queues().await.expect("listed")[0].rate, Some(rate));
    queue.set_rate(None).await.expect("set");
    assert_eq!(one.queues().await.expect("listed")[0].rate, None);
    assert_eq!(timeout(LATEST, queue.get_many(9)).await.expect("claimed").len(), 1);
}

#[tokio::test]
async fn an_invalid_rate_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store_in(&dir).await;
    let queue = options(&store).group_by("^.").open().await.expect("the queue opens");
    let none = Rate::new(0, HOUR);
    let refusals = [
        chain(&options(&store).rate(none).open().await.expect_err("no starts")),
        chain(&queue.set_rate(Some(none)).await.expect_err("no starts")),
        chain(&queue.group("a").set_rate(Some(none)).await.expect_err("no starts")),
    ];
    for said in refusals {
        assert!(
            said.contains("invalid rate 0/h with a burst of 1: use at least 1 start"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn an_explanation_names_the_rate_that_permits_the_next_start_last() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store_in(&dir).await;
    let hour = Rate::new(1, HOUR);
    let queue = options(&store).rate(hour).open().await.expect("the queue opens");
    queue.add_all(["a", "b"]).await.expect("added");
    let held = queue.get_many(9).await;
    assert_eq!(held.len(), 1);
    let explain = async |queue: &Queue, key: &str| queue.explain(key).await.expect("explained");
    let other = if held[0].as_str() == Some("a") { "b" } else { "a" };
    let of_queue = ", but throttled by the queue: its rate of 1/h with a burst of 1 permits the next start in ";
    let said = explain(&queue, other).await;
    assert!(said.contains(of_queue) && said.ends_with('s'), "{said}");
    queue.set_rate(None).await.expect("set");
    assert!(!explain(&queue, other).await.contains("throttled"));

    let queue = store.queue("g").claim_ahead(0).group_by("^.").group_limit(5);
    let queue = queue.open().await.expect("the queue opens");
    queue.add_all(["a1", "a2", "b1"]).await.expect("added");
    queue.group("a").set_rate(Some(hour)).await.expect("set");
    let held = queue.get_many(1).await;
    let of_group = ", but throttled by group \"a\": its rate of 1/h with a burst of 1 permits the next start in ";
    let explain = async |queue: &Queue| {
        let waits = queue.snapshot(State::Ready, None, 9).await.expect("listed");
        let key = waits.into_iter().find(|entry| entry.group.as_deref() == Some("a"));
        queue.explain(key.expect("a key of the group is ready").key).await.expect("explained")
    };
    assert_eq!(held[0].group(), Some("a"));
    let said = explain(&queue).await;
    assert!(said.contains(of_group) && said.ends_with('s'), "{said}");
    // The rate of the queue is slower than the rate of the group.
    queue.set_rate(Some(Rate::new(1, 2 * HOUR))).await.expect("set");
    assert_eq!(timeout(LATEST, queue.get_many(1)).await.expect("claimed").len(), 1);
    let said = explain(&queue).await;
    assert!(said.contains("throttled by the queue: its rate of 1/7200s with"), "{said}");
    queue.set_rate(Some(hour)).await.expect("set");
    queue.group("a").set_rate(Some(Rate::new(1, 2 * HOUR))).await.expect("set");
    queue.group("a").set_limit(Some(1)).await.expect("set");
    assert!(explain(&queue).await.contains("throttled by group \"a\": 1 of 1 in flight"));
    queue.group("a").pause().await.expect("paused");
    assert!(explain(&queue).await.ends_with("which is paused"));
}

#[tokio::test]
async fn a_worker_that_stops_when_idle_does_not_wait_for_the_rate() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store_in(&dir).await;
    let queue = options(&store).rate(Rate::new(1, HOUR)).open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    queue.shut_down_when_idle();
    queue.get().await.expect("a key is ready").succeed().await.expect("the lease is held");
    assert!(timeout(LATEST, queue.get()).await.expect("the queue is idle").is_none());
}

#[tokio::test]
async fn no_key_is_claimed_ahead_of_a_rate() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = store_in(&dir).await;
    let rate = Rate::new(1, HOUR).burst(100);
    let queue = options(&store).rate(rate).open().await.expect("the queue opens");
    queue.add_all((0..100).map(|n| n.to_string())).await.expect("added");
    for _ in 0..100 {
        let item = timeout(LATEST, queue.get()).await.expect("claimed").expect("a key is ready");
        assert_eq!(queue.counts().await.expect("counted").in_flight, 1);
        item.succeed().await.expect("the lease is held");
    }
}
