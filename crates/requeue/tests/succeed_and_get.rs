//! Completing a delivery and taking the next key in one call. The effect must be that of two
//! separate calls.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::collections::VecDeque;
use std::task::Waker;
use std::thread;

use common::{Fifo, Wakes, block_on, fake, ms, poll, ready, secs};
use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{Add, GroupId, Item, Order, Queue, ReaddPolicy};

/// Returns a queue for each code path, with its clock.
fn queues() -> Vec<(Queue<u32>, FakeClock)> {
    let build = |kind| {
        let clock = FakeClock::new();
        let limiter = ExponentialFailure::new(ms(1), secs(1));
        let builder = Queue::builder().clock(clock.clone()).limiter(limiter);
        let builder = match kind {
            0 => builder,
            1 => builder.track_times(),
            2 => builder.order(Order::Priority { oldest_every: 3 }),
            3 => builder.order(Order::Custom(Box::new(Fifo::default()))),
            4 => builder.group_by(|key| GroupId::new(u64::from(key % 2))).fair().group_limit(1),
            _ => builder.readd_policy(ReaddPolicy::Hold).track_times(),
        };
        (builder.build().unwrap(), clock)
    };
    (0..6).map(build).collect()
}

/// Runs random operations on a queue, with at most two keys in flight. Returns the events of the
/// queue.
fn events(queue: &Queue<u32>, clock: &FakeClock, seed: u64, at_once: bool) -> Vec<String> {
    let mut random = seed;
    let mut pick = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut held: VecDeque<Item<'_, u32>> = VecDeque::new();
    let mut said = Vec::new();
    for _ in 0..400 {
        let key = pick(6) as u32;
        let event = match pick(9) {
            0 | 1 => format!("{:?}", queue.add_with(key, Add::now().priority(pick(3) as i32))),
            2 => format!("{:?}", queue.add_after(key, ms(pick(40)))),
            3 => {
                clock.advance(ms(pick(20)));
                String::new()
            }
            4 => format!("{:?}", held.pop_back().map(Item::retry)),
            5 if held.len() < 2 => {
                held.extend(queue.try_get());
                format!("{held:?}")
            }
            6..=8 if !held.is_empty() => {
                let item = held.pop_front().unwrap();
                let next = if at_once {
                    queue.succeed_and_try_get(item)
                } else {
                    item.succeed();
                    queue.try_get()
                };
                held.extend(next);
                format!("{held:?}")
            }
            _ => continue,
        };
        let counts = (queue.totals(), queue.len(), queue.waiting(), queue.states().in_flight);
        let times = (queue.sample().times.unfinished_work, queue.sample().times.oldest_ready);
        said.push(format!("{event} {counts:?} {times:?}"));
    }
    said
}

#[test]
fn it_is_success_and_then_get_in_every_kind_of_queue() {
    for seed in 0..40 {
        for ((one, by_one), (other, by_other)) in queues().iter().zip(&queues()) {
            let apart = events(one, by_one, seed, false);
            let at_once = events(other, by_other, seed, true);
            for (apart, at_once) in apart.iter().zip(&at_once) {
                assert_eq!(apart, at_once, "with seed {seed}");
            }
        }
    }
}

#[test]
fn failures_are_forgotten() {
    let (queue, clock) = fake();
    queue.add("a");
    queue.try_get().unwrap().retry();
    clock.advance(secs(1));
    let item = queue.try_get().unwrap();
    assert_eq!((item.attempt(), queue.num_requeues(&"a")), (2, 1));
    assert!(queue.succeed_and_try_get(item).is_none());
    assert_eq!((queue.num_requeues(&"a"), queue.records()), (0, 0));
}

#[test]
fn a_key_that_was_added_meanwhile_is_the_next() {
    let (queue, _) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    assert_eq!(queue.succeed_and_try_get(item).as_deref(), Some(&"a"));
}

#[test]
fn an_item_of_another_queue_succeeds_there() {
    let ((one, _), (other, _)) = (fake(), fake());
    one.add("a");
    other.add("b");
    let item = one.try_get().unwrap();
    let next = other.succeed_and_try_get(item).unwrap();
    assert_eq!((*next, one.states().in_flight, other.states().in_flight), ("b", 0, 1));
    // The result is the same with an owned item.
    let next = one.succeed_and_try_get(next.into_owned());
    assert!(next.is_none());
    assert_eq!(other.records(), 0);
}

#[test]
fn a_future_completes_the_delivery_and_waits_in_line() {
    let (queue, _) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut next = queue.succeed_and_get(item);
    let (wakes, waker) = Wakes::new();
    assert!(poll(&mut next, &waker).is_pending());
    assert_eq!(queue.records(), 0);
    queue.add("b");
    assert_eq!(wakes.count(), 1);
    let item = ready(next).unwrap();
    assert_eq!(*item, "b");
    queue.close();
    assert!(ready(queue.succeed_and_get(item)).is_none());
}

#[test]
fn a_future_that_is_dropped_has_completed_the_delivery_and_taken_nothing() {
    let (queue, _) = fake();
    queue.add_all(["a", "b", "c"]);
    let item = queue.try_get().unwrap();
    drop(queue.succeed_and_get(item));
    assert_eq!((queue.len(), queue.states().in_flight, queue.totals().failures), (2, 0, 0));

    let items = queue.get_many(2).now();
    let mut last = None;
    for item in items {
        let mut next = queue.succeed_and_get(item);
        assert!(poll(&mut next, Waker::noop()).is_pending());
        last = Some(next);
    }
    queue.add("d");
    drop(last);
    assert_eq!((queue.len(), queue.states().in_flight), (1, 0));
}

#[test]
fn threads_and_tasks_pass_a_key_on_from_one_to_the_next() {
    let (queue, _clock) = fake();
    thread::scope(|scope| {
        let as_thread = || {
            let mut next = queue.get().blocking();
            while let Some(item) = next {
                if *item < 1_000 {
                    queue.add(*item + 2);
                }
                next = queue.succeed_and_try_get(item).or_else(|| queue.get().blocking());
            }
        };
        let as_task = || {
            block_on(async {
                let mut next = queue.get().await;
                while let Some(item) = next {
                    if *item < 1_000 {
                        queue.add(*item + 2);
                    }
                    next = queue.succeed_and_get(item).await;
                }
            });
        };
        scope.spawn(as_thread);
        scope.spawn(as_task);
        scope.spawn(as_task);
        queue.add_all([0_u32, 1]);
        // The ready keys and the keys in flight are processed. Keys that are added later are not.
        common::until(|| queue.totals().deliveries >= 1_002 && queue.states().in_flight == 0);
        queue.close();
    });
    assert_eq!((queue.totals().deliveries, queue.records()), (1_002, 0));
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_loop_over_a_full_queue_lets_other_tasks_run() {
    let queue = Queue::new();
    queue.add_all(0..10_000);
    let other = tokio::spawn(async {});
    let mut next = queue.get().await;
    while let Some(item) = next.filter(|_| !other.is_finished()) {
        next = queue.succeed_and_get(item).await;
    }
    assert!(other.is_finished() && queue.len() > 1_000);
}
