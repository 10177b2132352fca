//! Cancellation in tasks of a tokio runtime.
#![cfg(feature = "tokio")]

mod common;

use common::{ms, on_tokio, secs};
use requeue::Queue;
use tokio::sync::oneshot;
use tokio::time::timeout;

#[tokio::test(start_paused = true)]
async fn aborting_a_task_that_holds_an_item_gives_it_back() {
    let queue = on_tokio();
    queue.add("a");
    let (sender, taken) = oneshot::channel();
    let task = tokio::spawn({
        let queue = queue.clone();
        async move {
            let item = queue.get().await.unwrap();
            sender.send(*item).unwrap();
            std::future::pending::<()>().await;
            drop(item);
        }
    });
    assert_eq!(taken.await, Ok("a"));
    assert_eq!(queue.states().in_flight, 1);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!((queue.states().in_flight, queue.waiting()), (0, 1));
    let item = timeout(secs(1), queue.get()).await.expect("after its backoff").unwrap();
    assert_eq!((*item, item.attempt()), ("a", 2));
    item.succeed();
}

#[tokio::test(start_paused = true)]
async fn aborting_a_task_that_waits_takes_nothing() {
    let queue: Queue<&str> = on_tokio();
    let task = tokio::spawn({
        let queue = queue.clone();
        async move { queue.get().await.map(|item| *item) }
    });
    tokio::task::yield_now().await;
    task.abort();
    // The task is woken for the key, and is aborted before it is polled.
    queue.add("a");
    assert!(task.await.unwrap_err().is_cancelled());
    let item = timeout(ms(1), queue.get()).await.expect("at once").unwrap();
    assert_eq!((*item, item.attempt()), ("a", 1));
    item.succeed();
}

#[tokio::test(start_paused = true)]
async fn a_get_that_times_out_takes_nothing() {
    let queue: Queue<&str> = on_tokio();
    assert!(timeout(secs(1), queue.get()).await.is_err());
    assert!(timeout(secs(1), queue.get_many(5)).await.is_err());
    assert!(queue.get().timeout(secs(1)).await.is_none());
    queue.add("a");
    assert_eq!(queue.get().await.unwrap().attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_gives_its_item_back() {
    let queue = on_tokio();
    queue.add("a");
    let task = tokio::spawn({
        let queue = queue.clone();
        async move {
            let _item = queue.get().await.unwrap();
            std::panic::resume_unwind(Box::new(()));
        }
    });
    assert!(task.await.unwrap_err().is_panic());
    let item = timeout(secs(1), queue.get()).await.expect("after its backoff").unwrap();
    assert_eq!(item.attempt(), 2);
    item.succeed();
}
