//! Tests requests that arrive one by one, without concurrent requests.

use super::*;

/// Adds many keys one by one. After this, the batcher expects no concurrent requests.
async fn add_one_by_one(queue: &Queue) {
    for n in 0..20 {
        queue.add(format!("lone {n}")).await.expect("added");
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_a_lone_one_is_under_way_does_not_wait_for_it() {
    let mut engine = Memory::new();
    engine.breadth = 2;
    let (engine, queue) = queue_with(engine, Options::default());
    add_one_by_one(&queue).await;
    engine.fail([Mishap::Silent]);
    let hung = tokio::spawn({
        let queue = queue.clone();
        async move { queue.add("hung").await }
    });
    settle().await;
    engine.batches();
    assert_eq!(queue.add("other").await.expect("added"), Added::New);
    assert_eq!(engine.batches(), [1]);
    hung.await.expect("the task completes").expect_err("the store does not answer");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_alone_any_more_travels_together() {
    let (engine, queue) = queue();
    add_one_by_one(&queue).await;
    engine.batches();
    let gate = engine.gate.lock().await;
    let adds: Vec<_> = (0..50)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.add(n.to_string()).await })
        })
        .collect();
    settle().await;
    drop(gate);
    for add in adds {
        add.await.expect("the task completes").expect("added");
    }
    let batches = engine.batches();
    assert!(batches.len() <= 2, "{batches:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lone_add_that_is_given_up_may_happen_and_holds_up_nobody() {
    let (engine, queue) = queue();
    add_one_by_one(&queue).await;
    engine.batches();
    let gate = engine.gate.lock().await;
    let mut given_up = Box::pin(queue.add("given up"));
    assert!(poll_fn(|at| Poll::Ready(given_up.as_mut().poll(at).is_pending())).await);
    settle().await;
    drop(given_up);
    drop(gate);
    queue.add("other").await.expect("added");
    assert_eq!(engine.batches(), [1, 1]);
}

/// A waker that panics when it is used.
struct Unwell;

impl std::task::Wake for Unwell {
    fn wake(self: Arc<Self>) {
        panic!("not well");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_add_whose_caller_panics_takes_nobody_with_it() {
    let (engine, queue) = queue();
    add_one_by_one(&queue).await;
    let gate = engine.gate.lock().await;
    let mut add = Box::pin(queue.add("a"));
    let waker = std::task::Waker::from(Arc::new(Unwell));
    assert!(add.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    drop(gate);
    settle().await;
    assert_eq!(queue.add("b").await.expect("added"), Added::New);
}
