//! The worked examples of groups in `docs/concepts/semantics.md`. Each test has the name of its
//! heading.
// Tests and their helpers state their expectations by unwrapping.
#![allow(clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use common::{Wakes, take_all, timeless, would_wait};
use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{Added, GroupHandle, GroupId, Item, NoGroups, Queue};

const S: Duration = Duration::from_secs(1);

type Key = (&'static str, u32);

/// Returns a queue in which the first half of a key is its group. The backoff is 5 s, 10 s and so
/// on.
fn queue() -> (FakeClock, Queue<Key>) {
    let clock = FakeClock::new();
    let queue = Queue::builder()
        .clock(clock.clone())
        .limiter(ExponentialFailure::new(5 * S, 1000 * S))
        .group_by(|(group, _): &Key| GroupId::of(group))
        .build()
        .unwrap();
    (clock, queue)
}

fn group<'q>(queue: &'q Queue<Key>, name: &str) -> GroupHandle<'q, Key> {
    queue.group(GroupId::of(name)).unwrap()
}

fn get(queue: &Queue<Key>) -> Item<'_, Key> {
    queue.try_get().unwrap()
}

/// Returns the numbers of ready, waiting, backing off, in-flight and dirty keys.
fn states(group: GroupHandle<'_, Key>) -> [usize; 5] {
    let states = group.states();
    [states.ready, states.waiting, states.backing_off, states.in_flight, states.dirty]
}

#[test]
fn a_queue_without_a_group_function_has_no_groups() {
    let queue = timeless::<Key>().fair().group_limit(1).build().unwrap();
    let error = queue.group(GroupId::of("x")).unwrap_err();
    assert_eq!(error, NoGroups);
    assert!(error.to_string().contains("Builder::group_by"));
}

#[test]
fn group_a_paused_group_collects_keys_and_delivers_none() {
    let (clock, queue) = queue();
    let x = group(&queue, "x");
    x.pause();
    assert_eq!(queue.add(("x", 0)), Added::New);
    assert_eq!(queue.add(("x", 0)), Added::Coalesced);
    queue.add_after(("x", 1), S);
    queue.add(("y", 0));
    assert_eq!(take_all(&queue), [("y", 0)]);
    clock.advance(S);
    assert!(would_wait(&queue));
    assert_eq!(states(x), [2, 0, 0, 0, 0]);
    assert_eq!(queue.explain(&("x", 0)), "ready, but its group is paused");
    x.resume();
    assert_eq!(*get(&queue).key(), ("x", 0));
}

#[test]
fn group_a_run_in_flight_continues_and_its_key_waits_for_resume() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add(("x", 0));
    let item = get(&queue);
    x.pause();
    assert_eq!(queue.add(("x", 0)), Added::Dirty);
    item.succeed();
    assert!(would_wait(&queue));
    x.resume();
    assert_eq!(take_all(&queue), [("x", 0)]);
}

#[test]
fn group_the_pause_outlasts_the_keys() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add(("x", 0));
    x.pause();
    assert!(queue.cancel(&("x", 0)).ready);
    assert_eq!(queue.records(), 0);
    assert!(x.is_paused());
    queue.add(("x", 1));
    assert!(would_wait(&queue));
    x.resume();
    assert!(!x.is_paused());
    assert_eq!(take_all(&queue), [("x", 1)]);
}

#[test]
fn group_resume_wakes_a_getter() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    x.pause();
    let (count, waker) = Wakes::new();
    let mut getter = pin!(queue.get());
    assert!(getter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    queue.add(("x", 0));
    assert_eq!(count.count(), 0, "no key may be delivered");
    x.resume();
    assert_eq!(count.count(), 1);
    assert!(getter.poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn group_cancel_removes_what_is_pending() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add_all([("x", 0), ("x", 1), ("x", 2), ("y", 0)]);
    get(&queue).retry();
    let dirty = get(&queue);
    queue.add(*dirty);
    queue.add_after(("x", 3), S);
    assert_eq!(states(x), [1, 1, 1, 1, 1]);
    assert_eq!(x.cancel(), 4);
    assert_eq!(states(x), [0, 0, 0, 1, 0], "the run continues");
    assert_eq!(queue.num_requeues(&("x", 0)), 0, "the failures are forgotten");
    dirty.succeed();
    assert_eq!(take_all(&queue), [("y", 0)]);
    assert_eq!((queue.records(), x.cancel()), (0, 0));

    // The call also forgets the failures of keys in flight.
    queue.add(("x", 0));
    let failing = get(&queue);
    queue.add_rate_limited(("x", 0));
    assert_eq!(queue.num_requeues(&failing), 1);
    assert_eq!(x.cancel(), 1);
    assert_eq!((queue.num_requeues(&failing), queue.failures(&*failing)), (0, 0));
    failing.succeed();

    // There are several groups, with more keys than one batch examines.
    queue.add_all((0..999).map(|n| (["x", "y", "z"][n as usize % 3], n)));
    assert_eq!(queue.cancel_groups(["z", "x", "z"].map(GroupId::of)), Ok(666));
    assert_eq!(take_all(&queue).iter().filter(|(group, _)| *group == "y").count(), 333);
    assert_eq!((queue.records(), queue.cancel_groups([])), (0, Ok(0)));
    assert_eq!(Queue::<u32>::new().cancel_groups([]), Err(NoGroups));
}

#[test]
fn group_cancel_running_then_wait_until_none_is_in_flight() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add_all([("x", 0), ("x", 1), ("y", 0)]);
    let (first, second, other) = (get(&queue), get(&queue), get(&queue));
    x.pause();
    assert_eq!((x.cancel_running(), x.cancel_running()), (2, 0));
    assert!(
        first.cancel_reason().is_some()
            && second.cancel_reason().is_some()
            && other.cancel_reason().is_none()
    );

    let (count, waker) = Wakes::new();
    let mut context = Context::from_waker(&waker);
    let mut stopped = pin!(x.none_in_flight());
    assert!(stopped.as_mut().poll(&mut context).is_pending());
    drop(first);
    assert!(stopped.as_mut().poll(&mut context).is_pending(), "one is in flight");
    drop(second);
    assert_eq!(count.count(), 1);
    assert!(stopped.poll(&mut context).is_ready());
    assert_eq!((x.states().total(), group(&queue, "y").states().in_flight), (0, 1));
}

#[test]
fn group_the_wait_is_over_even_if_the_next_run_starts_immediately() {
    let (_clock, queue) = queue();
    queue.add_all([("x", 0), ("x", 1)]);
    let first = get(&queue);
    let mut context = Context::from_waker(Waker::noop());
    let mut stopped = pin!(group(&queue, "x").none_in_flight());
    assert!(stopped.as_mut().poll(&mut context).is_pending());
    first.succeed();
    let _second = get(&queue);
    assert!(stopped.poll(&mut context).is_ready());
}

#[test]
fn group_shut_down_drops_the_ready_keys_of_a_paused_group() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add_all([("x", 0), ("x", 1), ("y", 0)]);
    let item = get(&queue);
    queue.add(*item);
    x.pause();
    assert_eq!(queue.shut_down(), [("x", 1)]);
    x.resume();
    assert!(x.is_paused(), "`resume` has no effect");
    assert_eq!(take_all(&queue), [("y", 0)]);
    assert!(!would_wait(&queue));
    let getter = pin!(queue.get().until_final());
    let polled = getter.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready(), "the dirty key will not run");
    item.succeed();
    assert_eq!(queue.take_dropped(), [("x", 0)]);
}

#[test]
fn group_close_waits_for_resume() {
    let (_clock, queue) = queue();
    let x = group(&queue, "x");
    queue.add(("x", 0));
    x.pause();
    queue.close();
    assert!(would_wait(&queue));
    x.resume();
    assert_eq!(take_all(&queue), [("x", 0)]);
    assert!(!would_wait(&queue));
}
