//! The tests of client-go's `rate_limiting_queue_test.go`, and further tests of the same behaviour.

mod common;

use common::{fake_client_go, ms, retry, secs, take, take_all};
use requeue::clock::FakeClock;
use requeue::limiter::BackoffLimiter;
use requeue::{Add, Added, Builder, Completion, Item, Merge, Queue};

/// client-go: `TestRateLimitingQueue`.
#[test]
fn test_rate_limiting_queue() {
    let (queue, clock) = fake_client_go();
    let delay_of = |key| {
        let before = clock.now();
        assert_eq!(queue.add_rate_limited(key), Added::New);
        let due = queue.look_up(&key).and_then(|entry| entry.due).expect("the key waits");
        // The Go test receives the key from a channel. In this test, the key becomes due, and is
        // processed.
        clock.set(due);
        assert_eq!(take(&queue), key);
        assert!(queue.done(&key));
        due.since(before)
    };
    assert_eq!(delay_of("one"), ms(1));
    assert_eq!(delay_of("one"), ms(2));
    assert_eq!(queue.num_requeues(&"one"), 2);

    assert_eq!(delay_of("two"), ms(1));
    assert_eq!(delay_of("two"), ms(2));

    queue.forget(&"one");
    assert_eq!(queue.num_requeues(&"one"), 0);
    assert_eq!(delay_of("one"), ms(1));
}

// --- Not covered by client-go's tests ------------------------------------------------------------

#[test]
fn forget_forgets_one_key_and_no_other() {
    let (queue, _clock) = fake_client_go();
    for key in ["a", "b"] {
        queue.add_rate_limited(key);
        queue.add_rate_limited(key);
    }
    queue.forget(&"a");
    assert_eq!((queue.num_requeues(&"a"), queue.failures(&"a")), (0, 0));
    assert_eq!((queue.num_requeues(&"b"), queue.failures(&"b")), (2, 2));
}

/// As in client-go, `forget` resets the failures, and does not change the pending run.
#[test]
fn forget_leaves_a_pending_run_alone() {
    let (queue, clock) = fake_client_go();
    queue.add_rate_limited("waiting");
    queue.add("ready");
    queue.forget(&"waiting");
    queue.forget(&"ready");
    assert_eq!((queue.waiting(), queue.len()), (1, 1));
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["ready", "waiting"]);
}

#[test]
fn retries_are_counted() {
    let (queue, clock) = fake_client_go();
    queue.add_rate_limited("a");
    queue.add_rate_limited("a");
    assert_eq!(queue.totals().retries, 2);
    clock.advance(secs(1));
    queue.try_get().unwrap().retry();
    assert_eq!(queue.totals().retries, 3);
}

/// As in client-go, `done` is not a success: the next failure waits longer.
#[test]
fn done_does_not_forget() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    assert_eq!(retry(&queue, queue.try_get().unwrap()), ms(1));
    clock.advance(ms(1));
    queue.try_get().unwrap().done();
    assert_eq!(queue.num_requeues(&"a"), 1);
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert_eq!(item.attempt(), 2);
    assert_eq!(retry(&queue, item), ms(2));
}

/// client-go has no such call. It does the work of `Forget` and `Done` in one step.
#[test]
fn succeed_forgets() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    assert_eq!(retry(&queue, queue.try_get().unwrap()), ms(1));
    clock.advance(ms(1));
    queue.try_get().unwrap().succeed();
    assert_eq!(queue.num_requeues(&"a"), 0);
    queue.add("a");
    assert_eq!(retry(&queue, queue.try_get().unwrap()), ms(1));
}

/// The common pattern of controllers: `AddRateLimited` while the key is in flight, then `Done`.
#[test]
fn a_rate_limited_add_during_a_run_waits_for_its_time_and_for_the_run() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add_rate_limited("a");
    item.done();
    assert!(queue.try_get().is_none());
    clock.advance(ms(1));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

#[test]
fn a_rate_limited_add_is_refused_after_shutdown() {
    let (queue, clock) = fake_client_go();
    queue.shut_down();
    assert_eq!(queue.add_rate_limited("a"), Added::Refused);
    clock.advance(secs(1));
    assert_eq!((queue.len(), queue.waiting(), queue.totals().retries), (0, 0, 0));
}

#[test]
fn a_closed_queue_takes_a_rate_limited_add_of_a_key_it_has() {
    let (queue, clock) = fake_client_go();
    queue.add("known");
    let item = queue.try_get().unwrap();
    queue.close();
    assert_eq!(queue.add_rate_limited("new"), Added::Refused);
    assert!(queue.add_rate_limited("known").is_accepted());
    item.done();
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["known"]);
}

/// A success and a cancel reset the failures that the limiter has counted. All other completions
/// leave their number unchanged, or add one.
#[test]
fn each_way_to_end_a_run_has_its_effect_on_the_limiters_count() {
    type End = fn(&Queue<&'static str>, Item<'_, &'static str>);
    let ends: [(&str, u32, End); 11] = [
        ("succeed", 0, |_, item| item.succeed()),
        ("requeue_after", 0, |_, item| item.complete(Completion::RequeueAfter(secs(1)))),
        ("give_up", 0, |_, item| item.complete(Completion::GiveUp)),
        ("succeed_all", 0, |_, item| Item::succeed_all([item])),
        ("succeed_and_get", 0, |queue, item| drop(queue.succeed_and_try_get(item))),
        ("forget, done", 0, |queue, item| {
            queue.forget(item.key());
            item.done();
        }),
        ("done", 1, |_, item| item.done()),
        ("release", 1, |_, item| item.complete(Completion::Release)),
        ("retry_after", 1, |_, item| item.complete(Completion::RetryAfter(secs(1)))),
        ("retry", 2, |_, item| item.retry()),
        ("drop", 2, |_, item| drop(item)),
    ];
    for (name, count, end) in ends {
        let (queue, clock) = fake_client_go();
        queue.add_rate_limited("a");
        clock.advance(secs(1));
        end(&queue, queue.try_get().expect("it is due"));
        assert_eq!(queue.num_requeues(&"a"), count, "after {name}");
    }
    let takes: [fn(&Queue<&'static str>); 2] = [
        |queue| _ = queue.cancel(&"a"),
        |queue| _ = queue.add_with("a", Add::now().merge(Merge::Exactly)),
    ];
    for take in takes {
        let (queue, _clock) = fake_client_go();
        queue.add_rate_limited("a");
        take(&queue);
        assert_eq!(queue.num_requeues(&"a"), 0);
    }
}

/// The default limiter forgets a key when 2 · `max` has passed after the end of its wait.
#[test]
fn failures_add_up_until_two_of_the_longest_delays_have_passed() {
    for (late, count) in [(secs(20), 2), (secs(20) + ms(1), 1)] {
        let clock = requeue::clock::FakeClock::new();
        let limiter = BackoffLimiter::new(secs(1), secs(10)).seed(1);
        let queue = Builder::client_go()
            .clock(clock.clone())
            .limiter(limiter)
            .build()
            .expect("it is valid");
        queue.add("a");
        let delay = retry(&queue, queue.try_get().expect("it is ready"));
        clock.advance(delay + late);
        queue.try_get().expect("it is due").retry();
        assert_eq!(queue.num_requeues(&"a"), count, "{late:?} after its wait");
    }
}

/// The bucket in that limiter never has failures to forget.
#[test]
fn a_success_is_forgotten_by_every_member_of_the_default_limiter() {
    let clock = FakeClock::new();
    let queue = Builder::client_go().clock(clock.clone()).build().unwrap();
    queue.add("a");
    queue.try_get().unwrap().retry();
    assert_eq!(queue.num_requeues(&"a"), 1);
    clock.advance(ms(5));
    queue.try_get().unwrap().succeed();
    assert_eq!(queue.num_requeues(&"a"), 0);
}
