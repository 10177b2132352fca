//! Tests a queue's metrics, and how often the engine counts keys.

use requeue::Completion;
use tokio::time::timeout;

use super::*;

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
    assert_eq!((sample.depth, sample.waiting, sample.in_flight), (1, 1, 3));
    assert_eq!(
        (sample.times.unfinished_work, sample.times.longest_running),
        (6 * SECOND, 2 * SECOND)
    );

    a.succeed().await.expect("the lease is held");
    b.retry("no").await.expect("the lease is held");
    c.give_up("never").await.expect("the lease is held");
    let again = get(&queue).await;
    assert_eq!((again.as_str(), again.attempt()), (Some("b"), 2));
    again.complete(Completion::RetryAfter(SECOND)).await.expect("the lease is held");
    assert!(queue.cancel("d").await.expect("cancelled"));
    tokio::time::advance(2 * SECOND).await;
    queue.recent_counts().await.expect("counted");
    let sample = queue.sample().expect("counted");
    let counts = sample.totals;
    // The adds are `a` twice, `b`, `c`, `d`, and `b` again. One add of `a` is coalesced.
    assert_eq!((counts.adds, counts.enqueued, counts.coalesced), (6, 5, 1));
    assert_eq!(counts.deliveries, 4);
    // `b` failed twice and `c` once. The retries are the delay of `d` and the first failure of `b`. The second failure
    // of `b` was its last one.
    assert_eq!((counts.failures, counts.retries, sample.given_up), (3, 2, 2));
    assert_eq!((sample.consecutive.counts[..2].to_vec(), sample.consecutive.sum), (vec![2, 1], 4));
    assert_eq!(sample.times.queued.sum, 3 * SECOND.as_nanos() + 2 * SECOND.as_nanos());
    assert_eq!((sample.times.worked.count(), sample.times.worked.sum), (4, 6_000_000_000));
    assert_eq!((sample.depth, sample.waiting, sample.in_flight), (0, 0, 0));
    assert_eq!(sample.parked, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_lease_has_expired_counts_as_a_failure_unless_it_was_cancelled() {
    let completions = [
        Completion::Succeed,
        Completion::Retry,
        Completion::GiveUp,
        Completion::Release,
        Completion::Cancelled,
    ];
    let both = |completion| [(completion, false), (completion, true)];
    for (completion, is_cancelled) in completions.into_iter().flat_map(both) {
        let (engine, queue) = queue();
        queue.add("a").await.expect("added");
        let item = get(&queue).await;
        if is_cancelled {
            let cancelled = queue.cancel_running("a").await.expect("answered");
            assert_eq!(cancelled, requeue::CancelledRun::Cancelled);
            item.cancelled().await;
        }
        engine.fail([Mishap::Absent; 500]);
        item.lost().await;
        engine.clear();
        item.complete(completion).await.expect_err("the lease has expired");
        queue.recent_counts().await.expect("counted");
        let sample = queue.sample().expect("counted");
        let consecutive = sample.consecutive.counts;
        assert_eq!(consecutive.iter().sum::<u64>(), sample.totals.failures, "{completion:?}");
        let counted = (sample.totals.failures, sample.given_up, sample.times.worked.count());
        let failures = u64::from(!is_cancelled);
        assert_eq!(counted, (failures, 0, 1), "{completion:?}, {is_cancelled}");
        // The store has counted the same number of failures.
        queue.add("a").await.expect("added");
        let attempt = u64::from(get(&queue).await.attempt());
        assert_eq!(attempt, 1 + failures, "{completion:?}, {is_cancelled}");
    }
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
}

#[tokio::test(start_paused = true)]
async fn a_count_goes_on_whoever_has_gone() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    engine.batches();
    let counting = engine.counting.lock().await;
    // The loop takes longer than the duration of the lease.
    for _ in 0..5 {
        timeout(10 * SECOND, queue.recent_counts()).await.expect_err("the count goes on");
    }
    assert_eq!((engine.batches(), queue.sample()), (vec![], None));
    drop(counting);
    assert_eq!(queue.recent_counts().await.expect("counted").ready, 1);
    assert_eq!(engine.batches(), [0], "one count");
}

/// Makes a count that takes `time`.
async fn count_in(engine: &Memory, queue: &Queue, time: Duration) {
    engine.batches();
    let counting = engine.counting.lock().await;
    let asked = tokio::spawn({
        let queue = queue.clone();
        async move { queue.recent_counts().await }
    });
    settle().await;
    tokio::time::advance(time).await;
    drop(counting);
    asked.await.expect("the task completes").expect("counted");
    assert_eq!(engine.batches().len(), 1, "a count was due");
}

/// Checks that the next count is due after the interval `pause`, and not earlier.
async fn rests(engine: &Memory, queue: &Queue, pause: Duration) {
    engine.batches();
    tokio::time::advance(pause - Duration::from_millis(1)).await;
    queue.recent_counts().await.expect("counted");
    assert_eq!(engine.batches(), vec![], "{pause:?} are not over");
    let age = queue.sample().and_then(|sample| sample.counts_age);
    assert_eq!(age, Some(pause - Duration::from_millis(1)));
    tokio::time::advance(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stall_makes_no_long_pause_and_long_counts_take_a_fifth_of_the_time() {
    let (engine, queue) = queue();
    // Any count may be slow once, even the first one.
    count_in(&engine, &queue, 40 * SECOND).await;
    rests(&engine, &queue, 30 * SECOND).await;
    count_in(&engine, &queue, SECOND / 10).await;
    rests(&engine, &queue, 5 * SECOND).await;
    count_in(&engine, &queue, 40 * SECOND).await;
    rests(&engine, &queue, 5 * SECOND).await;
    // A large queue makes each count slow.
    for time in [40, 50] {
        count_in(&engine, &queue, time * SECOND).await;
        rests(&engine, &queue, 160 * SECOND).await;
    }
    count_in(&engine, &queue, SECOND).await;
    rests(&engine, &queue, 30 * SECOND).await;
    count_in(&engine, &queue, SECOND / 100).await;
    rests(&engine, &queue, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_count_without_an_answer_fails_and_the_last_numbers_remain() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    queue.recent_counts().await.expect("counted");
    tokio::time::advance(SECOND).await;
    let counting = engine.counting.lock().await;
    for pause in [1, 60, 120, 240, 240] {
        let begin = Instant::now();
        let error = queue.recent_counts().await.expect_err("it takes too long");
        assert_eq!(begin.elapsed(), 60 * SECOND);
        let text = "the keys were not counted: the store did not answer in time";
        assert_eq!(chain(&error), text);
        tokio::time::advance(pause * SECOND - Duration::from_millis(1)).await;
        queue.recent_counts().await.expect_err("the error is cached");
        assert_eq!(begin.elapsed(), (60 + pause) * SECOND - Duration::from_millis(1));
        let sample = queue.sample().expect("counted");
        assert_eq!(sample.depth, 1);
        assert!(sample.counts_age >= Some(begin.elapsed()));
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    drop(counting);
    queue.recent_counts().await.expect("the store is back");
    assert_eq!(queue.sample().and_then(|sample| sample.counts_age), Some(Duration::ZERO));
}

/// Makes a count fail with `fault`, or at the time limit if it is `None`. Checks that the next count is due after
/// `pause` seconds.
async fn fails(engine: &Memory, queue: &Queue, fault: Option<Mishap>, pause: u32) {
    match fault {
        Some(fault) => {
            let counting = engine.counting.lock().await;
            let asked = tokio::spawn({
                let queue = queue.clone();
                async move { queue.recent_counts().await }
            });
            settle().await;
            tokio::time::advance(SECOND).await;
            engine.fail([fault]);
            drop(counting);
            asked.await.expect("the task completes").expect_err("the count fails");
        }
        None => {
            engine.fail([Mishap::Silent]);
            let begin = Instant::now();
            queue.recent_counts().await.expect_err("the count takes too long");
            assert_eq!(begin.elapsed(), 60 * SECOND);
        }
    }
    let (pause, moment) = (pause * SECOND, Duration::from_millis(1));
    // If the engine were queried, it would give this answer.
    engine.fail([Mishap::Refused]);
    tokio::time::advance(pause - moment).await;
    let error = queue.recent_counts().await.expect_err("the error is cached");
    assert!(!chain(&error).contains("not allowed"), "{pause:?} are not over");
    engine.clear();
    tokio::time::advance(moment).await;
}

/// During an outage, counts fail in both ways. After it, the numbers must soon be up to date again.
#[tokio::test(start_paused = true)]
async fn only_counts_that_take_too_long_in_a_row_make_long_pauses() {
    let (engine, queue) = queue();
    let absent = Some(Mishap::Absent);
    for pause in [1, 2, 4, 8, 10, 10, 10, 10] {
        fails(&engine, &queue, absent, pause).await;
    }
    for _ in 0..2 {
        for (fault, pause) in [(None, 10), (None, 60), (None, 120), (absent, 10)] {
            fails(&engine, &queue, fault, pause).await;
        }
    }
    queue.recent_counts().await.expect("the store is back");
    tokio::time::advance(SECOND).await;
    fails(&engine, &queue, None, 1).await;
    fails(&engine, &queue, None, 60).await;
    queue.recent_counts().await.expect("the store is back");
}

#[tokio::test(start_paused = true)]
async fn the_times_of_what_runs_longest_count_to_now() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let _a = get(&queue).await;
    queue.add_after("a", 90 * SECOND).await.expect("added");
    let first = queue.recent_longest().await.expect("listed").remove(0);
    engine.batches();
    let ago = SECOND / 2;
    tokio::time::advance(ago).await;
    let second = queue.recent_longest().await.expect("listed").remove(0);
    assert_eq!(engine.batches(), vec![], "the entries are cached");
    let later = |time: Option<Duration>| time.map(|time| time - ago);
    assert!(first.lease.is_some() && first.due.is_some(), "{first:?}");
    assert_eq!((second.lease, second.due), (later(first.lease), later(first.due)));
    assert_eq!(second.since, first.since.map(|since| since + ago));
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_is_not_asked_for_by_each_who_waited() {
    let (engine, queue) = queue();
    for pause in [1, 2, 4] {
        let counting = engine.counting.lock().await;
        let asked: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.recent_counts().await })
            })
            .collect();
        settle().await;
        tokio::time::advance(30 * SECOND).await;
        // Only one query fails, and all callers receive its error.
        engine.fail([Mishap::Absent]);
        drop(counting);
        for asked in asked {
            let error =
                asked.await.expect("the task completes").expect_err("the store is unreachable");
            assert_eq!(chain(&error), "the keys were not counted: nobody is there");
        }
        tokio::time::advance(pause * SECOND - Duration::from_millis(1)).await;
        queue.recent_counts().await.expect_err("the error is cached");
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    queue.recent_counts().await.expect("the store is back");
}

#[tokio::test(start_paused = true)]
async fn what_runs_longest_is_looked_for_once_a_second() {
    let (engine, queue) = queue();
    queue.add("z").await.expect("added");
    let _z = get(&queue).await;
    tokio::time::advance(SECOND).await;
    queue.add("a").await.expect("added");
    let _a = get(&queue).await;
    queue.add("b").await.expect("added");
    engine.batches();
    for tenths in 0..10 {
        let longest = queue.recent_longest().await.expect("listed");
        let since: Vec<_> = longest.iter().map(|entry| (entry.key.as_str(), entry.since)).collect();
        let ago = tenths * SECOND / 10;
        assert_eq!(since, [(Some("z"), Some(SECOND + ago)), (Some("a"), Some(ago))]);
        tokio::time::advance(SECOND / 10).await;
    }
    assert_eq!(engine.batches().len(), 1);
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
    metrics.add("q", &queue.shared).expect("the name is free");
    tokio::spawn(crate::client::shared::keep_counting(Arc::downgrade(&queue.shared)));
    let shown = || {
        let mut body = String::new();
        text::encode(&mut body, &registry).expect("valid UTF-8");
        body
    };
    let shows = |line: &str| shown().lines().any(|shown| shown == line);
    settle().await;
    assert!(shows("workqueue_depth{name=\"q\"} 0"), "{}", shown());
    assert!(shows("workqueue_parked{name=\"q\"} 0"), "{}", shown());
    assert!(shows("workqueue_paused{name=\"q\"} 0"), "{}", shown());
    assert!(!shown().contains("group_limit"), "the queue has no groups");
    queue.add("a").await.expect("added");
    assert!(shows("workqueue_adds_total{name=\"q\"} 1"), "{}", shown());
    assert!(shows("workqueue_depth{name=\"q\"} 0"), "{}", shown());
    tokio::time::sleep(11 * SECOND).await;
    assert!(shows("workqueue_depth{name=\"q\"} 1"), "{}", shown());
    drop(queue);
    settle().await;
    assert_eq!(shown(), "# EOF\n");
}
