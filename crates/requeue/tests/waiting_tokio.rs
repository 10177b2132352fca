//! Waiting in tasks of a tokio runtime.
#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use common::{ms, on_tokio, secs};
use requeue::Queue;
use requeue::clock::TokioClock;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// Polls the future once, and returns it.
async fn poll_once<F: Future + Unpin>(mut future: F) -> F {
    poll_fn(|cx| Poll::Ready(pin!(&mut future).poll(cx).is_pending())).await;
    future
}

/// Starts eight workers, which wait for keys. Returns the keys that they get.
fn workers(queue: &Queue<u32>) -> mpsc::UnboundedReceiver<u32> {
    let (sender, receiver) = mpsc::unbounded_channel();
    for _ in 0..8 {
        let (queue, sender) = (queue.clone(), sender.clone());
        tokio::spawn(async move {
            while let Some(item) = queue.get().await {
                sender.send(*item).unwrap();
                item.succeed();
            }
        });
    }
    receiver
}

/// Yields until no other task can continue.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ten_adds_reach_eight_workers_past_a_getter_that_is_not_polled() {
    let queue = on_tokio();
    // This getter is not polled again, as in a `select!` in which another branch takes long.
    let asleep = poll_once(queue.get()).await;
    let mut handed_out = workers(&queue);
    settle().await;

    let start = Instant::now();
    (0..10).for_each(|key| _ = queue.add(key));
    for _ in 0..10 {
        timeout(secs(1), handed_out.recv()).await.expect("all ten keys are delivered").unwrap();
    }
    assert_eq!(start.elapsed(), ms(0), "at once");
    drop(asleep);
}

#[tokio::test(start_paused = true)]
async fn each_of_ten_adds_reaches_a_worker_past_a_getter_that_is_not_polled() {
    let queue = on_tokio();
    let asleep = poll_once(queue.get()).await;
    let mut handed_out = workers(&queue);
    settle().await;

    let start = Instant::now();
    for key in 0..10 {
        queue.add(key);
        let got = timeout(secs(1), handed_out.recv()).await.expect("the key is delivered");
        assert_eq!(got, Some(key));
        settle().await;
    }
    assert_eq!(start.elapsed(), ms(0), "at once");
    drop(asleep);
}

#[tokio::test(start_paused = true)]
async fn a_getter_in_a_select_that_takes_another_branch_loses_nothing() {
    let queue = on_tokio();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for key in 0..100 {
        // In each iteration, both branches of the `select!` are ready immediately.
        queue.add(key);
        sender.send(key).unwrap();
    }
    let (mut keys, mut messages) = (Vec::new(), 0);
    while keys.len() < 100 || messages < 100 {
        tokio::select! {
            Some(item) = queue.get() => keys.push(item.into_parts().0),
            Some(_) = receiver.recv() => messages += 1,
        }
    }
    assert_eq!(keys, (0..100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn delayed_keys_are_served_at_their_time_by_a_paused_runtime() {
    let queue = on_tokio();
    let start = Instant::now();
    for (key, delay) in [(3, 7200), (1, 10), (2, 20)] {
        queue.add_after(key, secs(delay));
    }
    for (key, delay) in [(1, 10), (2, 20), (3, 7200)] {
        let item = queue.get().await.unwrap();
        assert_eq!(*item, key);
        let late = start.elapsed() - secs(delay);
        assert!(late <= ms(1), "the runtime's timers have a resolution of 1 ms: {late:?}");
        item.succeed();
    }
}

#[tokio::test(start_paused = true)]
async fn a_due_key_reaches_a_worker_past_a_getter_that_is_not_polled() {
    let queue = on_tokio();
    let asleep = poll_once(queue.get()).await;
    let mut handed_out = workers(&queue);
    settle().await;
    queue.add_after(1, secs(10));
    let got = timeout(secs(11), handed_out.recv()).await.expect("the key is delivered when due");
    assert_eq!(got, Some(1));
    drop(asleep);
}

/// A thread outside the runtime waits by the clock of the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_thread_is_served_by_the_runtimes_clock() {
    let queue = Queue::builder().clock(TokioClock::current()).build().unwrap();
    queue.add_after("a", ms(5));
    let thread = std::thread::spawn({
        let queue = queue.clone();
        move || queue.get().blocking().map(|item| *item)
    });
    let join = tokio::task::spawn_blocking(|| thread.join().unwrap());
    assert_eq!(join.await.unwrap(), Some("a"));
}

/// The feature `tokio` changes nothing for a queue that does not use a `TokioClock`.
#[tokio::test(start_paused = true)]
async fn the_default_clock_is_the_systems_in_a_runtime_too() {
    let queue: Queue<u8> = Queue::new();
    let before = queue.now();
    tokio::time::advance(secs(1_000_000)).await;
    assert!(queue.now().since(before) < secs(1_000_000));
}

#[tokio::test]
async fn blocking_calls_do_not_panic_in_a_runtime() {
    let queue = Queue::new();
    queue.add_all([1, 2]);
    let item = queue.get().blocking().unwrap();
    queue.succeed_and_try_get(item).or_else(|| queue.get().blocking()).unwrap().succeed();
    assert!(queue.shut_down_with_drain().timeout(secs(1)).blocking().finished);
    assert!(queue.get().blocking().is_none());
}

#[tokio::test]
async fn every_blocking_form_works_in_spawn_blocking() {
    let queue = on_tokio();
    queue.add_all(0..5);
    let blocking = move || {
        let items = [
            queue.get().blocking(),
            queue.get().timeout(secs(1)).blocking(),
            queue.get().blocking().map(requeue::Item::into_owned),
            queue.get_many(1).blocking().pop(),
        ];
        let keys: Vec<_> = items.iter().flatten().map(|item| **item).collect();
        items.into_iter().flatten().for_each(requeue::Item::succeed);
        queue.try_get().unwrap().succeed();
        assert!(queue.shut_down_with_drain().timeout(secs(1)).blocking().finished);
        assert!(queue.shut_down_with_drain().blocking().finished);
        keys
    };
    assert_eq!(tokio::task::spawn_blocking(blocking).await.unwrap(), [0, 1, 2, 3]);
}

/// A worker of a queue that is never empty must let other tasks run.
#[tokio::test(start_paused = true)]
async fn a_loop_over_a_full_queue_spends_the_cooperative_budget() {
    let queue = on_tokio();
    queue.add(0);
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            while let Some(item) = queue.get().await {
                queue.add(*item);
                item.succeed();
            }
        }
    });
    // On a runtime with one thread, this line is reached only if the worker yields.
    settle().await;
    worker.abort();
    assert!(worker.await.unwrap_err().is_cancelled());
}
