//! The tests of client-go's `delaying_queue_test.go`, and further tests of the same behaviour.

mod common;

use std::task::Waker;

use common::{Wakes, fake_client_go, ms, poll, ready, secs, take, take_all};
use requeue::{Added, Queue};

/// client-go: `TestSimpleQueue`.
#[test]
fn test_simple_queue() {
    let (queue, clock) = fake_client_go();
    queue.add_after("foo", ms(50));
    assert_eq!(queue.len(), 0);
    clock.advance(ms(60));
    assert_eq!(queue.len(), 1);
    let key = take(&queue);
    assert!(queue.done(&key));
    // This time is beyond the next heartbeat of client-go.
    clock.advance(secs(10));
    assert_eq!(queue.len(), 0);
}

/// client-go: `TestDeduping`.
#[test]
fn test_deduping() {
    let (queue, clock) = fake_client_go();
    assert_eq!(queue.add_after("foo", ms(50)), Added::New);
    assert_eq!(queue.add_after("foo", ms(70)), Added::Coalesced);
    assert_eq!(queue.len(), 0);
    clock.advance(ms(60));
    assert_eq!(queue.len(), 1);
    let key = take(&queue);
    assert!(queue.done(&key));
    clock.advance(ms(20));
    assert_eq!(queue.len(), 0, "the later add became part of the earlier one");

    // The earlier due time is used, even if it is added second.
    queue.add_after("foo", ms(50));
    queue.add_after("foo", ms(30));
    assert_eq!(queue.len(), 0);
    clock.advance(ms(40));
    assert_eq!(queue.len(), 1);
    let key = take(&queue);
    assert!(queue.done(&key));
    clock.advance(ms(20));
    assert_eq!(queue.len(), 0);
}

/// client-go: `TestAddTwoFireEarly`.
#[test]
fn test_add_two_fire_early() {
    let (queue, clock) = fake_client_go();
    queue.add_after("foo", secs(1));
    queue.add_after("bar", ms(50));
    assert_eq!(queue.len(), 0);
    clock.advance(ms(60));
    assert_eq!(queue.len(), 1);
    assert_eq!(take(&queue), "bar");

    queue.add_after("baz", secs(2));
    clock.advance(secs(1));
    assert_eq!(queue.len(), 1);
    assert_eq!(take(&queue), "foo");

    clock.advance(secs(2));
    assert_eq!(queue.len(), 1);
    assert_eq!(take(&queue), "baz");
}

/// client-go: `TestCopyShifting`.
#[test]
fn test_copy_shifting() {
    let (queue, clock) = fake_client_go();
    queue.add_after("foo", secs(1));
    queue.add_after("bar", ms(500));
    queue.add_after("baz", ms(250));
    assert_eq!(queue.len(), 0);
    clock.advance(secs(2));
    assert_eq!(queue.len(), 3);
    assert_eq!([take(&queue), take(&queue), take(&queue)], ["baz", "bar", "foo"]);
}

// --- Not covered by client-go's tests ------------------------------------------------------------

/// With the policy `KeepBoth`, as in client-go, a pending `add_after` and an `add` lead to two
/// runs.
#[test]
fn an_add_does_not_cancel_a_delay() {
    let (queue, clock) = fake_client_go();
    queue.add_after("a", secs(5));
    queue.add("a");
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.waiting(), 1);
    clock.advance(secs(5));
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.waiting(), 0);
}

#[test]
fn add_after_is_refused_after_shutdown() {
    let (queue, clock) = fake_client_go();
    queue.shut_down();
    assert_eq!(queue.add_after("a", ms(1)), Added::Refused);
    assert_eq!(queue.add_after("b", ms(0)), Added::Refused);
    clock.advance(secs(1));
    assert_eq!((queue.len(), queue.waiting()), (0, 0));
    assert!(ready(queue.get()).is_none());
    assert_eq!(queue.totals().retries, 0, "refused adds must not be counted");
}

#[test]
fn a_getter_is_woken_when_a_delay_falls_due() {
    let (queue, clock) = fake_client_go();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add_after("a", secs(1));
    clock.advance(ms(999));
    assert_eq!(wakes.count(), 0, "never woken early");
    clock.advance(ms(1));
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(get).as_deref(), Some(&"a"));
}

#[test]
fn a_getter_that_comes_after_the_add_is_woken_too() {
    let (queue, clock) = fake_client_go();
    queue.add_after("a", secs(1));
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(get).as_deref(), Some(&"a"));
}

#[test]
fn a_getter_is_woken_for_an_earlier_delay_that_comes_later() {
    let (queue, clock) = fake_client_go();
    queue.add_after("late", secs(60));
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add_after("early", secs(1));
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 1);
    let item = ready(get).unwrap();
    assert_eq!((*item, queue.waiting()), ("early", 1));
    item.done();
}

/// As in client-go, every `add_after` is a retry, even one with a delay of zero.
#[test]
fn retries_are_counted() {
    let (queue, _clock) = fake_client_go();
    queue.add_after("a", secs(1));
    queue.add_after("a", secs(2));
    queue.add_after("b", ms(0));
    queue.add_rate_limited("c");
    queue.add("d");
    assert_eq!(queue.totals().retries, 4);
}

#[test]
fn a_delay_of_zero_adds_at_once() {
    let (queue, _clock) = fake_client_go();
    assert_eq!(queue.add_after("a", ms(0)), Added::New);
    assert_eq!((queue.len(), queue.waiting()), (1, 0));
}

/// Intended difference: in client-go, the order of keys with the same due time is undefined.
#[test]
fn equal_deadlines_come_in_the_order_of_the_adds() {
    let (queue, clock) = fake_client_go();
    (0..1000).for_each(|key| _ = queue.add_after(key, secs(1)));
    clock.advance(secs(1));
    assert_eq!(take_all(&queue), (0..1000).collect::<Vec<_>>());
}

#[test]
fn what_is_due_comes_before_what_is_added_later() {
    let (queue, clock) = fake_client_go();
    queue.add_after("due", secs(1));
    clock.advance(secs(1));
    queue.add("added");
    assert_eq!(take_all(&queue), ["due", "added"]);
}

/// Intended difference: in client-go, a goroutine continues for up to ten seconds after the drain
/// of its queue.
#[test]
fn no_alarm_is_armed_without_waiting_getters() {
    let (queue, clock) = fake_client_go();
    queue.add_after("a", secs(1));
    assert_eq!(clock.armed(), 0, "no getter waits");
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    assert_eq!(clock.armed(), 1);
    queue.shut_down();
    drop(get);
    drop(queue);
    assert_eq!(clock.armed(), 0);
}

/// If a delayed key becomes due while it is in flight, it is delivered once more afterwards.
#[test]
fn a_delay_that_falls_due_during_a_run_makes_the_key_dirty() {
    let (queue, clock) = fake_client_go();
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert_eq!(queue.add_after("a", secs(1)), Added::New);
    clock.advance(secs(1));
    assert!(queue.try_get().is_none(), "the key is in flight");
    assert_eq!(queue.sample().depth, 1);
    item.done();
    assert_eq!(take_all(&queue), ["a"]);
}

/// A due key is ready, even if no operation has noticed it.
#[test]
fn a_shut_down_delivers_keys_that_were_due_before() {
    let (queue, clock): (Queue<&str>, _) = fake_client_go();
    queue.add_after("due", secs(1));
    queue.add_after("not due", secs(3));
    clock.advance(secs(2));
    assert_eq!(queue.shut_down(), ["not due"]);
    assert_eq!(take_all(&queue), ["due"]);
}
