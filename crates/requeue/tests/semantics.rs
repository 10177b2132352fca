//! The worked examples of `docs/concepts/semantics.md`. Each test has the name of its heading. The
//! examples of the pace are in `semantics_pace.rs`, and those of groups in `semantics_groups.rs`.
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{retry, take_all, timeless, would_wait};
use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{
    Add, Added, CancelReason, Cancelled, CancelledRun, Completion, GroupId, InFlightPolicy, Item,
    Merge, Order, Queue, ReaddPolicy, Time, describe_reasons, intern_reason,
};

const S: Duration = Duration::from_secs(1);

/// Returns a queue with a backoff of 5 s, 10 s, 20 s and so on.
fn queue(policy: ReaddPolicy) -> (FakeClock, Queue<&'static str>) {
    let clock = FakeClock::new();
    let queue = Queue::builder()
        .clock(clock.clone())
        .readd_policy(policy)
        .limiter(ExponentialFailure::new(5 * S, 1000 * S))
        .build()
        .unwrap();
    (clock, queue)
}

fn get<K: requeue::Key>(queue: &Queue<K>) -> Item<'_, K> {
    queue.try_get().unwrap()
}

#[test]
fn every_worked_example_of_the_page_is_a_test() {
    let mut examples: Vec<_> = include_str!("../../../docs/concepts/semantics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| {
            let words =
                heading.replace('\'', "").replace(|c: char| c != '_' && !c.is_alphanumeric(), " ");
            words.split_whitespace().collect::<Vec<_>>().join("_").to_lowercase()
        })
        .collect();
    let mut tests = Vec::new();
    for (file, prefix, others) in [
        (include_str!("semantics.rs"), "", 1), // This test has no heading.
        (include_str!("semantics_groups.rs"), "group_", 0),
        (include_str!("semantics_pace.rs"), "pace_", 0),
    ] {
        let begin = format!("#[test]\nfn {prefix}");
        let found = file.split(&begin).skip(1 + others);
        tests.extend(found.map(|test| format!("{prefix}{}", &test[..test.find('(').unwrap()])));
    }
    examples.sort();
    tests.sort();
    assert_eq!(examples, tests);
}

// --- Re-adds --------------------------------------------------------------------------------------

#[test]
fn hold_an_add_waits_for_the_backoff() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    assert_eq!(retry(&queue, get(&queue)), 5 * S);
    clock.advance(S);
    assert_eq!(queue.add("a"), Added::BackingOff);
    assert_eq!(queue.add_after("a", 2 * S), Added::BackingOff);
    assert_eq!(queue.add_after("a", 60 * S), Added::Coalesced);
    assert!(queue.try_get().is_none());
    clock.advance(4 * S);
    let item = get(&queue);
    assert_eq!((item.attempt(), item.adds()), (2, 4));
}

#[test]
fn hold_a_failed_dirty_key_waits_and_one_run_is_for_both() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    assert_eq!(queue.add("a"), Added::Dirty);
    item.retry();
    assert_eq!((queue.len(), queue.waiting()), (0, 1));
    clock.advance(5 * S);
    let item = get(&queue);
    assert_eq!((item.attempt(), item.adds()), (2, 2));
    item.succeed();
    assert!(queue.look_up(&"a").is_none());
}

#[test]
fn hold_forget_then_add_runs_now() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    get(&queue).retry();
    assert_eq!(queue.add("a"), Added::BackingOff);
    queue.forget(&"a");
    assert_eq!(queue.waiting(), 1);
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
    assert_eq!(get(&queue).attempt(), 1);
}

#[test]
fn hold_add_rate_limited_then_done_is_a_failure_too() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let (key, _ticket) = get(&queue).into_parts();
    assert_eq!(queue.add_rate_limited("a"), Added::New);
    assert_eq!(queue.add("a"), Added::BackingOff);
    assert!(queue.done(&key));
    assert_eq!((queue.len(), queue.waiting()), (0, 1));
    clock.advance(5 * S);
    let item = get(&queue);
    assert_eq!((item.attempt(), item.adds()), (2, 2));
}

#[test]
fn replace_an_add_takes_the_place_of_a_delayed_one() {
    let (clock, queue) = queue(ReaddPolicy::Replace);
    queue.add_after("a", 10 * S);
    clock.advance(2 * S);
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
    let item = get(&queue);
    assert_eq!(item.adds(), 2);
    item.succeed();
    clock.advance(8 * S);
    assert!(queue.try_get().is_none());
}

#[test]
fn replace_a_delayed_add_to_a_ready_key_is_part_of_its_run() {
    let (_clock, queue) = queue(ReaddPolicy::Replace);
    queue.add("a");
    assert_eq!(queue.add_after("a", 10 * S), Added::Coalesced);
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
    let item = get(&queue);
    assert_eq!(queue.add_after("a", 10 * S), Added::New);
    assert_eq!(queue.add("a"), Added::Dirty);
    assert_eq!(queue.waiting(), 0);
    assert_eq!(queue.add_after("a", 10 * S), Added::Coalesced);
    item.complete(Completion::RequeueAfter(10 * S));
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
}

#[test]
fn replace_a_failed_dirty_key_runs_immediately() {
    let (_clock, queue) = queue(ReaddPolicy::Replace);
    queue.add("a");
    let item = get(&queue);
    queue.add("a");
    item.retry();
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
    assert_eq!(get(&queue).attempt(), 2);
}

#[test]
fn keep_both_an_add_while_waiting_makes_two_runs() {
    let (clock, queue) = queue(ReaddPolicy::KeepBoth);
    assert_eq!(queue.add_after("a", 10 * S), Added::New);
    clock.advance(2 * S);
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!((queue.len(), queue.waiting()), (1, 1));
    get(&queue).succeed();
    clock.advance(8 * S);
    get(&queue).succeed();
    assert!(queue.look_up(&"a").is_none());
}

#[test]
fn keep_both_a_failed_dirty_key_runs_immediately_and_after_its_backoff() {
    let (clock, queue) = queue(ReaddPolicy::KeepBoth);
    queue.add("a");
    let item = get(&queue);
    assert_eq!(queue.add("a"), Added::Dirty);
    assert_eq!(retry(&queue, item), 5 * S);
    assert_eq!((queue.len(), queue.waiting()), (1, 1));
    let item = get(&queue);
    assert_eq!(item.attempt(), 2);
    item.succeed();
    clock.advance(5 * S);
    assert_eq!(get(&queue).attempt(), 1);
}

// --- Delays ---------------------------------------------------------------------------------------

#[test]
fn earliest_latest_exactly() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let due = || queue.look_up(&"a").unwrap().due.unwrap().since(clock.now()).as_secs();
    queue.add_after("a", 10 * S);
    queue.add_after("a", 20 * S);
    assert_eq!(due(), 10);
    queue.add_with("a", Add::after(20 * S).merge(Merge::Latest));
    assert_eq!(due(), 20);
    queue.add_with("a", Add::after(5 * S).merge(Merge::Latest));
    assert_eq!(due(), 20);
    assert_eq!(queue.add_with("a", Add::after(15 * S).merge(Merge::Exactly)), Added::New);
    assert_eq!(due(), 15);
}

#[test]
fn exactly_is_cancel_and_add_in_one_step() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_with("a", Add::now().priority(9).flags(1));
    queue.add("b");
    let again = Add::now().priority(1).flags(2).merge(Merge::Exactly);
    assert_eq!(queue.add_with("a", again), Added::New);
    let keys: Vec<_> = queue.get_many(2).now();
    assert_eq!(keys.iter().map(|item| **item).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((keys[1].priority(), keys[1].flags(), keys[1].adds()), (1, 2, 1));

    queue.add("c");
    assert_eq!(queue.add_with("c", Add::after(5 * S).merge(Merge::Latest)), Added::Coalesced);
    assert_eq!(queue.len(), 1, "`Latest` leaves a ready key ready");
    queue.add_with("c", Add::after(5 * S).merge(Merge::Exactly));
    assert_eq!((queue.len(), queue.waiting()), (0, 1));
}

#[test]
fn equal_deadlines_leave_in_order_of_arrival() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_after("late", 2 * S);
    queue.add_after("b", S);
    queue.add_after("a", S);
    queue.add_after("b", 3 * S);
    clock.advance(2 * S);
    queue.add("added when all were due");
    assert_eq!(take_all(&queue), ["b", "a", "late", "added when all were due"]);
}

#[test]
fn an_operation_makes_256_due_keys_ready() {
    let clock = FakeClock::new();
    let queue = Queue::builder().clock(clock.clone()).build().unwrap();
    (0..300).for_each(|n| {
        queue.add_after(n, S);
    });
    clock.advance(S);
    queue.add(1000);
    let keys = take_all(&queue);
    assert_eq!(keys.iter().position(|&key| key == 1000), Some(256));
    assert_eq!(keys.len(), 301);
}

// --- Debouncing -----------------------------------------------------------------------------------

/// Returns the due time of `a`, measured from the first time of the fake clock.
fn due(queue: &Queue<&'static str>) -> Duration {
    queue.look_up(&"a").unwrap().due.unwrap().since(Time::ZERO + S)
}

#[test]
fn debounce_each_add_postpones_the_run() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::New);
    assert_eq!(due(&queue), 2 * S);
    assert_eq!(queue.look_up(&"a").unwrap().bound, Some(Time::NEVER));
    clock.advance(S);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
    assert_eq!(due(&queue), 3 * S);
    clock.advance(S);
    assert!(queue.try_get().is_none());
    clock.advance(S);
    assert_eq!(get(&queue).adds(), 2);
}

#[test]
fn debounce_the_bound_counts_from_the_first_add() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let debounce = Add::debounce(2 * S).at_most(5 * S);
    for expected in [2, 3, 4, 5, 5] {
        queue.add_with("a", debounce);
        assert_eq!(due(&queue), expected * S);
        clock.advance(S);
    }
    let item = get(&queue);
    assert_eq!(item.adds(), 5);
    assert_eq!(queue.add_with("a", debounce), Added::New);
    assert_eq!(due(&queue), 7 * S);
}

#[test]
fn debounce_a_bound_below_the_quiet_time_is_the_quiet_time() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    for _ in 0..2 {
        queue.add_with("a", Add::debounce(2 * S).at_most(S));
        assert_eq!(due(&queue), 2 * S);
        clock.advance(S);
    }
}

#[test]
fn debounce_a_change_neither_waits_for_an_hourly_run_nor_postpones_it() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let hour = 3600 * S;
    queue.add_after("a", hour);
    clock.advance(10 * S);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
    assert_eq!(due(&queue), 12 * S);
    clock.advance(2 * S);
    get(&queue).complete(Completion::RequeueAfter(hour));
    assert_eq!(due(&queue), 3612 * S);
    clock.advance(hour - S);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
    assert_eq!(due(&queue), 3612 * S);
}

#[test]
fn debounce_a_delayed_add_moves_the_bound_down() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_with("a", Add::debounce(2 * S));
    assert_eq!(queue.add_after("a", 3 * S), Added::Coalesced);
    assert_eq!(due(&queue), 2 * S);
    clock.advance(S);
    queue.add_with("a", Add::debounce(2 * S));
    assert_eq!(due(&queue), 3 * S);
    clock.advance(S);
    queue.add_with("a", Add::debounce(2 * S));
    assert_eq!(due(&queue), 3 * S);
}

#[test]
fn debounce_latest_and_exactly_replace_the_bound() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let debounce = Add::debounce(2 * S).at_most(3 * S);
    let latest = |after| Add::after(after).merge(Merge::Latest);
    queue.add_with("a", debounce);
    queue.add_with("a", latest(S));
    assert_eq!(due(&queue), 2 * S);
    clock.advance(S);
    queue.add_with("a", debounce);
    assert_eq!(due(&queue), 3 * S);
    queue.add_with("a", latest(9 * S));
    assert_eq!(due(&queue), 10 * S);
    clock.advance(S);
    queue.add_with("a", Add::debounce(2 * S));
    assert_eq!(due(&queue), 4 * S);
    queue.add_with("a", Add::after(8 * S).merge(Merge::Exactly));
    assert_eq!(due(&queue), 10 * S);
    queue.add_with("a", Add::debounce(20 * S));
    assert_eq!(due(&queue), 10 * S);
}

#[test]
fn debounce_an_add_runs_the_key_now() {
    for policy in [ReaddPolicy::Hold, ReaddPolicy::Replace] {
        let (clock, queue) = queue(policy);
        queue.add_with("a", Add::debounce(2 * S));
        clock.advance(S);
        assert_eq!(queue.add("a"), Added::New);
        assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
        assert_eq!((queue.len(), queue.waiting()), (1, 0));
        assert_eq!(get(&queue).adds(), 3);
    }
}

#[test]
fn debounce_a_key_in_flight_waits_for_its_next_run() {
    for policy in [ReaddPolicy::Hold, ReaddPolicy::Replace, ReaddPolicy::KeepBoth] {
        let (clock, queue) = queue(policy);
        queue.add("a");
        let item = get(&queue);
        clock.advance(S);
        assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::New);
        clock.advance(S);
        item.succeed();
        assert_eq!(due(&queue), 3 * S);
        clock.advance(S);
        let item = get(&queue);
        assert_eq!(queue.add("a"), Added::Dirty);
        assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::Coalesced);
        item.succeed();
        assert_eq!((queue.len(), queue.waiting()), (1, 0));
    }
}

#[test]
fn debounce_hold_a_backoff_is_not_shortened() {
    let cases = [
        (ReaddPolicy::Hold, [Added::BackingOff, Added::Coalesced], 5),
        (ReaddPolicy::Replace, [Added::Coalesced, Added::New], 3),
        (ReaddPolicy::KeepBoth, [Added::Coalesced, Added::New], 3),
    ];
    for (policy, [first, second], expected) in cases {
        let (clock, queue) = queue(policy);
        queue.add("a");
        assert_eq!(retry(&queue, get(&queue)), 5 * S);
        clock.advance(S);
        assert_eq!(queue.add_with("a", Add::debounce(2 * S)), first);
        assert_eq!(due(&queue), expected * S);
        clock.advance(2 * S);
        if policy != ReaddPolicy::Hold {
            get(&queue).succeed();
        }
        clock.advance(S);
        assert_eq!(queue.add_with("a", Add::debounce(2 * S)), second);
        assert_eq!(due(&queue), if policy == ReaddPolicy::Hold { 5 * S } else { 6 * S });
    }
}

#[test]
fn debounce_a_flush_ends_the_wait_for_further_adds() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_with("a", Add::debounce(2 * S));
    queue.add_after("b", 2 * S);
    assert_eq!(queue.flush_debounced(), 1);
    assert_eq!((queue.len(), queue.waiting()), (1, 1));
    let item = get(&queue);
    assert_eq!(item.adds(), 1);
    assert_eq!(queue.add_with("a", Add::debounce(2 * S)), Added::New);
    clock.advance(S);
    assert_eq!((queue.flush_debounced(), common::is_dirty(&queue, &item)), (1, true));
    item.complete(Completion::RetryAfter(5 * S));
    assert_eq!(due(&queue), 6 * S);
    clock.advance(S);
    // The due key is `b`.
    get(&queue).succeed();
    assert_eq!(queue.add_with("a", Add::debounce(9 * S)), Added::Coalesced);
    assert_eq!((queue.flush_debounced(), due(&queue)), (1, 6 * S));
    assert_eq!(queue.flush_debounced(), 0);
}

#[test]
fn debounce_keep_both_the_delay_that_stays_is_not_postponed() {
    let (clock, queue) = queue(ReaddPolicy::KeepBoth);
    let debounce = Add::debounce(2 * S);
    queue.add_with("a", debounce);
    assert_eq!(queue.add("a"), Added::New);
    assert_eq!(queue.add_with("a", debounce), Added::Coalesced);
    assert_eq!((queue.len(), due(&queue)), (1, 2 * S));
    clock.advance(S);
    let item = get(&queue);
    assert_eq!(queue.add_with("a", debounce), Added::Coalesced);
    assert_eq!(due(&queue), 2 * S);
    item.succeed();
}

#[test]
fn debounce_a_cancelled_bound_does_not_affect_the_next_run() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let debounce = Add::debounce(2 * S).at_most(3 * S);
    queue.add_with("a", debounce);
    clock.advance(S);
    assert!(queue.cancel(&"a").waiting);
    for expected in [4, 5] {
        clock.advance(S);
        queue.add_with("a", debounce);
        assert_eq!(due(&queue), expected * S);
    }
}

// --- Failures -------------------------------------------------------------------------------------

#[test]
fn attempts_are_the_records_and_delays_the_limiters() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    assert_eq!(retry(&queue, get(&queue)), 5 * S);
    clock.advance(5 * S);
    get(&queue).complete(Completion::RetryAfter(S));
    clock.advance(S);
    let item = get(&queue);
    assert_eq!((item.attempt(), queue.num_requeues(&"a")), (3, 1));
    assert_eq!(retry(&queue, item), 10 * S);
    clock.advance(10 * S);
    get(&queue).succeed();
    assert_eq!((queue.failures(&"a"), queue.num_requeues(&"a")), (0, 0));
}

#[test]
fn an_item_dropped_unfinished_has_failed() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    drop(get(&queue));
    assert_eq!((queue.waiting(), queue.failures(&"a")), (1, 1));
    clock.advance(5 * S);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _item = get(&queue);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    clock.advance(10 * S);
    assert_eq!(get(&queue).attempt(), 3);
}

#[test]
fn done_leaves_the_failures_where_they_are() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    get(&queue).retry();
    clock.advance(5 * S);
    get(&queue).done();
    assert_eq!((queue.len(), queue.waiting(), queue.failures(&"a")), (0, 0, 1));
    queue.forget(&"a");
    assert!(queue.look_up(&"a").is_none());
}

#[test]
fn release_is_no_failure() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    queue.add("b");
    get(&queue).complete(Completion::Release);
    assert_eq!(take_all(&queue), ["b", "a"]);
    assert_eq!(queue.totals().failures, 0);
}

// --- The options of a run -----------------------------------------------------------------------

#[test]
fn adds_and_flags_go_to_the_next_run_and_back_when_it_fails() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_with("a", Add::now().flags(0b001));
    queue.add_with("a", Add::now().flags(0b010));
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags()), (2, 0b011));
    item.retry();
    queue.add_with("a", Add::after(60 * S).flags(0b100));
    clock.advance(5 * S);
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags()), (3, 0b111));
    item.complete(Completion::RequeueAfter(S));
    clock.advance(S);
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags()), (1, 0));
}

#[test]
fn keep_both_the_first_of_two_runs_takes_all_adds_and_flags() {
    let (clock, queue) = queue(ReaddPolicy::KeepBoth);
    queue.add_with("a", Add::after(10 * S).flags(0b01));
    queue.add_with("a", Add::now().flags(0b10));
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags()), (2, 0b11));
    item.succeed();
    clock.advance(10 * S);
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags()), (1, 0));
}

#[test]
fn a_run_lists_the_reasons_of_its_adds_and_a_retry_keeps_them() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    let pod = Add::now().reason(intern_reason("Pod"));
    let reasons_of = |item: &Item<'_, &'static str>| describe_reasons(&item.reasons()).to_string();
    queue.add_with("a", Add::now().reason(intern_reason("resync")));
    queue.add_caused_by("a", pod, "p");
    queue.add_caused_by("a", pod, "q");
    let item = get(&queue);
    assert_eq!(reasons_of(&item), "resync; 2 x Pod (first p, last q)");
    queue.add_caused_by("a", pod, "r");
    item.retry();
    clock.advance(5 * S);
    let item = get(&queue);
    assert_eq!(reasons_of(&item), "resync; 3 x Pod (first p, last r)");
    item.succeed();
    queue.add("a");
    assert!(get(&queue).reasons().is_empty());
}

#[test]
fn the_highest_priority_asked_for_wins() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add_with("a", Add::now().priority(5));
    queue.add_with("a", Add::now().priority(-5));
    let item = get(&queue);
    assert_eq!(item.priority(), 5);
    item.retry();
    clock.advance(5 * S);
    let item = get(&queue);
    assert_eq!(item.priority(), 5, "a retry keeps it");
    item.complete(Completion::RequeueAfter(S));
    clock.advance(S);
    let item = get(&queue);
    assert_eq!(item.priority(), 5, "so does a requeue");
    queue.add_with("a", Add::now().priority(-5));
    item.succeed();
    assert_eq!(get(&queue).priority(), -5, "the priority of an earlier run is not kept");
}

#[test]
fn a_priority_is_the_keys_and_lifts_a_ready_one() {
    let clock = FakeClock::new();
    let order = Order::Priority { oldest_every: 100 };
    let queue = Queue::builder().clock(clock).order(order).build().unwrap();
    queue.add_all(["a", "b", "c", "d"]);
    queue.add_with("c", Add::now().priority(1));
    queue.add_with("b", Add::after(60 * S).priority(1));
    assert_eq!(take_all(&queue), ["c", "b", "a", "d"]);
}

// --- Items and tickets ----------------------------------------------------------------------------

#[test]
fn done_needs_a_detached_delivery() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    assert!(!queue.done(&"a"), "the key is ready");
    let item = get(&queue);
    assert!(!queue.done(&"a"), "the item exists");
    let (key, _ticket) = item.into_parts();
    assert!(queue.done(&key));
    assert!(!queue.done(&key), "the delivery was completed before");
}

#[test]
fn a_stale_ticket_does_nothing() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let (_key, ticket) = get(&queue).into_parts();
    assert!(queue.done(&"a"));
    queue.add("a");
    let item = get(&queue);
    assert!(!queue.done_ticket(ticket));
    assert_eq!(queue.states().in_flight, 1);

    let (_clock, other) = self::queue(ReaddPolicy::Hold);
    other.add("a");
    let (_key, ticket) = get(&other).into_parts();
    assert!(!queue.done_ticket(ticket), "the ticket belongs to another queue");
    item.succeed();
}

#[test]
fn a_cancel_does_not_end_a_run() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    queue.add("a");
    let dirty = Cancelled { ready: false, dirty: true, waiting: false };
    assert_eq!(queue.cancel(&"a"), dirty);
    assert_eq!(queue.states().in_flight, 1);
    item.retry();
    assert_eq!(queue.waiting(), 1, "a run that fails after the cancel is retried");
}

// --- Cancelled and restarted runs -------------------------------------------------------------------

/// Returns a queue like `queue`. In addition, adds restart runs for at most 5 s.
fn restarting() -> (FakeClock, Queue<&'static str>) {
    let clock = FakeClock::new();
    let rerun = InFlightPolicy::Restart { at_most: 5 * S };
    (clock.clone(), Queue::builder().clock(clock).in_flight_policy(rerun).build().unwrap())
}

#[test]
fn cancel_running_the_run_counts_neither_as_a_success_nor_as_a_failure() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    get(&queue).retry();
    clock.advance(5 * S);
    let item = get(&queue);
    assert!(item.cancel_reason().is_none());
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    assert_eq!(queue.cancel_running("a"), CancelledRun::AlreadyCancelled);
    assert_eq!(item.cancel_reason(), Some(CancelReason::Cancelled));
    drop(item);
    assert_eq!((queue.failures("a"), queue.num_requeues(&"a"), queue.states().total()), (1, 1, 0));
    assert_eq!(queue.cancel_running("a"), CancelledRun::NotInFlight);
    assert_eq!(queue.add("a"), Added::New);
    let item = get(&queue);
    assert_eq!((item.attempt(), item.adds(), item.cancel_reason().is_some()), (2, 1, false));
}

#[test]
fn cancel_running_a_key_that_was_added_again_runs_again() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    assert_eq!(queue.add("a"), Added::Dirty);
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    drop(item);
    assert_eq!(get(&queue).adds(), 1);
}

#[test]
fn cancel_running_a_run_that_completes_counts_as_it_says() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    assert_eq!(queue.cancel_running("a"), CancelledRun::Cancelled);
    assert_eq!(retry(&queue, item), 5 * S);
}

#[test]
fn restart_an_add_cancels_the_run_and_the_next_run_serves_both() {
    let (_clock, queue) = restarting();
    queue.add_with("a", Add::now().flags(0b1));
    let item = get(&queue);
    assert_eq!(queue.add_with("a", Add::now().flags(0b10)), Added::Dirty);
    assert_eq!(item.cancel_reason(), Some(CancelReason::Restarted));
    drop(item);
    let item = get(&queue);
    assert_eq!((item.adds(), item.flags(), item.attempt()), (2, 0b11, 1));
    assert!(item.cancel_reason().is_none());
}

#[test]
fn restart_after_the_limit_the_run_is_left_alone() {
    let (clock, queue) = restarting();
    queue.add("a");
    for (wait, cancelled) in [(60, true), (4, true), (1, false)] {
        let item = get(&queue);
        clock.advance(wait * S);
        assert_eq!(queue.add("a"), Added::Dirty);
        assert_eq!(item.cancel_reason().is_some(), cancelled);
        if cancelled {
            drop(item);
        } else {
            item.succeed();
        }
    }
    let item = get(&queue);
    queue.add("a");
    assert!(item.cancel_reason().is_some());
}

#[test]
fn restart_a_delayed_add_restarts_the_run_when_it_is_due() {
    let (clock, queue) = restarting();
    queue.add("a");
    let item = get(&queue);
    assert_eq!(queue.add_after("a", 2 * S), Added::New);
    assert!(item.cancel_reason().is_none());
    clock.advance(2 * S);
    assert_eq!(item.cancel_reason(), Some(CancelReason::Restarted));
}

#[test]
fn restart_a_cancelled_key_does_not_run_again() {
    let (_clock, queue) = restarting();
    queue.add("a");
    let item = get(&queue);
    queue.add("a");
    assert!(queue.cancel("a").dirty);
    drop(item);
    assert_eq!(queue.states().total(), 0);
}

// --- Orders ---------------------------------------------------------------------------------------

#[test]
fn priority_the_oldest_key_leaves_within_the_limit() {
    let queue = timeless().order(Order::Priority { oldest_every: 3 }).build().unwrap();
    queue.add_all(["old 0", "old 1"]);
    for key in ["new 0", "new 1", "new 2", "new 3", "new 4"] {
        queue.add_with(key, Add::now().priority(1));
    }
    let expected = ["new 0", "new 1", "old 0", "new 2", "new 3", "old 1", "new 4"];
    assert_eq!(take_all(&queue), expected);
}

#[test]
fn fair_groups_take_turns_by_weight() {
    let queue: Queue<(&str, u32)> = timeless()
        .group_by(|&(group, _)| GroupId::of(group).weight(if group == "big" { 2 } else { 1 }))
        .fair()
        .build()
        .unwrap();
    queue.add_all([("big", 0), ("big", 1), ("big", 2), ("big", 3), ("small", 0), ("small", 1)]);
    let order: Vec<_> = take_all(&queue).into_iter().map(|(group, _)| group).collect();
    assert_eq!(order, ["big", "big", "small", "big", "big", "small"]);
}

#[test]
fn a_group_at_its_limit_holds_its_keys_back() {
    let queue: Queue<(&str, u32)> =
        timeless().group_by(|&(group, _)| GroupId::of(group)).group_limit(1).build().unwrap();
    queue.add_all([("x", 0), ("x", 1), ("y", 0)]);
    let (first, other) = (get(&queue), get(&queue));
    assert_eq!((*first, *other), (("x", 0), ("y", 0)));
    assert!(queue.try_get().is_none());
    assert_eq!(queue.len(), 1, "a throttled key counts");
    first.succeed();
    assert_eq!(*get(&queue), ("x", 1));
}

// --- Getting --------------------------------------------------------------------------------------

#[test]
fn a_getter_that_is_not_polled_delays_no_other() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    let mut context = Context::from_waker(Waker::noop());
    let mut lazy = pin!(queue.get());
    assert!(lazy.as_mut().poll(&mut context).is_pending());
    queue.add("a");
    // The getter that is not polled has received a wake, but any other getter may take the key
    // first.
    assert_eq!(queue.try_get().as_deref(), Some(&"a"));
    assert!(lazy.as_mut().poll(&mut context).is_pending(), "it waits, at the head");
}

#[test]
fn a_getter_that_is_dropped_passes_its_wake_on() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    let woken = std::sync::Arc::new(Woken::default());
    let waker = Waker::from(std::sync::Arc::clone(&woken));
    let mut first = Box::pin(queue.get());
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut spare = pin!(queue.get());
    assert!(spare.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut third = pin!(queue.get());
    assert!(third.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    queue.add("a");
    assert!(!woken.get(), "one key wakes the first getter and one more");
    drop(first);
    assert!(woken.get());
    assert_eq!(queue.len(), 1, "no key was lost with the first getter");
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl Woken {
    fn get(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

// --- Shutdown -----------------------------------------------------------------------------------

#[test]
fn close_what_waits_still_runs() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    queue.add_after("b", 10 * S);
    queue.close();
    assert_eq!(queue.add("c"), Added::Refused);
    let item = get(&queue);
    assert_eq!(queue.add("a"), Added::Dirty);
    item.succeed();
    get(&queue).retry();
    assert!(would_wait(&queue));
    clock.advance(5 * S);
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.add("a"), Added::Refused);
    clock.advance(5 * S);
    assert_eq!(take_all(&queue), ["b"]);
    assert!(!would_wait(&queue));
}

#[test]
fn shut_down_drops_what_waits_and_delivers_what_is_ready() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("running");
    let running = get(&queue);
    queue.add("ready");
    queue.add_after("waiting", 2 * S);
    queue.add_after("due", S);
    clock.advance(S);
    assert_eq!(queue.shut_down(), ["waiting"]);
    assert_eq!(queue.add("ready"), Added::Refused);
    assert_eq!(take_all(&queue), ["ready", "due"]);
    running.retry();
    assert_eq!(queue.take_dropped(), ["running"]);
    assert!(queue.shut_down().is_empty());
}

#[test]
fn shut_down_none_is_not_final_while_a_key_is_dirty() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    queue.add("a");
    queue.shut_down();
    assert!(!would_wait(&queue), "`None`, because no key is ready");
    item.retry();
    assert_eq!(get(&queue).attempt(), 2, "the dirty run also serves the failure");
}

#[test]
fn drain_waits_for_what_is_ready_and_what_is_running() {
    let (clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    queue.add("b");
    let mut context = Context::from_waker(Waker::noop());
    let mut drain = pin!(queue.shut_down_with_drain());
    assert!(drain.as_mut().poll(&mut context).is_pending(), "two are ready");
    let (a, b) = (get(&queue), get(&queue));
    a.succeed();
    assert!(drain.as_mut().poll(&mut context).is_pending(), "one is running");

    let report = clock.run(queue.shut_down_with_drain().timeout(S));
    assert_eq!((report.finished, report.in_flight), (false, 1));

    drop(b);
    let Poll::Ready(report) = drain.poll(&mut context) else { panic!("drained") };
    assert!(report.finished);
    assert_eq!(report.dropped, ["b"], "a failure after the shutdown is not retried");
}

#[test]
fn shut_down_ends_a_drain_that_came_before() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    let item = get(&queue);
    let mut context = Context::from_waker(Waker::noop());
    let mut drain = pin!(queue.shut_down_with_drain());
    assert!(drain.as_mut().poll(&mut context).is_pending());
    queue.shut_down();
    let Poll::Ready(report) = drain.poll(&mut context) else { panic!("ended") };
    assert_eq!((report.finished, report.in_flight), (false, 1));
    item.succeed();
}

#[test]
fn pause_then_shut_down_drops_what_is_ready() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("dirty");
    let item = get(&queue);
    queue.add("dirty");
    queue.add("ready");
    queue.pause();
    assert_eq!(queue.shut_down(), ["ready"]);
    queue.resume();
    assert!(queue.is_paused(), "`resume` has no effect");
    item.succeed();
    assert_eq!(queue.take_dropped(), ["dirty"]);
}

#[test]
fn pause_then_close_waits_for_resume() {
    let (_clock, queue) = queue(ReaddPolicy::Hold);
    queue.add("a");
    queue.pause();
    queue.close();
    assert!(would_wait(&queue));
    queue.resume();
    assert_eq!(take_all(&queue), ["a"]);
    assert!(!would_wait(&queue));
}
