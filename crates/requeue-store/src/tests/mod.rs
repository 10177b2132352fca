//! Tests the API and the client with an engine in memory: batches, getters, leases, and failures of the engine. The
//! time is the paused time of tokio, which advances only while all tasks wait for it.

pub(crate) mod conformance;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod cuts;
pub(crate) mod damage;

mod activity;
mod adding;
mod ahead;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) mod cancelling;
mod claims;
pub(crate) mod dropping;
mod engine;
mod errors;
mod firing;
mod getting;
#[cfg(feature = "sqlite")]
mod grouping;
mod in_memory;
mod leases;
mod locked;
mod lonely;
mod metering;
mod outage;
pub(crate) mod parking;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) mod pausing;
#[cfg(feature = "sqlite")]
mod rating;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
pub(crate) mod scheduling;
mod settling;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) mod upgrade;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use requeue::Completion;
use tokio::time::Instant;

use self::engine::{Memory, Mishap};
use crate::api::queue::Queue;
use crate::client::item::Item;
use crate::client::options::Options;
use crate::engine::receipts::Attempts;
use crate::engine::{Ask, End, Engine, Place, Tried};
use crate::types::add::{Add, Added, Priority, ReaddPolicy};
use crate::types::error::{Answer, CompleteError, chain};

/// The operations of an engine, for callers that do not repeat batches.
#[async_trait]
pub(crate) trait Batches: Engine {
    async fn add_keys(&self, queue: &Place, asks: Vec<Ask>) -> Answer<Vec<Added>> {
        self.add_once(queue, asks, &mut Attempts::until(Instant::now())).await
    }

    async fn add_once(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        attempts: &mut Attempts,
    ) -> Answer<Vec<Added>> {
        let added = self.send_adds(queue, asks, attempts, Tried::No).await?;
        Ok(added.into_iter().map(|added| added.expect("no key is skipped")).collect())
    }

    async fn add_free(&self, queue: &Place, asks: Vec<Ask>) -> Answer<Vec<Option<Added>>> {
        self.send_adds(queue, asks, &mut Attempts::until(Instant::now()), Tried::InVain).await
    }

    async fn finish_deliveries(&self, queue: &Place, ends: Vec<End>) -> Answer<Vec<bool>> {
        let held = self.send_completions(queue, ends, Tried::No).await?;
        Ok(held.into_iter().map(|held| held.expect("no key is skipped")).collect())
    }

    async fn finish_free(&self, queue: &Place, ends: Vec<End>) -> Answer<Vec<Option<bool>>> {
        self.send_completions(queue, ends, Tried::InVain).await
    }
}

impl<E: Engine + ?Sized> Batches for E {}

/// A future that an engine or a rig returns.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type BoxAnswer<'a, T> = BoxFuture<'a, Answer<T>>;

const SECOND: Duration = Duration::from_secs(1);

fn queue_with(engine: Memory, options: Options) -> (Arc<Memory>, Queue) {
    let engine = Arc::new(engine);
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let queue = Queue::new(Arc::clone(&engine) as Arc<dyn Engine>, place, options, None);
    (engine, queue)
}

fn queue() -> (Arc<Memory>, Queue) {
    queue_with(Memory::new(), Options::default())
}

pub(crate) async fn get(queue: &Queue) -> Item {
    queue.get().await.expect("the queue is open")
}

/// Lets all tasks run until each of them waits for time to pass.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Polls a future once.
pub(crate) async fn polled<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_dropped_has_failed() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    drop(get(&queue).await);
    let item = get(&queue).await;
    assert_eq!(item.attempt(), 2);
    item.retry("no luck").await.expect("the lease is held");
    assert_eq!(engine.row("a").expect("the key has a row").error.as_deref(), Some("no luck"));
}

#[tokio::test(start_paused = true)]
async fn after_so_many_failures_a_key_is_parked_until_it_is_revived() {
    let options = Options { max_failures: Some(2), ..Options::default() };
    let (_, queue) = queue_with(Memory::new(), options);
    queue.add("a").await.expect("added");
    for attempt in 1..=2 {
        let item = get(&queue).await;
        assert_eq!(item.attempt(), attempt);
        item.retry(format!("no {attempt}")).await.expect("the lease is held");
    }
    let parked = queue.snapshot(crate::State::Parked, None, 10).await.expect("a page");
    assert_eq!((parked.len(), parked[0].error.as_deref()), (1, Some("no 2")));
    assert!(queue.revive("a").await.expect("revived"));
    let item = get(&queue).await;
    assert_eq!((item.attempt(), queue.revive("a").await.expect("answered")), (1, false));
    // If the key was added during the run, it runs again instead, and its failures are reset.
    queue.add("a").await.expect("added");
    item.give_up("never").await.expect("the lease is held");
    let item = get(&queue).await;
    item.give_up("never").await.expect("the lease is held");
    assert_eq!(queue.add("a").await.expect("answered"), Added::Revived);
    assert_eq!(get(&queue).await.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_a_long_error_the_beginning_is_kept() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    get(&queue).await.retry("\u{20ac}".repeat(3000)).await.expect("the lease is held");
    let error = engine.row("a").and_then(|row| row.error).expect("the row has an error");
    assert_eq!(error, "\u{20ac}".repeat(1365));
}

#[tokio::test]
async fn of_a_long_output_the_end_is_kept() {
    let store = crate::Store::connect("sqlite::memory:").await.expect("the store opens");
    store.migrate().await.expect("the schema is created");
    let queue = store.queue("q").open().await.expect("the queue opens");
    let (euro, no_text) = ("\u{20ac}", "\u{fffd}");
    for (output, kept) in [
        ("".into(), None),
        (b"a\xffb\0".to_vec(), Some("a\u{fffd}b\0".to_owned())),
        (euro.repeat(3000).into(), Some(euro.repeat(1365))),
        (vec![0xff; 9000], Some(no_text.repeat(1365))),
        (vec![0x80; 4097], Some(no_text.repeat(1365))),
        ([b"\xe2".to_vec(), vec![b'a'; 4096]].concat(), Some("a".repeat(4096))),
    ] {
        queue.add("a").await.expect("added");
        let mut item = get(&queue).await;
        item.set_output(output);
        item.give_up("no").await.expect("the lease is held");
        let attempts = queue.attempts("a").await.expect("read");
        assert_eq!((attempts.len(), &attempts[0].output), (1, &kept));
        assert!(attempts[0].worker.is_some(), "{attempts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_its_last_handle_its_tasks_end() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    drop(queue);
    settle().await;
    item.succeed().await.expect("the lease is held");
    settle().await;
    assert_eq!(Arc::strong_count(&engine), 1);
}

#[test]
fn no_backoff_is_too_long() {
    let failing = crate::engine::Failing {
        backoff: crate::engine::Backoff { base: Duration::MAX, cap: Duration::MAX, share: 1.0 },
        max_failures: None,
    };
    let ask = crate::engine::Ask { adds: u32::MAX, ..crate::engine::Ask::new("a", Add::now()) };
    let place = Place::new(1, "q", ReaddPolicy::Hold);
    let (mut row, _) = crate::engine::row::Row::add(None, &ask, &place, 5);
    let _ = row.claim(&ask.key, 1, &Arc::from("w"), SECOND, 5);
    let how = row.lease_expiry(failing);
    let row = row.finish(how, &place, 6).expect("the row is kept");
    assert_eq!(row.at, Some(crate::engine::time::NEVER));
}

#[tokio::test(start_paused = true)]
async fn it_says_where_a_key_stands() {
    let (_, queue) = queue();
    let explained = async |key: &str| queue.explain(key).await.expect("looked up");
    assert_eq!(explained("a").await, "a: not in the queue");
    queue.add_after("a", SECOND).await.expect("added");
    assert_eq!(explained("a").await, "a: due in 1.0s");
    tokio::time::advance(SECOND).await;
    assert_eq!(explained("a").await, "a: ready for 0.0ns");
    let item = get(&queue).await;
    assert_eq!(explained("a").await, "a: in flight for 0.0ns; its lease expires in 30.0s");
    queue.add("a").await.expect("added");
    let dirty =
        "a: in flight for 0.0ns; its lease expires in 30.0s; it runs once more after this run";
    assert_eq!(explained("a").await, dirty);
    item.succeed().await.expect("the lease is held");
    get(&queue).await.give_up("no such thing").await.expect("the lease is held");
    assert_eq!(
        explained("a").await,
        "a: parked for 0.0ns, after a failure; it runs again only after a revive, or an add that \
         revives it: no such thing"
    );
}

#[tokio::test]
async fn no_time_is_too_long() {
    let store = crate::Store::connect("sqlite::memory:").await.expect("the store opens");
    store.migrate().await.expect("the schema is created");
    let (most, opening) = (Duration::MAX, store.queue("q"));
    let queue = opening.lease(most).poll(most).add_timeout(most).backoff(most, most);
    let queue = queue.open().await.expect("the queue opens");
    queue.add_after("later", most).await.expect("added");
    queue.add("a").await.expect("added");
    get(&queue).await.complete(Completion::RetryAfter(most)).await.expect("the lease is held");
}
