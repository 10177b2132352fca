//! The guarantees of `TscClock`.
#![cfg(feature = "tsc")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::task::Waker;
use std::thread;

use common::{Wakes, block_on, ms, secs};
use requeue::clock::{Clock, TscClock, sleep_until};
use requeue::{Queue, Time};

#[test]
fn time_never_goes_back_in_any_thread_and_all_clocks_agree() {
    let before = TscClock::new().now();
    assert!(before > Time::ZERO);
    let count = || {
        let clock = TscClock::new();
        let first = clock.now();
        let last = (0..1_000_000).fold(first, |last, _| {
            let now = clock.now();
            assert!(now >= last, "{now:?} after {last:?}");
            now
        });
        (first, last)
    };
    let counted = thread::scope(|scope| {
        let threads = [scope.spawn(count), scope.spawn(count)];
        threads.map(|thread| thread.join().unwrap())
    });
    let after = TscClock::default().now();
    for (first, last) in counted {
        assert!(before <= first && first < last && last <= after, "{before:?} {first:?} {after:?}");
    }
}

#[test]
fn an_alarm_that_is_due_wakes_at_once_and_never_is_never() {
    let (wakes, waker) = Wakes::new();
    let clock = TscClock::new();
    assert!(clock.is_real_time());
    drop(clock.arm(Time::NEVER, &waker));
    assert_eq!(wakes.count(), 0);
    drop(clock.arm(clock.now(), &waker));
    assert_eq!(wakes.count(), 1);
    drop(clock.arm(Time::ZERO, &waker));
    assert_eq!(wakes.count(), 2);
    // Arms and disarms an alarm for the latest time before `Time::NEVER`.
    drop(clock.arm(Time::from_nanos(u64::MAX - 1), &waker));
    drop(clock.arm(clock.now() + secs(3600), Waker::noop()));
    assert_eq!(wakes.count(), 2);
}

#[test]
fn a_sleep_is_over_when_its_time_has_come_and_not_before() {
    let clock = TscClock::new();
    let at = clock.now() + ms(2);
    block_on(sleep_until(&clock, at));
    assert!(clock.now() >= at, "never early");
}

#[test]
fn a_delayed_key_is_delivered_to_a_thread_and_to_a_task_and_never_early() {
    let queue = Queue::builder().clock(TscClock::new()).build().unwrap();
    let due = queue.now() + ms(2);
    queue.add_after("thread", ms(2));
    assert_eq!(queue.get().blocking().unwrap().into_parts().0, "thread");
    assert!(queue.now() >= due, "never early");

    let due = queue.now() + ms(2);
    queue.add_after("task", ms(2));
    assert_eq!(block_on(queue.get()).unwrap().into_parts().0, "task");
    assert!(queue.now() >= due, "never early");
}
