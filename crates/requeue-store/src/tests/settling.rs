//! Tests `Queue::settled`. When it returns, no claim and no completion is in progress.

use requeue::workers::{Action, Context, Error, Workers};

use super::engine::{Memory, Mishap};
use super::{SECOND, get, polled, queue, queue_with, settle};
use crate::client::options::Options;
use crate::types::key::Key;

#[tokio::test(start_paused = true)]
async fn what_was_claimed_for_one_who_has_gone_is_back_once_it_is_settled() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let gate = engine.gate.lock().await;
    let mut getter = Box::pin(queue.get());
    assert!(polled(&mut getter).await.is_pending());
    settle().await;
    drop(getter);
    let mut settled = Box::pin(queue.settled());
    settle().await;
    assert!(polled(&mut settled).await.is_pending());
    queue.shut_down();
    settle().await;
    assert!(polled(&mut settled).await.is_pending());
    drop(gate);
    settled.await;
    let row = engine.row("a").expect("the key has a row");
    assert!(row.run.is_none() && row.failures == 0, "{row:?}");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_under_way_is_waited_for_and_an_item_that_is_held_is_not() {
    let (engine, queue) = queue();
    queue.add_all(["a", "b"]).await.expect("added");
    let (a, b) = (get(&queue).await, get(&queue).await);
    queue.shut_down();
    let gate = engine.gate.lock().await;
    drop(a);
    let mut settled = Box::pin(queue.settled());
    settle().await;
    assert!(polled(&mut settled).await.is_pending());
    drop(gate);
    settled.await;
    assert!(engine.row("a").expect("the key has a row").run.is_none());
    assert_eq!(queue.leased(), 1);
    b.succeed().await.expect("the lease is still held");
}

#[tokio::test(start_paused = true)]
async fn with_a_store_that_is_gone_it_is_settled_when_the_leases_are_over() {
    let options = Options { lease: SECOND, ..Options::default() };
    let (engine, queue) = queue_with(Memory::new(), options);
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    queue.shut_down();
    engine.fail([Mishap::Absent; 100]);
    drop(item);
    queue.settled().await;
    assert_eq!(queue.leased(), 0);
}

#[tokio::test(start_paused = true)]
async fn workers_end_when_what_they_did_not_take_is_back() {
    async fn succeed(_: Key, _: Context) -> Result<Action, Error> {
        Ok(Action::succeed())
    }
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let gate = engine.gate.lock().await;
    let workers = Workers::new(queue.clone(), succeed).drain_timeout(SECOND);
    let mut ran = Box::pin(workers.run_until(settle()));
    assert!(polled(&mut ran).await.is_pending());
    // The workers have stopped by now, and no longer wait for a key.
    tokio::time::timeout(SECOND * 5, &mut ran).await.expect_err("a key is being claimed");
    drop(gate);
    ran.await;
    assert!(engine.row("a").expect("the key has a row").run.is_none());
}
