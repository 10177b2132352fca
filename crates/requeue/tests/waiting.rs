//! Getters that wait for keys, and the getters that are woken. No getter depends on another getter
//! being polled.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::thread;

use common::{Wakes, block_on, fake, ms, poll, ready, secs, take_all};
use requeue::clock::{FakeClock, SystemClock};
use requeue::{GroupId, Queue};

fn system() -> Queue<u32> {
    Queue::builder().clock(SystemClock).build().unwrap()
}

// --- Wakes ---------------------------------------------------------------------------------------

#[test]
fn an_add_wakes_a_getter() {
    let (queue, _clock) = fake();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    assert_eq!(wakes.count(), 0);
    queue.add("a");
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(get).as_deref(), Some(&"a"));
}

#[test]
fn a_coalesced_add_wakes_no_further_getter() {
    let (queue, _clock) = fake();
    queue.add("a");
    let _item = queue.try_get().unwrap();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("a");
    assert_eq!(wakes.count(), 0, "the key is in flight");
}

#[test]
fn finishing_a_dirty_key_wakes_a_getter() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    item.succeed();
    assert_eq!(wakes.count(), 1);
    assert!(ready(get).is_some());
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    let (queue, _clock) = fake();
    let ((old, old_waker), (new, new_waker)) = (Wakes::new(), Wakes::new());
    let mut get = queue.get();
    assert!(poll(&mut get, &old_waker).is_pending());
    assert!(poll(&mut get, &new_waker).is_pending());
    queue.add("a");
    assert_eq!((old.count(), new.count()), (0, 1));
}

/// The queue stores only wakers of getters that still wait.
#[test]
fn the_queue_keeps_no_waker_of_a_getter_that_waits_no_more() {
    let (queue, clock) = fake::<&str>();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    drop((get, waker));
    assert_eq!(Arc::strong_count(&wakes), 1);
    assert_eq!(clock.armed(), 0);
}

#[test]
fn getters_are_served_in_the_order_they_came() {
    let (queue, _clock) = fake();
    let (first_wakes, first_waker) = Wakes::new();
    let (mut first, mut second) = (queue.get(), queue.get());
    assert!(poll(&mut first, &first_waker).is_pending());
    assert!(poll(&mut second, Waker::noop()).is_pending());
    queue.add("a");
    assert_eq!(first_wakes.count(), 1);
}

// --- Getters that are not polled -----------------------------------------------------------------

#[test]
fn a_getter_that_is_woken_and_not_polled_blocks_no_other() {
    let (queue, _clock) = fake();
    let mut asleep = queue.get();
    assert!(poll(&mut asleep, Waker::noop()).is_pending());
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());

    // The getter that is not polled is woken first. The single key must still reach the other
    // getter.
    queue.add("a");
    assert_eq!(wakes.count(), 1);
    let item = ready(get).unwrap();
    assert_eq!(*item, "a");
    item.succeed();
    assert!(poll(&mut asleep, Waker::noop()).is_pending());
}

#[test]
fn a_getter_that_is_not_polled_keeps_no_due_key_from_another() {
    let (queue, clock) = fake();
    let mut asleep = queue.get();
    assert!(poll(&mut asleep, Waker::noop()).is_pending());
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());

    queue.add_after("a", secs(1));
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 1, "woken without any poll");
    let item = ready(get).unwrap();
    assert_eq!(*item, "a");
    item.succeed();
    drop(asleep);
}

/// After each poll, such a getter returns to the head of the list.
#[test]
fn a_getter_that_is_polled_rarely_does_not_block_others_repeatedly() {
    let (queue, _clock) = fake();
    let mut slow = queue.get();
    assert!(poll(&mut slow, Waker::noop()).is_pending());
    for key in 0..10 {
        let (wakes, waker) = Wakes::new();
        let mut get = queue.get();
        assert!(poll(&mut get, &waker).is_pending());
        queue.add(key);
        assert_eq!(wakes.count(), 1);
        let item = ready(get).unwrap();
        assert_eq!(*item, key);
        item.succeed();
        assert!(poll(&mut slow, Waker::noop()).is_pending());
    }
}

#[test]
fn a_task_that_is_not_polled_keeps_no_key_from_a_thread() {
    let (queue, clock) = fake();
    let mut asleep = queue.get();
    assert!(poll(&mut asleep, Waker::noop()).is_pending());
    thread::scope(|scope| {
        // When the alarm of its deadline is armed, the thread waits.
        let thread = scope.spawn(|| queue.get().timeout(secs(3600)).blocking().map(|item| *item));
        clock.wait_armed(1);
        queue.add("a");
        assert_eq!(thread.join().unwrap(), Some("a"));
    });
}

// --- Deadlines -----------------------------------------------------------------------------------

#[test]
fn a_getter_with_a_deadline_gives_up_at_it() {
    let (queue, clock) = fake::<&str>();
    let start = clock.now();
    assert!(clock.run(queue.get().timeout(secs(5))).is_none());
    assert_eq!((clock.now(), clock.armed()), (start + secs(5), 0));

    let item = thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().timeout(secs(5)).blocking().is_none());
        clock.wait_armed(1);
        clock.advance(secs(5));
        thread.join().unwrap()
    });
    assert!(item);
    assert_eq!(clock.armed(), 0);
}

#[test]
fn a_getter_whose_deadline_has_come_takes_what_is_there() {
    let (queue, _clock) = fake();
    queue.add_all([1, 2]);
    let first = ready(Box::pin(queue.get().timeout(ms(0)))).unwrap();
    let second = queue.get().timeout(ms(0)).blocking().unwrap();
    assert_eq!((*first, *second), (1, 2));
    assert!(ready(Box::pin(queue.get().timeout(ms(0)))).is_none());
    assert!(queue.get().timeout(ms(0)).blocking().is_none());
}

/// A key whose due time equals the deadline of a getter is still delivered to this getter.
#[test]
fn a_key_that_is_due_at_the_deadline_is_delivered() {
    let (queue, clock) = fake();
    queue.add_after("a", secs(5));
    assert_eq!(clock.run(queue.get().timeout(secs(5))).as_deref(), Some(&"a"));
}

// --- Blocking and async getters ------------------------------------------------------------------

#[test]
fn blocking_and_async_getters_share_one_queue() {
    const KEYS: u32 = 2000;
    let queue = system();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for worker in 0..6 {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || {
                let get =
                    || if worker % 2 == 0 { queue.get().blocking() } else { block_on(queue.get()) };
                while let Some(item) = get() {
                    sender.send(*item).unwrap();
                    item.succeed();
                }
            });
        }
        (0..KEYS).for_each(|key| _ = queue.add(key));
        queue.close();
    });
    drop(sender);
    let mut keys: Vec<_> = receiver.iter().collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..KEYS).collect::<Vec<_>>(), "each key is delivered once");
}

// --- Several keys in one call ------------------------------------------------------------------------

#[test]
fn get_many_waits_for_one_and_takes_what_is_there() {
    let (queue, _clock) = fake();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get_many(3);
    assert!(poll(&mut get, &waker).is_pending());
    queue.add_all(0..5);
    assert!(wakes.count() > 0);
    let keys: Vec<_> = ready(get).into_iter().map(|item| item.into_parts().0).collect();
    assert_eq!(keys, [0, 1, 2]);
    let rest = queue.get_many(10).blocking();
    assert_eq!(rest.iter().map(|item| **item).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_thousand_keys_due_at_once_are_all_served() {
    let (queue, clock) = fake();
    (0..1000).for_each(|key| _ = queue.add_after(key, secs(1)));
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    clock.advance(secs(1));
    assert_eq!(wakes.count(), 1);
    ready(get).unwrap().succeed();
    assert_eq!(take_all(&queue), (1..1000).collect::<Vec<_>>());
}

/// More keys are due than one operation makes ready, and their group is at its limit. The getter
/// must continue until it finds a key that can be delivered.
#[test]
fn a_key_that_is_due_behind_hundreds_that_may_not_leave_is_found() {
    for due_before in [255, 256, 257, 512, 700] {
        for how in ["at once", "waiting", "several"] {
            let clock = FakeClock::new();
            let queue = Queue::builder()
                .clock(clock.clone())
                .group_by(|key: &u32| GroupId::new(u64::from(*key >= 1000)))
                .group_limit(1)
                .build()
                .unwrap();
            queue.add(0);
            let first = queue.try_get().unwrap();
            (1..=due_before).for_each(|key| _ = queue.add_after(key, secs(1)));
            queue.add_after(1000, secs(2));
            clock.advance(secs(3));
            let found = match how {
                "at once" => queue.try_get(),
                "waiting" => ready(queue.get()),
                _ => queue.get_many(10).now().pop(),
            };
            assert_eq!(found.as_deref(), Some(&1000), "{how}, behind {due_before} others");
            first.succeed();
        }
    }
}

/// As in client-go, `get` returns `None` when no key is ready, even if keys are in flight. A getter
/// that needs a final `None` continues to wait.
#[test]
fn a_shut_down_wakes_getters_beside_a_dirty_key() {
    let (queue, _clock) = fake();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    let [(wakes, waker), (final_wakes, final_waker)] = [Wakes::new(), Wakes::new()];
    let mut get = queue.get();
    let mut until_final = Box::pin(queue.get().until_final());
    assert!(poll(&mut until_final, &final_waker).is_pending());
    assert!(poll(&mut get, &waker).is_pending());
    queue.shut_down();
    assert_eq!((wakes.count(), final_wakes.count()), (1, 0));
    assert!(ready(get).is_none());
    item.succeed();
    assert_eq!(final_wakes.count(), 1);
    assert_eq!(ready(until_final).as_deref(), Some(&"a"));
}

/// There are more keys than the queue drops under one acquisition of the lock.
#[test]
fn a_shut_down_reports_any_number_of_keys() {
    for waiting in [255, 256, 257, 600] {
        let (queue, _clock) = fake();
        (0..waiting).for_each(|key| _ = queue.add_after(key, secs(1)));
        let mut dropped = queue.shut_down();
        dropped.sort_unstable();
        assert_eq!(dropped, (0..waiting).collect::<Vec<_>>());
        assert_eq!(queue.records(), 0);
    }
}

#[test]
fn a_resume_wakes_waiting_getters() {
    let (queue, _clock) = fake();
    queue.pause();
    let (wakes, waker) = Wakes::new();
    let mut get = queue.get();
    assert!(poll(&mut get, &waker).is_pending());
    queue.add("a");
    assert_eq!(wakes.count(), 0);
    queue.resume();
    assert_eq!(wakes.count(), 1);
    assert_eq!(ready(get).as_deref(), Some(&"a"));
}
