//! The worked examples of the pace in `docs/concepts/semantics.md`. Each test has the name of its
//! heading.
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{fake, retry};
use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{Add, Added, BuildError, Builder, Completion, Item, Merge, Pace, Queue, ReaddPolicy};

const S: Duration = Duration::from_secs(1);

/// Returns a queue with a backoff of 5 s, 10 s, 20 s and so on.
fn queue(policy: ReaddPolicy, pace: Pace) -> (FakeClock, Queue<&'static str>) {
    let clock = FakeClock::new();
    let queue = Queue::builder()
        .clock(clock.clone())
        .readd_policy(policy)
        .limiter(ExponentialFailure::new(5 * S, 1000 * S))
        .pace(pace)
        .build()
        .unwrap();
    (clock, queue)
}

fn get<'q>(queue: &'q Queue<&'static str>) -> Item<'q, &'static str> {
    queue.try_get().unwrap()
}

fn run(queue: &Queue<&'static str>, key: &'static str) {
    queue.add(key);
    let item = get(queue);
    assert_eq!(*item, key);
    item.succeed();
}

/// Returns the time until `key` is due.
fn waits(queue: &Queue<&'static str>, key: &'static str) -> Duration {
    queue.look_up(&key).unwrap().due.unwrap().since(queue.now())
}

#[test]
fn pace_an_add_above_the_pace_waits_and_coalesces() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::new(2, 10 * S));
    run(&queue, "a");
    clock.advance(4 * S);
    run(&queue, "a");
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::New);
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::Coalesced);
    assert_eq!(waits(&queue, "a"), 4 * S);
    clock.advance(4 * S);
    let item = get(&queue);
    assert_eq!(item.adds(), 2);
    item.succeed();
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!(waits(&queue, "a"), 4 * S);
}

#[test]
fn pace_a_dirty_key_waits_after_its_completion() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    queue.add("a");
    let item = get(&queue);
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::Dirty);
    clock.advance(S);
    item.succeed();
    assert_eq!((queue.len(), waits(&queue, "a")), (0, 8 * S));
    clock.advance(8 * S);
    get(&queue).succeed();
}

#[test]
fn pace_a_retry_waits_for_its_backoff_and_then_for_the_pace() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(8 * S));
    queue.add("a");
    assert_eq!(retry(&queue, get(&queue)), 5 * S);
    clock.advance(5 * S);
    assert!(queue.try_get().is_none());
    assert_eq!(waits(&queue, "a"), 3 * S);
    clock.advance(3 * S);
    let item = get(&queue);
    assert_eq!(item.attempt(), 2);
    assert_eq!(retry(&queue, item), 10 * S);
    clock.advance(10 * S);
    get(&queue).succeed();
}

#[test]
fn pace_a_release_is_not_a_run() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    queue.add("a");
    get(&queue).complete(Completion::Release);
    get(&queue).succeed();
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!(waits(&queue, "a"), 9 * S);
}

#[test]
fn pace_the_latest_of_debounce_named_time_and_pace_wins() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    run(&queue, "a");
    clock.advance(S);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::New);
    assert_eq!(waits(&queue, "a"), 2 * S);
    clock.advance(2 * S);
    assert!(queue.try_get().is_none());
    assert_eq!(waits(&queue, "a"), 7 * S);
    clock.advance(6 * S);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
    assert_eq!(waits(&queue, "a"), 2 * S);
    clock.advance(2 * S);
    get(&queue).succeed();
    queue.add_after("a", 30 * S);
    assert_eq!(waits(&queue, "a"), 30 * S);
}

#[test]
fn pace_cancel_and_forget_do_not_reset_it() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    run(&queue, "a");
    clock.advance(S);
    queue.add("a");
    assert!(queue.cancel(&"a").waiting);
    assert!(queue.look_up(&"a").is_none());
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!(waits(&queue, "a"), 9 * S);
    queue.forget(&"a");
    queue.add_with("a", Add::now().merge(Merge::Exactly));
    assert_eq!(waits(&queue, "a"), 9 * S);
}

#[test]
fn pace_keep_both_the_two_runs_become_one() {
    let (clock, queue) = queue(ReaddPolicy::KeepBoth, Pace::min_interval(10 * S));
    run(&queue, "a");
    assert_eq!(queue.add_after("a", 20 * S), Added::New);
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::Coalesced);
    assert_eq!(waits(&queue, "a"), 9 * S);
    clock.advance(9 * S);
    let item = get(&queue);
    assert_eq!(item.adds(), 2);
    item.succeed();
    assert!(queue.look_up(&"a").is_none());
}

#[test]
fn pace_close_waits_for_it_and_shut_down_drops_it() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    run(&queue, "a");
    run(&queue, "b");
    queue.add("a");
    queue.add("b");
    queue.close();
    clock.advance(10 * S);
    let first = get(&queue);
    let item = get(&queue);
    assert_eq!((*first, *item, queue.add("b")), ("a", "b", Added::Dirty));
    first.succeed();
    assert_eq!(queue.add("a"), Added::Refused);
    queue.shut_down();
    item.succeed();
    assert_eq!(queue.take_dropped(), ["b"]);
}

#[test]
fn pace_other_keys_and_priorities_do_not_change_it() {
    let (_clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    run(&queue, "a");
    queue.add_with("a", Add::now().priority(100));
    run(&queue, "b");
    assert!(queue.try_get().is_none());
    assert_eq!(queue.waiting(), 1);
}

// --- Beside the page ------------------------------------------------------------------------------

/// The debounced add comes before the start is taken back. If the pace changed the due time of the
/// run, the run would stay late.
#[test]
fn a_debounced_run_does_not_wait_for_a_start_that_is_taken_back() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    queue.add("a");
    let item = get(&queue);
    queue.add_with("a", Add::debounce(2 * S));
    item.uncount_start();
    item.succeed();
    assert_eq!(waits(&queue, "a"), 2 * S);
    clock.advance(2 * S);
    get(&queue).succeed();
    assert_eq!(queue.totals().paced, 0);
}

/// If the pace delays a run, the run is counted once, even if its due time changes.
#[test]
fn a_run_that_the_pace_delays_counts_once() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::min_interval(10 * S));
    run(&queue, "a");
    queue.add("a");
    queue.add_after("a", 5 * S);
    clock.advance(5 * S);
    assert!(queue.try_get().is_none());
    queue.add_with("a", Add::after(20 * S).merge(Merge::Latest));
    queue.add("a");
    assert_eq!((waits(&queue, "a"), queue.totals().paced), (5 * S, 1));
    clock.advance(5 * S);
    get(&queue).succeed();
    queue.add("a");
    assert_eq!(queue.totals().paced, 2);
}

#[test]
fn a_paced_key_says_so_and_is_counted() {
    let (clock, queue) = queue(ReaddPolicy::Hold, Pace::new(2, 10 * S));
    run(&queue, "a");
    run(&queue, "a");
    clock.advance(S);
    queue.add("a");
    queue.add("a");
    assert_eq!(queue.explain(&"a"), "waiting for its pace; ready in 9.0s; it ran 2 times in 10s");
    assert_eq!(queue.totals().paced, 1);
}

#[test]
fn a_pace_without_runs_or_time_is_refused() {
    for pace in [Pace::new(0, S), Pace::new(1001, S), Pace::new(1, Duration::ZERO)] {
        let built = Queue::<u8>::builder().pace(pace).build().map(drop);
        assert_eq!(built, Err(BuildError::InvalidPace(pace)));
    }
    assert_eq!(
        BuildError::InvalidPace(Pace::new(1001, S)).to_string(),
        "a pace of 1001 runs per 1s is not possible; use 1 to 1000 runs, and a time above zero"
    );
}

/// The test includes calls that take several keys under one acquisition of the lock.
#[test]
fn batches_and_succeed_and_get_obey_the_pace() {
    let clock = FakeClock::new();
    let pace = Pace::min_interval(S);
    let queue = Builder::client_go().clock(clock.clone()).pace(pace).build().unwrap();
    for round in 0..3_u32 {
        queue.add_all(0..100);
        if round > 0 {
            assert!(queue.get_many(100).now().is_empty());
            clock.advance(S);
        }
        let items = queue.get_many(50).now();
        assert_eq!(items.len(), 50);
        items.into_iter().for_each(Item::succeed);
        let mut next = queue.try_get();
        let mut ran = 0;
        while let Some(item) = next {
            ran += 1;
            item.succeed();
            next = queue.try_get();
        }
        assert_eq!(ran, 50);
    }
    let (plain, _clock) = fake::<u8>();
    plain.add(1);
    plain.try_get().unwrap().succeed();
    assert_eq!((plain.add(1), plain.len()), (Added::New, 1));
}
