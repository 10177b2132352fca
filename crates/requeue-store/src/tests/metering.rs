//! What is counted of a queue, and how often the engine is asked for it.

use super::*;
use crate::add::Cancelled;

#[tokio::test(start_paused = true)]
async fn what_this_process_does_is_counted_here_and_keys_by_the_engine() {
    let options = Options { max_failures: Some(2), ..Options::default() };
    let (_engine, queue) = queue_with(Memory::new(), options);
    assert_eq!(queue.sample(), None);
    queue.add_all(["a", "a", "b", "c"]).await.expect("added");
    queue.add_after("d", 7 * SECOND).await.expect("added");
    tokio::time::advance(SECOND).await;

    let [a, b, c] = [get(&queue).await, get(&queue).await, get(&queue).await];
    queue.add("b").await.expect("added");
    tokio::time::advance(2 * SECOND).await;
    queue.recent_counts().await.expect("counted");
    let sample = queue.sample().expect("counted");
    assert_eq!((sample.depth, sample.waiting, sample.processing), (1, 1, 3));
    assert_eq!((sample.unfinished_work, sample.longest_running), (6 * SECOND, 2 * SECOND));

    a.succeed().await.expect("it is ours");
    b.retry("no").await.expect("it is ours");
    c.park("never").await.expect("it is ours");
    let again = get(&queue).await;
    assert_eq!((again.as_str(), again.attempt()), (Some("b"), 2));
    again.retry_after(SECOND, "no").await.expect("it is ours");
    assert!(queue.cancel("d").await.expect("it is there").waiting);
    tokio::time::advance(2 * SECOND).await;
    queue.recent_counts().await.expect("counted");
    let sample = queue.sample().expect("counted");
    let counts = sample.counts;
    // a, b, c, d and b again.
    assert_eq!((counts.adds, counts.coalesced, counts.hand_outs), (5, 1, 4));
    // d, and b's first failure: its second was its last.
    assert_eq!((counts.failures, counts.retries, sample.given_up), (3, 2, 2));
    assert_eq!(sample.times.queued.sum, 3 * SECOND.as_nanos() + 2 * SECOND.as_nanos());
    assert_eq!((sample.times.worked.count(), sample.times.worked.sum), (4, 6_000_000_000));
    assert_eq!((sample.depth, sample.waiting, sample.processing), (0, 0, 0));
    assert_eq!(sample.parked, Some(2));
}

#[tokio::test(start_paused = true)]
async fn keys_are_counted_once_a_second_however_many_ask() {
    let (engine, queue) = queue();
    engine.batches();
    for _ in 0..10 {
        queue.recent_counts().await.expect("counted");
    }
    assert_eq!(engine.batches().len(), 1);
    queue.add("a").await.expect("added");
    assert_eq!(queue.recent_counts().await.expect("counted").ready, 0);
    tokio::time::advance(SECOND).await;
    assert_eq!(queue.recent_counts().await.expect("counted").ready, 1);
    // One that is asked for while the store is away says so, and the next is a count again.
    tokio::time::advance(SECOND).await;
    engine.fail([Mishap::Absent]);
    queue.recent_counts().await.expect_err("nobody is there");
    assert_eq!(queue.recent_counts().await.expect("counted").ready, 1);
    assert_eq!(
        queue.cancel("a").await.expect("there"),
        Cancelled { ready: true, ..<_>::default() }
    );
}

#[cfg(feature = "prometheus")]
#[tokio::test(start_paused = true)]
async fn metrics_have_the_queue_as_long_as_it_is_there() {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use requeue::metrics::Metrics;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (_engine, queue) = queue();
    metrics.add("q", &queue.shared).expect("there is no other");
    tokio::spawn(crate::recent::keep_counting(Arc::downgrade(&queue.shared)));
    let shown = || {
        let mut body = String::new();
        text::encode(&mut body, &registry).expect("it is text");
        body
    };
    let shows = |line: &str| shown().lines().any(|shown| shown == line);
    settle().await;
    assert!(shows("workqueue_depth{name=\"q\"} 0"), "{}", shown());
    assert!(shows("workqueue_parked{name=\"q\"} 0"), "{}", shown());
    queue.add("a").await.expect("added");
    assert!(shows("workqueue_adds_total{name=\"q\"} 1"), "{}", shown());
    assert!(shows("workqueue_depth{name=\"q\"} 0"), "{}", shown());
    tokio::time::sleep(11 * SECOND).await;
    assert!(shows("workqueue_depth{name=\"q\"} 1"), "{}", shown());
    drop(queue);
    settle().await;
    assert_eq!(shown(), "# EOF\n");
}
